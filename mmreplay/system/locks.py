"""Who may write: locks on directories, which end with the process that holds them.

Invariant: no other module calls flock; a held lock is on the directory that had this path when the
lock was taken.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from mmreplay.errors import CorruptStoreError, FailedStoreError, LockedError
from mmreplay.system import platform
from mmreplay.system.disk_errors import writing
from mmreplay.system.forks import after_fork_in_child

_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """An exclusive flock on a directory itself: a lock file that gets unlinked lets two in."""

    def __init__(self, path: Path, *, patience_s: float = 0.5, who: Callable[[], str]) -> None:
        """Lock `path`, or raise LockedError, with the holder as `who` names it."""
        self._descriptor = -1
        if platform.fcntl is None:
            raise FailedStoreError(
                f"{path}: this system has no flock, so nothing can be written here; "
                f"closed stores can be read"
            )
        self.path = path.absolute()
        self._descriptor = _open(path)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                platform.fcntl.flock(
                    self._descriptor, platform.fcntl.LOCK_EX | platform.fcntl.LOCK_NB
                )
                if self._is_at(path):
                    break
                # Another directory has the name by now, as after a repair: that is the one to lock.
                self.release()
                self._descriptor = _open(path)
                continue
            except FileNotFoundError as error:
                self.release()
                raise LockedError(
                    f"{path}: renamed or removed while its lock was waited for{who()}; try again"
                ) from error
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    self.release()
                    with writing("flock", path):
                        raise
                if time.monotonic() > deadline:
                    self.release()
                    if any(one.path == self.path and one.is_held for one in _HELD):
                        raise LockedError(
                            f"{path}: open for writing already, in this process{who()}; close "
                            f"that writer or buffer first"
                        ) from error
                    raise LockedError(
                        f"{path}: another writer holds this lane{who()}; "
                        f"end it, or read beside it (mmreplay.open, mmreplay.load); in a store of "
                        f"lanes, write one of your own (lane=...)"
                    ) from error
                time.sleep(0.01)
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether it was not released."""
        return self._descriptor >= 0

    def _is_at(self, path: Path) -> bool:
        about, now = os.fstat(self._descriptor), os.stat(path)
        return (about.st_dev, about.st_ino) == (now.st_dev, now.st_ino)

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """A writer that was dropped without close does not keep others out."""
        self.release()


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | platform.CLOEXEC)
    except PermissionError as error:
        raise CorruptStoreError(f"{path}: may not be read: {error.strerror}") from error


def is_locked(path: Path) -> bool:
    """Whether a writer is at work on this lane now. Takes the lock for an instant to see."""
    if platform.fcntl is None:
        return False
    descriptor = _open(path)
    try:
        platform.fcntl.flock(descriptor, platform.fcntl.LOCK_SH | platform.fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


# A child that outlives its parent would hold the parent's lock through the shared description.
after_fork_in_child(_HELD, DirectoryLock.release)


def holder() -> bytes:
    """Who this process is, for the message that a second writer gets."""
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}
    return json.dumps(about).encode()
