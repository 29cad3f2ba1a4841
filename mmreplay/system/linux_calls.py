"""Calls of Linux that `os` does not have: punch holes, exchange names, overwrite in place.

Invariant: only `durable_writes` uses them; where a call is missing, nothing is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct

from mmreplay.system import platform

KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE of linux/falloc.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: declared with a long, used with an int.
_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_SET_FLAGS = 1 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 2
_NO_COPY_ON_WRITE = 0x00800000
_SYNC_RANGE = getattr(platform.LIBC, "sync_file_range", None) if platform.LINUX else None
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begin to write out, and wait for nothing


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> bool:
    """As fallocate of Linux; False if it failed, or is missing."""
    if not platform.LINUX or platform.LIBC is None:
        return False
    call = platform.LIBC.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(call(descriptor, mode, offset, length) == 0)


def punch_hole(descriptor: int, offset: int, length: int) -> bool:
    """Zero bytes of a file and give their blocks back; False if that is impossible."""
    return fallocate(descriptor, KEEP_SIZE | _PUNCH_HOLE, offset, length)


def keep_in_place(descriptor: int) -> None:
    """Ask btrfs to overwrite the blocks of a file that is still empty, instead of moving them.

    With copy-on-write, allocated blocks do not prevent SIGBUS. Other file systems refuse.
    """
    if not platform.LINUX or platform.fcntl is None:
        return
    with contextlib.suppress(OSError):
        flags = struct.unpack("i", platform.fcntl.ioctl(descriptor, _GET_FLAGS, bytes(4)))[0]
        platform.fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _NO_COPY_ON_WRITE))


def begin_to_write_out(descriptor: int) -> None:
    """Start writing a file to the disk, while others are written."""
    if _SYNC_RANGE is not None:
        _SYNC_RANGE(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)


def exchange_names(first: tuple[str, int | None], second: tuple[str, int | None]) -> bool:
    """Exchange two names, each with its ``dir_fd``; False if the system cannot."""
    if not platform.LINUX or platform.LIBC is None or not hasattr(platform.LIBC, "renameat2"):
        return False
    places = [
        part
        for name, folder in (first, second)
        for part in (_AT_FDCWD if folder is None else folder, os.fsencode(name))
    ]
    if platform.LIBC.renameat2(*places, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False  # an old kernel, or a file system without it
    raise OSError(number, os.strerror(number))
