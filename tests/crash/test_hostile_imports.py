"""Sources of imports that somebody has tampered with: every import ends well, and in time.

Other tests name the single rules; here all of a source is changed in all ways.
"""

import sys

import pytest

from tests.support.effort import by_effort
from tests.support.tampering.imports import SOURCES, tamper_with_imports

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux"),
]

SEED = 20_261_127
N_INPUTS = by_effort(4, 12, 20_000)


@pytest.mark.deep
@pytest.mark.parametrize("name", list(SOURCES)[:: by_effort(3, 1, 1)])
def test_no_content_of_a_source_can_do_harm(tmp_path, name, measured):
    result = measured(f"hostile_imports-{name.replace(' ', '_')}", seed=SEED)
    tally = tamper_with_imports(tmp_path, name, N_INPUTS, SEED)
    result.add("inputs", tally.n_trials, "", at_least=20_000)
    result.add("crashes, hangs and errors of another kind", len(tally.failures), "", at_most=0)
    assert tally.n_trials == N_INPUTS
    assert not tally.failures, "\n".join(map(str, tally.failures[:20]))
