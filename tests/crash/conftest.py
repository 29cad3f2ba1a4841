"""Fixtures of this folder."""

import pytest

from mmreplay.testing.scratch import scratch_directory


@pytest.fixture
def tmp_path():
    """In memory: a disk that waits for nothing makes ten times as many crashes a second."""
    with scratch_directory() as path:
        yield path
