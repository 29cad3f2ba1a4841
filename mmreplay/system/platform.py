"""Features that not every operating system has, looked up once, and calls that `os` lacks.

Invariant: what is missing is None, 0 or does nothing, never an error at import. Linux and macOS get
the real thing; elsewhere plain fallbacks still import and read closed stores. Only `durable_writes`
uses the calls of Linux that change files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

__all__ = ["fcntl"]  # the others are defined here

try:
    import fcntl
except ImportError:  # Windows has no flock; writing there is refused, reading is not
    fcntl = None  # type: ignore[assignment]

LINUX = sys.platform == "linux"
OPENS_FROM_DIRECTORIES = os.open in os.supports_dir_fd
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK = getattr(os, "O_NONBLOCK", 0)
CLOEXEC = getattr(os, "O_CLOEXEC", 0)
DIRECTORY = getattr(os, "O_DIRECTORY", 0)
BINARY = getattr(os, "O_BINARY", 0)


def _libc() -> ctypes.CDLL | None:
    if os.name != "posix":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        int_ = ctypes.c_int
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, int_, int_, int_, ctypes.c_int64]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return libc


LIBC = _libc()

KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE of linux/falloc.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: declared with a long, used with an int.
_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_SET_FLAGS = 1 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 2
_NO_COPY_ON_WRITE = 0x00800000
_SYNC_RANGE = getattr(LIBC, "sync_file_range", None) if LINUX else None
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begin to write out, and wait for nothing


def _make_barrier() -> Callable[[], None] | None:
    """A memory barrier, between the values of a row and the word that commits it; None on x86."""
    if platform.machine().lower() in ("x86_64", "amd64", "i686", "i386"):
        return None

    def call() -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.release()
        lock.acquire()

    return call


barrier = _make_barrier()


def boot_id() -> bytes:
    """16 bytes that change with every start of the system; without such an id, of this process."""
    try:
        if LINUX:
            text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
            return uuid.UUID(text.strip()).bytes
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            run = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603
            text = run.stdout
            return uuid.UUID(text.strip()).bytes
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return _PROCESS_ID


_PROCESS_ID = uuid.uuid4().bytes


def uptime_s() -> float:
    """Seconds since the operating system started, by a clock that is never set; sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if LINUX else time.monotonic()


def give_way(nice: int) -> None:
    """Add to the niceness of this thread; nothing where only a process has one."""
    if not LINUX:
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # it goes on without
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + nice)


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> bool:
    """As fallocate of Linux; False if it failed, or is missing."""
    if not LINUX or LIBC is None:
        return False
    call = LIBC.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(call(descriptor, mode, offset, length) == 0)


def punch_hole(descriptor: int, offset: int, length: int) -> bool:
    """Zero bytes of a file and give their blocks back; False if that is impossible."""
    return fallocate(descriptor, KEEP_SIZE | _PUNCH_HOLE, offset, length)


def keep_in_place(descriptor: int) -> None:
    """Ask btrfs to overwrite the blocks of a file that is still empty, instead of moving them.

    With copy-on-write, allocated blocks do not prevent SIGBUS. Other file systems refuse.
    """
    if not LINUX or fcntl is None:
        return
    with contextlib.suppress(OSError):
        flags = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(4)))[0]
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _NO_COPY_ON_WRITE))


def begin_to_write_out(descriptor: int) -> None:
    """Start writing a file to the disk, while others are written."""
    if _SYNC_RANGE is not None:
        _SYNC_RANGE(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)


def exchange_names(first: tuple[str, int | None], second: tuple[str, int | None]) -> bool:
    """Exchange two names, each with its ``dir_fd``; False if the system cannot."""
    if not LINUX or LIBC is None or not hasattr(LIBC, "renameat2"):
        return False
    places = [
        part
        for name, folder in (first, second)
        for part in (_AT_FDCWD if folder is None else folder, os.fsencode(name))
    ]
    if LIBC.renameat2(*places, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False  # an old kernel, or a file system without it
    raise OSError(number, os.strerror(number))
