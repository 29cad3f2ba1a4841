"""Limits of a process, as errors that say which was reached."""

import _thread
import errno
import os
import resource

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import FailedStoreError
from mmreplay.system import limits


@pytest.mark.parametrize(
    ("number", "word"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.ENOMEM, "ulimit -v")],
)
def test_each_limit_is_named(number, word):
    with pytest.raises(FailedStoreError, match=word):
        limits.check_limit(OSError(number, "x"), "/a/b")
    limits.check_limit(OSError(errno.EIO, "x"), "/a/b")


@pytest.fixture
def few_files():
    """As many descriptors more as are given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(more):
        lowest = os.open("/", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_open_files_lose_nothing_and_the_same_call_works_later(tmp_path, few_files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    path, failures = tmp_path / "s.zarr", 0
    for more in range(12):
        few_files(more)
        try:
            writer = mmreplay.create(path, Field((2,)), Field((), "int64"), lanes=2, flush_s=0)
        except FailedStoreError as error:
            assert "ulimit -n" in str(error)
            failures += 1
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not path.exists()
    assert failures > 2
    assert list(tmp_path.iterdir()) == [path]  # what was left of the failures is swept up
    writer.reset(np.zeros((2, 2), np.uint8))
    few_files(0)
    with pytest.raises(FailedStoreError, match="ulimit -n"):
        writer.flush()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    writer.step([0, 0], [1, 1], np.ones((2, 2), np.uint8), [0, 0], [0, 0])
    writer.flush()
    writer.close()
    assert mmreplay.verify(path).sound
    assert len(mmreplay.load(path)) == 2


@pytest.mark.parametrize("n_threads", [0, 1, 3])
def test_without_a_thread_to_be_had_a_writer_says_so_or_does_without(
    tmp_path, monkeypatch, n_threads
):
    real, path, left = _thread.start_new_thread, tmp_path / "s.zarr", [n_threads]

    def start(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        return real(*arguments)

    frame = Field((3,), "uint8", "lz4", chunk=4, shard=8)
    monkeypatch.setattr(_thread, "start_new_thread", start)
    if not n_threads:
        with pytest.raises(FailedStoreError, match="no thread can be started"):
            mmreplay.create(path, frame, Field((), "int64"))
        assert list(tmp_path.iterdir()) == []
    with mmreplay.create(path, frame, Field((), "int64"), flush_s=0, capacity=50) as writer:
        writer.reset(np.zeros(3, np.uint8))
        for number in range(200):
            writer.step(0, number, np.full(3, number, np.uint8))
    with mmreplay.open(path) as store:
        assert store.rewards[150:200].tolist() == list(range(150, 200))
        assert store.frames[150:200, 0].tolist() == list(range(149, 199))
    assert mmreplay.verify(path).sound
