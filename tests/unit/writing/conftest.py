"""What several modules of this room watch."""

import re
import uuid

import pytest

from mmreplay.system import durable_writes, locks, platform


@pytest.fixture
def impatient(monkeypatch):
    """Nobody waits for a lock."""
    monkeypatch.setattr(locks.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0})


@pytest.fixture
def log(monkeypatch):
    """Calls that reach the disk, in order: (what, path below the store)."""
    calls = []

    def watch(name):
        real = getattr(durable_writes, name)

        def call(path, *args, **kwargs):
            calls.append((name, re.sub(r"^.*\.zarr/?", "", str(path))))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(durable_writes, name, call)

    for name in ("sync_file", "sync_directory", "write_at", "write_file", "unlink", "allocate"):
        watch(name)
    return calls


@pytest.fixture
def power_cut(monkeypatch):
    """From now on the system has been started anew: nothing volatile is trusted."""

    def cut():
        now = uuid.uuid4().bytes
        monkeypatch.setattr(platform, "boot_id", lambda: now)

    return cut
