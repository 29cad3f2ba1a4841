"""A group of processes that may have so much memory together: a cgroup, of version 1 or 2.

Invariant: the group lies below that of the tests, whose own limits stay as they are, and is gone in
the end.
"""

import contextlib
import functools
import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_PATIENCE_S = 10.0


def _own():
    """The directory of the group that this process is in, and whether it is of version 2."""
    with contextlib.suppress(OSError):
        for line in _OWN.read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(","):
                return _ROOT / "memory" / name.lstrip("/"), False
            if not controllers and (_ROOT / "cgroup.controllers").exists():
                return _ROOT / name.lstrip("/"), True
    return None


@functools.cache
def unavailable():
    """Why no such group can be made here; empty if one can."""
    own = _own()
    if own is None:
        return "there is no cgroup for memory here"
    probe = own[0] / f"mmreplay-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError as error:
        return f"cgroups for memory cannot be made here: {error}"
    try:
        if not (probe / ("memory.max" if own[1] else "memory.limit_in_bytes")).exists():
            return "cgroups made here have no limit of memory"
    finally:
        probe.rmdir()
    return ""


class MemoryGroup:
    """A group with a limit; a context manager."""

    def __init__(self, name, limit_bytes):
        own = _own()
        if own is None:
            raise OSError("there is no cgroup for memory here")
        above, self._is_v2 = own
        self.path = above / f"{name}-{os.getpid()}"
        self._limit_bytes = limit_bytes

    def kills(self):
        """How many of its processes the kernel has killed for want of memory."""
        file = self.path / ("memory.events" if self._is_v2 else "memory.oom_control")
        words = dict(line.split() for line in file.read_text(encoding="utf-8").splitlines())
        return int(words["oom_kill"])

    def __enter__(self):
        self.path.mkdir()
        name = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
        (self.path / name).write_text(str(self._limit_bytes), encoding="utf-8")
        return self

    def __exit__(self, *_):
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
            else:
                return


def join(path):
    """Let this process be one of a group."""
    (path / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
