"""Archives on every kind of storage that needs no network: `make test-archive`.

In an environment without obstore there is nothing to collect.
"""

import importlib.util
from pathlib import Path

import pytest

_here = [one.name for one in Path(__file__).parent.glob("test_*.py")]
collect_ignore = [] if importlib.util.find_spec("obstore") else sorted(_here)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch, quick_disk):
    """The current folder is empty, and no disk is waited for."""
    monkeypatch.chdir(tmp_path)
