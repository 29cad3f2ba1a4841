"""Who may write: locks on directories, which end with the process that holds them.

Invariant: no other module calls flock; a held lock is on the directory that had this path when the
lock was taken.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import socket
import time
import weakref
from collections.abc import Callable

from mmreplay.errors import FailedStoreError, LockedError, StoreNotFoundError
from mmreplay.system import platform
from mmreplay.system.disk_errors import writing
from mmreplay.system.forks import after_fork_in_child
from mmreplay.system.held_directories import AnyPath, HeldDirectory

_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """An exclusive flock on a directory itself: a lock file that gets unlinked lets two in.

    `is_abandoned`: it will be released as soon as its background work ends.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        patience_s: float = 0.5,
        who: Callable[[], str],
        what: str = "lane",
    ) -> None:
        """Lock `path`, or raise LockedError, with the holder as `who` names it."""
        if platform.fcntl is None:
            raise FailedStoreError(
                f"{path}: this system has no flock, so nothing can be written here; "
                f"closed stores can be read"
            )
        self.is_abandoned = False
        try:
            self.directory = HeldDirectory(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"{path}: there is no directory here, or not any more; check the path"
            ) from error
        deadline, collected = time.monotonic() + patience_s, False
        while True:
            try:
                platform.fcntl.flock(
                    self.directory.descriptor, platform.fcntl.LOCK_EX | platform.fcntl.LOCK_NB
                )
                if self.directory.is_at(path):
                    break
                # Another directory has the name by now, as after a repair: that is the one to lock.
                self.release()
                self.directory = HeldDirectory(path)
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
                abandoned = _abandoned(self.directory)
                mine = bool(abandoned)
                if any(abandoned):
                    deadline = max(deadline, time.monotonic() + patience_s)
                elif time.monotonic() > deadline and mine and patience_s and not collected:
                    gc.collect()  # a writer that was dropped may be part of a cycle
                    collected = True
                elif time.monotonic() > deadline:
                    self.release()
                    if mine:
                        raise LockedError(
                            f"{path}: open for writing already, in this process{who()}; close "
                            f"that writer or buffer first"
                        ) from error
                    raise LockedError(
                        f"{path}: another writer holds this {what}{who()}; end it, or only read "
                        f"meanwhile (mmreplay.open, mmreplay.load)"
                    ) from error
                time.sleep(0.01)
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether it was not released."""
        return self.directory.descriptor >= 0

    def is_on(self, directory: HeldDirectory) -> bool:
        """Whether it is held, and on this directory."""
        with contextlib.suppress(OSError):  # released by another thread at this moment
            return self.is_held and os.path.sameopenfile(
                self.directory.descriptor, directory.descriptor
            )
        return False

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        self.directory.close()

    def __del__(self) -> None:
        if hasattr(self, "directory"):
            self.release()


def _abandoned(directory: HeldDirectory) -> list[bool]:
    """Of each lock that this process has on a directory, whether it is abandoned."""
    while True:
        # Another thread may take or drop a lock meanwhile.
        with contextlib.suppress(RuntimeError):
            return [one.is_abandoned for one in _HELD if one.is_on(directory)]


def is_locked(path: AnyPath) -> bool:
    """Whether a writer is at work on this lane now. Takes the lock for an instant to see."""
    if platform.fcntl is None:
        return False
    try:
        directory = HeldDirectory(path)
    except (FileNotFoundError, NotADirectoryError):  # removed a moment ago
        return False
    try:
        platform.fcntl.flock(directory.descriptor, platform.fcntl.LOCK_SH | platform.fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        directory.close()
    return False


# A child that outlives its parent would hold the parent's lock through the shared description.
after_fork_in_child(_HELD, DirectoryLock.release)


def holder() -> bytes:
    """Who this process is, for the message that a second writer gets."""
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}
    return json.dumps(about).encode()
