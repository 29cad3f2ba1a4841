"""`DecodedChunks`: inner chunks of one column, kept as they were decoded last.

Invariant: a slot keeps its chunk while a thread reads it, and is read only once its chunk is in it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array, Ids
from mmreplay.system import forks

Bytes = npt.NDArray[np.uint8]
_TAKEN = np.iinfo(np.int64).max


class DecodedChunks:
    """Room for `n_chunks` chunks of `chunk_rows` rows; those used longest ago are replaced."""

    def __init__(
        self, n_chunks: int, chunk_rows: int, row_items: int, dtype: npt.DTypeLike
    ) -> None:
        self.n_chunks = n_chunks
        self.rows: Array = np.empty((n_chunks * chunk_rows, row_items), dtype)
        self._parts: Bytes = self.rows.reshape(n_chunks, -1).view(np.uint8)
        self.begin_again()
        _DECODED.add(self)

    def begin_again(self) -> None:
        """Forget everything: a thread of a forked child's parent may hold the lock."""
        n_chunks = self.n_chunks
        self._slots: dict[int, int] = {}  # by key
        self._keys: list[int | None] = [None] * n_chunks
        self._used = np.zeros(n_chunks, np.int64)  # when, by `_time`
        self._n_readers = np.zeros(n_chunks, np.int64)
        self._is_ready = np.ones(n_chunks, np.bool_)
        self._time = self._n_failures = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, keys: list[int], decode: Callable[[int, Bytes], None]) -> Iterator[Ids | None]:
        """The slots of chunks, (n,), which stay while they are held; None if there is no room."""
        slots = self._claim(keys, decode)
        try:
            yield slots
        finally:
            if slots is not None:
                with self._changed:
                    self._n_readers[slots] -= 1

    def _claim(self, keys: list[int], decode: Callable[[int, Bytes], None]) -> Ids | None:
        while True:
            with self._changed:
                n_failures = self._n_failures
                slots = np.array([self._slots.get(key, -1) for key in keys], np.int64)
                missing = (slots < 0).nonzero()[0]
                if missing.size:
                    room = self._room(missing.size, slots)
                    if room is None:
                        return None
                    slots[missing] = room
                    for at, slot in zip(missing.tolist(), room.tolist(), strict=True):
                        self._put(slot, keys[at])
                self._time += 1
                self._used[slots] = self._time
                self._n_readers[slots] += 1
            mine = [(keys[at], int(slots[at])) for at in missing.tolist()]
            self._fill(mine, slots, decode)
            with self._changed:
                while not self._is_ready[slots].all():
                    self._changed.wait()
                if self._n_failures == n_failures:
                    return slots
                # Another thread could not decode what this one waited for: this one will tell why.
                self._n_readers[slots] -= 1

    def _room(self, n: int, held: Ids) -> Ids | None:
        """Slots that no thread reads, except those to be held; None if there are too few."""
        used = np.where(self._n_readers > 0, _TAKEN, self._used)
        used[held[held >= 0]] = _TAKEN
        if n > self.n_chunks:
            return None
        room = used.argpartition(n - 1)[:n]
        return None if used[room].max() == _TAKEN else np.sort(room)

    def _put(self, slot: int, key: int | None) -> None:
        """Give a slot another key, whose chunk is still to come."""
        before = self._keys[slot]
        if before is not None:
            del self._slots[before]
        self._keys[slot] = key
        if key is not None:
            self._slots[key] = slot
        self._is_ready[slot] = key is None

    def _fill(
        self, mine: list[tuple[int, int]], slots: Ids, decode: Callable[[int, Bytes], None]
    ) -> None:
        """Decode chunks into their slots, which this thread has claimed."""
        if not mine:
            return
        try:
            for key, slot in mine:
                decode(key, self._parts[slot])
        except BaseException:
            with self._changed:
                for _, slot in mine:
                    self._put(slot, None)
                self._n_readers[slots] -= 1
                self._n_failures += 1
                self._changed.notify_all()
            raise
        with self._changed:
            self._is_ready[[slot for _, slot in mine]] = True
            self._changed.notify_all()


_DECODED: weakref.WeakSet[DecodedChunks] = weakref.WeakSet()
forks.after_fork_in_child(_DECODED, DecodedChunks.begin_again)
