"""Features that not every operating system has, looked up once.

Invariant: what is missing is None or 0, never an error at import; callers check first. Linux
and macOS get the real thing; elsewhere plain fallbacks still import and read closed stores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
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
