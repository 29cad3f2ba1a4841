"""Tests with the libraries whose formats these are: `make test-exchange` and `make test-lerobot`.

Each of the two has an environment of its own. In one without them, as that of `make test`, there is
almost nothing to collect.
"""

import importlib.util
from pathlib import Path

OF_LEROBOT = {"test_lerobot.py"}
OF_ALL = {"test_worked_on.py"}  # which skips what is not there

_here = {one.name for one in Path(__file__).parent.glob("test_*.py")}
_missing = set() if importlib.util.find_spec("minari") else _here - OF_LEROBOT - OF_ALL
if not importlib.util.find_spec("lerobot"):
    _missing |= OF_LEROBOT
collect_ignore = sorted(_missing)
