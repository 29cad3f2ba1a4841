"""Errors of the operating system in writes and fsyncs, as errors of this package.

Invariant: DiskFullError is raised only where the same call works again once there
is room; after an fsync that failed, none does.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from mmreplay.errors import DiskFullError, FailedStoreError
from mmreplay.system.held_directories import AnyPath, check_there, shown
from mmreplay.system.limits import check_limit

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (
    "the file system is read-only, as mounted or since an error of the disk (dmesg): mount it for "
    "writing and open the store again; it can be read meanwhile"
)


class FailedSyncError(FailedStoreError):
    """An fsync failed: what was written since the last one may never reach the disk."""


@contextlib.contextmanager
def writing(what: str, path: AnyPath) -> Iterator[None]:
    """Turn OSErrors of a write into DiskFullError (ENOSPC, EDQUOT) or else FailedStoreError."""
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            room, advice = "on the disk", "make room"
            if error.errno == errno.EDQUOT:
                room, advice = "in the disk quota", "make room, or have the quota raised,"
            raise DiskFullError(
                f"{shown(path)}: no room {room} for {what}; nothing was changed: {advice} and "
                f"call again"
            ) from error
        check_there(path, error)
        check_limit(error, shown(path))
        raise FailedStoreError(
            f"{shown(path)}: {what} failed: {error.strerror or error}; what was flushed is kept: "
            f"{_advice(error)}"
        ) from error


def _advice(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "it needs the right to write there"
    if error.errno == errno.EFBIG:
        return (
            "no file of this process may become so large (`ulimit -f`), or none of this file "
            "system: raise that limit and open the store again"
        )
    return _READ_ONLY if error.errno == errno.EROFS else "check the disk and open the store again"


@contextlib.contextmanager
def syncing(path: AnyPath) -> Iterator[None]:
    """Turn every OSError of an fsync into FailedSyncError: a second one would seem to succeed."""
    try:
        yield
    except OSError as error:
        raise FailedSyncError(
            f"{shown(path)}: fsync failed: {error.strerror or error}; what was flushed before is "
            f"kept: {_advice(error)}"
        ) from error
