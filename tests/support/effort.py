"""How hard the tests look: ``$MMREPLAY_EFFORT`` is quick, deep or thorough.

``make test`` is quick, with every change; ``make test-deep`` runs what is marked ``deep`` for some
minutes; ``make crash`` is thorough, for as long as it takes. tests/conftest.py has the number of
hypothesis examples of each.
"""

import os
from typing import TypeVar

T = TypeVar("T")
EFFORTS = ("quick", "deep", "thorough")
EFFORT = os.environ.get("MMREPLAY_EFFORT", "quick")
if EFFORT not in EFFORTS:
    raise ValueError(f"MMREPLAY_EFFORT: expected one of {EFFORTS}, found {EFFORT!r}")
THOROUGH = EFFORT == "thorough"


def by_effort(quick, deep, thorough):
    """What stands for the effort of this run."""
    return (quick, deep, thorough)[EFFORTS.index(EFFORT)]
