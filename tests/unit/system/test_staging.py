"""What those who died while they made a store have left beside it."""

import errno
import os
import resource

import pytest

import mmreplay
from mmreplay.errors import DiskFullError, FailedStoreError
from mmreplay.system import durable_writes, locks, staging
from tests.support.disks.trees import names

Field = mmreplay.Field


@pytest.fixture
def left(tmp_path):
    """A directory that nobody holds, one that somebody holds, and three that are none of ours."""
    for name in (".s.zarr.0123abcd.tmp", ".s.zarr.89abcdef.tmp", ".s.zarr.mine.tmp", "s.zarr.tmp"):
        (tmp_path / name / "frames").mkdir(parents=True)
        (tmp_path / name / "frames" / "zarr.json").write_bytes(b"{}")
    (tmp_path / ".s.zarr.76543210.tmp").symlink_to(tmp_path / "s.zarr.tmp")
    lock = locks.DirectoryLock(tmp_path / ".s.zarr.89abcdef.tmp", who=lambda: "")
    yield [".s.zarr.76543210.tmp", ".s.zarr.89abcdef.tmp", ".s.zarr.mine.tmp", "s.zarr.tmp"]
    lock.release()


def test_create_removes_what_nobody_holds(tmp_path, left):
    mmreplay.create(tmp_path / "s.zarr", Field((2,)), Field((), "int64")).close()
    assert names(tmp_path) == sorted([*left, "s.zarr"])
    assert (tmp_path / "s.zarr.tmp" / "frames" / "zarr.json").exists()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (
            errno.ENOSPC,
            "no room on the disk for .*; nothing is left behind: make room and call again",
        ),
        (errno.EFBIG, "writing .* failed: .*; nothing is left behind: .* and call again"),
    ],
)
def test_what_cannot_be_written_is_told_of_the_target(tmp_path, monkeypatch, number, text):
    source = tmp_path / "source"
    mmreplay.create(source, Field((2,)), Field((), "int64")).close()
    write = os.write

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises((DiskFullError, FailedStoreError), match=f"^{tmp_path}/s.zarr: {text}"):
        mmreplay.snapshot(source, tmp_path / "s.zarr")
    monkeypatch.setattr(os, "write", write)
    assert names(tmp_path) == ["source"]


@pytest.fixture
def most_files():
    """`most_files(n)` is the limit of open files; `most_files()` that from before."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(number=before):
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))

    yield limit
    limit()


def fail_without_files(path, most_files):
    with staging.staging_directory(path) as built:
        durable_writes.make_directory(built / "frames")
        durable_writes.write_new(built / "frames" / "c.0", b"")
        free = os.open("/", os.O_RDONLY)
        os.close(free)
        most_files(free)
        durable_writes.write_new(built / "frames" / "c.1", b"")


def test_a_directory_is_removed_also_when_no_more_files_may_be_opened(tmp_path, most_files):
    with pytest.raises(FailedStoreError, match=r"ulimit -n.*; nothing is left behind"):
        fail_without_files(tmp_path / "s.zarr", most_files)
    most_files()
    assert names(tmp_path) == []


def test_an_interrupt_before_it_is_locked_leaves_no_directory(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(locks.platform.fcntl, "flock", interrupted)
    with pytest.raises(KeyboardInterrupt), staging.staging_directory(tmp_path / "s.zarr"):
        pass
    assert names(tmp_path) == []
