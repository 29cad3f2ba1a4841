"""Where a store lies: at the user's path, or in a directory of its own that goes with it.

Invariant: a directory that was made here is removed by `close`, when the object is dropped, or
when the process ends, and by no child of that process. If a signal ends the process, the next
place removes it.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

from mmreplay import files
from mmreplay.beside import held_temporary
from mmreplay.locks import DirectoryLock

__all__ = ["Place"]


class Place:
    """The path of a store that exists, will exist, or is temporary.

    Args:
        path: the user's; None makes a temporary directory.

    Attributes:
        path: of the store.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """See the class."""
        self._remove: weakref.finalize[..., Place] | None = None
        if path is not None:
            self.path = Path(path)
            return
        folder, lock = held_temporary()
        self.path = folder / "store.zarr"
        self._remove = weakref.finalize(self, _remove, folder, lock, os.getpid())

    @property
    def is_temporary(self) -> bool:
        """Whether it goes with `close`."""
        return self._remove is not None

    def exists(self) -> bool:
        """Whether there is something to open."""
        return self.path.exists()

    def close(self) -> None:
        """Remove what is temporary."""
        if self._remove is not None:
            self._remove()


def _remove(folder: Path, lock: DirectoryLock, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):  # whatever stays goes with the next one
            files.remove_tree(folder)
        lock.release()
