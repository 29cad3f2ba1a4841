"""Stores that are created by the first value, at the user's path or in a temporary directory.

Invariant: a store at a user's path stays. A temporary store is closed, then removed, by `close`,
when its object is dropped, or when the process ends, but never by a child process. If a signal ends
the process, the next temporary store removes it.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import ClosedError, EmptyBufferError, SchemaError
from mmreplay.reading.store import open_store
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.locks import DirectoryLock
from mmreplay.system.staging import locked_temporary_directory

StorePath = str | os.PathLike[str] | None


def _remove(folder: AnyPath, lock: DirectoryLock, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):  # the next temporary store removes the rest
            durable_writes.remove_tree(folder)
        lock.release()


class DeferredStore:
    """A buffer whose store is created by its first observation; one at `path` is continued."""

    def __init__(self, path: StorePath, capacity: int | None) -> None:
        self._capacity = capacity
        self._path = None if path is None else Path(path)
        self._core: ReplayBuffer | None = None
        self._temporary: Path | None = None
        self._remove: Callable[[], object] = lambda: None
        self._closed = False

    def _stored(self, *, dicts: bool = True) -> tuple[Any, dict[str, Any]] | None:
        """Frame and metadata of the store at the path, or None if there is no store."""
        if self._path is None or not self._path.exists():
            return None
        with open_store(self._path) as store:
            if store.schema.is_dict and not dicts:
                raise SchemaError(
                    f"{self._path}: expected one frame per row, found a dict of "
                    f"{sorted(store.schema.frames)}; open it with mmreplay.ReplayBuffer"
                )
            return store.schema.frame, store.live.readers[0].metadata["env"]

    def _open(self, kind: Callable[..., ReplayBuffer], **settings: Any) -> None:
        """Create the store, or open it: `settings` are those of `kind`."""
        if self._closed:
            raise ClosedError(f"{self!r}: this buffer was closed; create another one")
        if self._path is None:
            settings["flush_s"] = 0  # it need not survive a power cut
            if self._temporary is None:
                folder, lock = locked_temporary_directory()
                self._temporary = Path(str(folder)) / "store.zarr"
                self._remove = weakref.finalize(self, _remove, folder, lock, os.getpid())
        try:
            self._core = kind(self._path or self._temporary, self._capacity, **settings)
        except BaseException:
            self._remove()
            self._temporary = None
            raise

    @property
    def core(self) -> ReplayBuffer:
        """The `mmreplay` buffer with the data; EmptyBufferError if nothing was added."""
        if self._core is not None:
            return self._core
        if self._closed:
            raise ClosedError(f"{self!r}: this buffer was closed; create another one")
        raise EmptyBufferError(f"{self!r}: nothing was added yet")

    def __len__(self) -> int:
        return 0 if self._core is None else len(self._core)

    def close(self) -> None:
        """Close the store, or delete a temporary one; a second call does nothing."""
        self._closed = True
        try:
            if self._core is not None:
                self._core.close()
        finally:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        path = "temporary" if self._path is None else self._path
        return f"<{type(self).__module__}.{type(self).__name__} {path}>"
