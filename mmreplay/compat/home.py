"""What the buffers of Berkeley, keras-gym and baselines have in common: when their store is made.

Invariant: a temporary store is closed before it is removed; what lies at a path that the user gave
stays.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import Any, Self

from mmreplay import files
from mmreplay.arguments import whole_number
from mmreplay.buffers import ReplayBuffer
from mmreplay.compat.temporary import Place
from mmreplay.errors import ClosedError, EmptyBufferError, SchemaError
from mmreplay.schema import Field
from mmreplay.store import open_store

__all__ = ["Home", "StorePath"]

StorePath = str | os.PathLike[str] | None


class Home:
    """A buffer whose store is made with its first observation.

    Only then its shape is known. A store that is at `path` already is gone on with. A context
    manager; safe to drop without `close()` where there is no path.

    Args:
        path: the store's directory; None for a temporary one, in Python's `tempfile` folder.
        capacity: most transitions to keep.

    Raises:
        SchemaError: a capacity that is not 1 or more.
    """

    def __init__(self, path: StorePath, capacity: Any) -> None:
        """Nothing is there yet."""
        self._capacity = whole_number("size or capacity", capacity)
        self._path = None if path is None else Path(path)
        self._core: ReplayBuffer | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._closed = False

    def _stored(self) -> tuple[Field, dict[str, Any]] | None:
        """The frames' field and the metadata of the store that is at the path; None if none is."""
        if self._path is None or not self._path.exists():
            return None
        with open_store(self._path) as store:
            frame = store.schema.frame
            if not isinstance(frame, Field):
                raise SchemaError(
                    f"{self._path}: expected one frame a row, found a dict of {sorted(frame)}; "
                    f"open it with mmreplay.ReplayBuffer"
                )
            return frame, store.readers[0].metadata["env"]

    def _open(self, kind: type[ReplayBuffer], **settings: Any) -> None:
        """Make the store, or open it: `settings` are those of `kind`."""
        if self._closed:
            raise ClosedError(f"{self!r}: this buffer was closed; make another one")
        place = Place(self._path)
        if self._path is None:  # no power cut matters to what is deleted anyway
            settings["flush_s"] = 0
        try:
            self._core = kind(place.path, self._capacity, **settings)
        except BaseException:
            place.close()
            raise
        if self._path is None:
            self._end = weakref.finalize(self, _end, self._core, place)

    @property
    def core(self) -> ReplayBuffer:
        """The `mmreplay` buffer that holds the data.

        Raises:
            EmptyBufferError: nothing was added yet, so there is none.
            ClosedError: closed.
        """
        if self._core is not None:
            return self._core
        if self._closed:
            raise ClosedError(f"{self!r}: this buffer was closed; make another one")
        raise EmptyBufferError(f"{self!r}: nothing was added yet")

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return 0 if self._core is None else len(self._core)

    def close(self) -> None:
        """Close the store, or delete a temporary one; a second call does nothing."""
        self._closed = True
        if self._end is not None:
            self._end()
        if self._core is not None and self._path is not None:
            self._core.close()

    def _discard(self) -> None:
        """Delete the store, to make another one with the next observation."""
        if self._end is not None:
            self._end()
        elif self._core is not None and self._path is not None:
            self._core.close()
            files.remove_tree(self._path)
        self._core = self._end = None

    def __enter__(self) -> Self:
        """Return the buffer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Module, class and path."""
        where = "temporary" if self._path is None else self._path
        return f"<{type(self).__module__}.{type(self).__name__} {where}>"


def _end(core: ReplayBuffer, place: Place) -> None:
    # In a forked child neither does anything: both know whose they are.
    with contextlib.suppress(Exception):  # whatever it was, the data is not wanted any more
        core.close()
    place.close()
