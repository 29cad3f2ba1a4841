"""Sources that pyarrow reads and somebody has tampered with, as in tests/crash."""

import pytest

from tests.support.effort import by_effort
from tests.support.tampering.imports import WITH_PYARROW, tamper_with_imports

N_INPUTS = by_effort(15, 150, 20_000)


@pytest.mark.parametrize("name", WITH_PYARROW)
def test_no_content_of_a_source_can_do_harm(tmp_path, name):
    tally = tamper_with_imports(tmp_path, name, N_INPUTS, 20_261_127)
    assert tally.n_trials == N_INPUTS
    assert not tally.failures, "\n".join(map(str, tally.failures[:20]))
