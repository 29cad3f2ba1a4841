"""Fixtures of this folder."""

import pytest

from mmreplay.testing.scratch import scratch_directory


@pytest.fixture(autouse=True)
def in_memory(monkeypatch, tmp_path, quick_disk):  # pytest's own folders first
    """Temporary stores where nothing waits for a disk."""
    with scratch_directory() as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        yield folder
