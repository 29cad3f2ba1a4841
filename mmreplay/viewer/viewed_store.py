"""`ViewedStore`: one of the stores that a page shows, through all that may happen to it.

Invariant: whatever becomes of the store, an answer is right or a sentence says why there is none;
and what was mapped for answers is let go of before it fills the memory.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mmreplay.errors import MmreplayError, StoreNotFoundError
from mmreplay.reading.lane_state import lane_state, store_state
from mmreplay.reading.store import Store, open_store
from mmreplay.viewer.priorities import has_priorities

T = TypeVar("T")

_MOST_RESIDENT_BYTES = 100 << 20
_LEAST_READ_BYTES = 16 << 20
"""Read at least, before the maps are let go of again."""


class GoneError(MmreplayError):
    """What the page asks for was there, and is not any more."""


class ViewedStore:
    """A store that is read for pages; opened again when it is another one. Safe for threads.

    Args:
        path: its directory.
        salt: makes versions of this server's own.
        damaged: whether it may be damaged: then `head` says so, until it is not any more.

    Raises:
        As `mmreplay.open`.
    """

    def __init__(
        self, path: str | os.PathLike[str], salt: str = "", *, damaged: bool = False
    ) -> None:
        self.path = Path(path)
        self._salt = salt
        self._lock = threading.RLock()
        self._read_bytes = 0
        self._kept: dict[str, tuple[Any, Any]] = {}
        self._store: Store | None = None
        self._version = ""
        try:
            self._take(open_store(path))
        except StoreNotFoundError:
            raise
        except MmreplayError:
            if not damaged:
                raise

    def _take(self, store: Store) -> None:
        self._store = store
        self._version = self._version_of(store)

    def _version_of(self, store: Store) -> str:
        """Another one whenever rows may be others under the same ids."""
        uuids = [reader.metadata["uuid"] for reader in store.live.readers]
        return hashlib.sha256(repr((self._salt, uuids)).encode()).hexdigest()[:16]

    @property
    def store(self) -> Store:
        """As it is open now; raises as `mmreplay.open` if it was damaged from the first."""
        return self._store or open_store(self.path)

    def head(self) -> dict[str, Any]:
        """Where it stands: what the page looks at once a second.

        ``key`` is another one whenever there are new rows, or fewer; ``look`` when they are twice
        as many, or have priorities now; ``error`` is a sentence if the store cannot be read now.
        """
        try:
            with self._lock:
                self._refresh()
                store, version = self.store, self._version
            readers = store.live.readers
            states = [lane_state(reader.path, closed=reader.is_closed) for reader in readers]
            windows, n_transitions = store.live.look(
                lambda index: (
                    [index.window(lane) for lane in range(index.n_lanes)],
                    index.n_transitions,
                )
            )
        except (MmreplayError, OSError) as error:
            return {"version": self._version, "key": "", "look": "", "error": sentence(error)}
        state = store_state(states)
        rows = sum(head // reader.n for (_, _, head), reader in zip(windows, readers, strict=True))
        key = hashlib.sha256(repr((version, state, windows)).encode()).hexdigest()[:16]
        return {
            "version": version,
            "key": key,
            "look": f"{rows.bit_length()}{'p' * has_priorities(store)}",
            "error": None,
            "state": state,
            "transitions": n_transitions,
            "rows": rows,
        }

    def _refresh(self) -> None:
        """The newest rows; or the store that stands at the path by now, if the old one is gone."""
        try:
            if self._store is not None:
                self._store.refresh()
                self._version = self._version_of(self._store)
                return
        except (MmreplayError, OSError):  # the one that stands there now
            pass
        self._take(open_store(self.path))

    def read(self, version: str, call: Callable[[Store], T]) -> T:
        """What `call` reads of the store of this version; raises GoneError if it is another one."""
        with self._lock:
            store = self._store
            if store is None or version != self._version:
                raise GoneError("This store was opened again, or repaired: reload the page.")
        out = call(store)
        if version != self._version_of(store):  # exchanged while it was read
            raise GoneError("This store was opened again, or repaired: reload the page.")
        return out

    def kept(self, name: str, key: Any, make: Callable[[Store], T]) -> T:
        """What `make` gives, made again only when `key` is another one than the last time."""
        with self._lock:
            known = self._kept.get(name)
            store = self.store
        if known is not None and known[0] == key:
            out: T = known[1]
            return out
        made = make(store)
        with self._lock:
            self._kept[name] = key, made
        return made

    def count_bytes(self, n_bytes: int) -> None:
        """So much was read: let go of the maps when they hold too much of the memory.

        Pages of mapped files count as this process's own. A store that is opened again has none;
        threads that still read the old one keep it until they have done.
        """
        with self._lock:
            self._read_bytes += n_bytes
            if self._read_bytes < _LEAST_READ_BYTES or resident_bytes() < _MOST_RESIDENT_BYTES:
                return
            self._read_bytes = 0
            state = self.store.__getstate__()
            try:
                self._take(Store(state["roots"], state["known"], padding=state["padding"]))
            except (MmreplayError, OSError):  # `head` says what became of it
                return

    def close(self) -> None:
        """Let go of everything."""
        if self._store is not None:
            self._store.close()


def resident_bytes() -> int:
    """Memory of this process as the system counts it, mapped files included; 0 where unknown."""
    try:
        words = Path("/proc/self/statm").read_bytes().split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def sentence(error: Exception) -> str:
    """What the page says of an error."""
    if isinstance(error, MmreplayError) or not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or 'the store'}: {error.strerror or error}"


def finite(values: Any) -> list[float | None]:
    """As JSON holds them: None for what is no number."""
    return [one if np.isfinite(one) else None for one in np.asarray(values, np.float64).tolist()]
