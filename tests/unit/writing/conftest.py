"""What several modules of this room watch."""

import uuid

import pytest

from mmreplay.system import locks, platform


@pytest.fixture
def impatient(monkeypatch):
    """Nobody waits for a lock."""
    monkeypatch.setitem(locks.DirectoryLock.__init__.__kwdefaults__, "patience_s", 0)


@pytest.fixture
def power_cut(monkeypatch):
    """From now on the system has been started anew: nothing volatile is trusted."""

    def cut():
        now = uuid.uuid4().bytes
        monkeypatch.setattr(platform, "boot_id", lambda: now)

    return cut
