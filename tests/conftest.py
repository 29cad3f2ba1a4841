"""Settings that hold for every test, and what tests in several folders need."""

import os

import pytest
from hypothesis import HealthCheck, settings

from mmreplay import files

# No deadlines: an example may wait for a disk, a child process or a busy neighbour, and a test
# that has really stopped is ended by the timeout in pyproject.toml.
settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,  # a red run is red again on the next machine
    print_blob=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
# HYPOTHESIS_PROFILE=soak make test: look longer, for faults that fifty examples do not reach.
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
)
_default = "ci" if os.environ.get("CI") else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _default))


@pytest.fixture
def quick_disk(monkeypatch):
    """Nothing here cuts the power, so nothing has to wait for the disk."""
    monkeypatch.setattr(files, "_fsync", lambda descriptor: None)
    monkeypatch.setattr(files, "_fdatasync", lambda descriptor: None)
