"""`ViewedStore`: a store that a page shows, also when it is moved, replaced or repaired.

Invariant: an answer is right, or it is an error whose sentence the page shows.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mmreplay.errors import MmreplayError
from mmreplay.reading.lane_reader import lane_state, store_state
from mmreplay.reading.store import Store, open_store
from mmreplay.system import checked_reads
from mmreplay.viewer.shown_columns import has_priorities

T = TypeVar("T")


class GoneError(MmreplayError):
    """What the page asks for is gone: evicted, or part of another store."""


class ViewedStore:
    """A store that pages read, opened again if it is replaced; `salt` is part of its versions."""

    def __init__(self, path: str | os.PathLike[str], salt: str = "") -> None:
        self.path = Path(path)
        self._salt = salt
        self._lock = threading.RLock()
        self._kept: dict[str, tuple[Any, Any]] = {}
        self.store = open_store(path)
        self._version = self._version_of(self.store)

    def _version_of(self, store: Store) -> str:
        """Differs whenever the same ids may mean other rows."""
        uuids = [reader.metadata["uuid"] for reader in store.live.readers]
        return hashlib.sha256(repr((self._salt, uuids)).encode()).hexdigest()[:16]

    def head(self) -> dict[str, Any]:
        """Its state, which the page asks for once a second.

        ``key`` changes with the rows, ``look`` when their number has doubled or they have
        priorities; ``error`` is a sentence if the store cannot be read now.
        """
        try:
            with self._lock:
                try:
                    self.store.refresh()
                except (MmreplayError, OSError):  # another store has taken the path
                    self.store = open_store(self.path)
                version = self._version = self._version_of(self.store)
                store = self.store
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
        # Fields of episodes that were given afterwards come with another file.
        files = [checked_reads.identity(reader.path / "zarr.json") for reader in readers]
        key = hashlib.sha256(repr((version, state, windows, files)).encode()).hexdigest()[:16]
        return {
            "version": version,
            "key": key,
            "look": f"{rows.bit_length()}{'p' * has_priorities(store)}",
            "error": None,
            "state": state,
            "transitions": n_transitions,
            "rows": rows,
        }

    def read(self, version: str, call: Callable[[Store], T]) -> T:
        """Call with the store; raises GoneError if its version is another one."""
        with self._lock:
            store, known = self.store, self._version
        out = call(store) if version == known else None
        if out is None or version != self._version_of(store):  # replaced during the call
            raise GoneError("This store was opened again, or repaired: reload the page.")
        return out

    def kept(self, name: str, key: Any, make: Callable[[Store], T]) -> T:
        """What `make` returns, made again only when `key` has changed."""
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

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def sentence(error: Exception) -> str:
    """What the page says about an error."""
    if isinstance(error, MmreplayError) or not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or 'the store'}: {error.strerror or error}"


def finite(values: Any) -> list[float | None]:
    """For JSON: None for NaN and infinities."""
    return [one if np.isfinite(one) else None for one in np.asarray(values, np.float64).tolist()]
