"""Errors of the operating system, told as those of this package."""

import errno
import os
from pathlib import Path

import pytest

from mmreplay.errors import DiskFullError, FailedStoreError
from mmreplay.system import disk_errors


def test_no_room_is_a_full_disk_that_names_path_and_purpose():
    for number, text in (
        (errno.ENOSPC, "no room on the disk for a purpose; .*: make room and call again"),
        (
            errno.EDQUOT,
            "no room in the disk quota for a purpose; .*have the quota raised, and call again",
        ),
    ):
        with pytest.raises(DiskFullError, match=f"/a/b: {text}"):
            with disk_errors.writing("a purpose", Path("/a/b")):
                raise OSError(number, "full")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EIO, "check the disk"),
        (errno.EACCES, "it needs the right to write there"),
        (errno.EROFS, "read-only, as mounted or since an error"),
        (errno.EFBIG, r"`ulimit -f`.*raise that limit"),
    ],
)
def test_any_other_failure_of_a_write_is_a_failed_store(number, text):
    with pytest.raises(FailedStoreError, match=f"/a/b: a purpose failed: .*{text}") as caught:
        with disk_errors.writing("a purpose", Path("/a/b")):
            raise OSError(number, os.strerror(number))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_sync_says_that_a_disk_became_read_only():
    with pytest.raises(FailedStoreError, match=r"read-only, as mounted or since an error"):
        with disk_errors.syncing(Path("/a/b")):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
