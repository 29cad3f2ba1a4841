"""`DecodedChunks`: inner chunks of one column, kept as they were decoded last.

Invariant: a slot keeps its chunk while a thread reads it, and is read only once its chunk is in it.
After an interrupt in the middle nothing is kept any more, and nobody waits for what it left undone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array, Ids
from mmreplay.system import forks, threads

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
        # Of each slot: set once its chunk is in it, or will not be.
        self._filled: list[threads.Flag | None] = [None] * n_chunks
        self._time = self._n_failures = 0
        self._is_over = False
        self._lock = threading.Lock()  # not a `Condition`, in which an interrupt leaves it locked

    @contextmanager
    def hold(self, keys: list[int], decode: Callable[[int, Bytes], None]) -> Iterator[Ids | None]:
        """The slots of chunks, (n,), which stay while they are held; None if there is no room."""
        slots = self._claim(keys, decode)
        try:
            yield slots
        finally:
            if slots is not None:
                with self._lock:
                    self._n_readers[slots] -= 1

    def _claim(self, keys: list[int], decode: Callable[[int, Bytes], None]) -> Ids | None:
        filled = threads.Flag()
        try:
            while not self._is_over:
                with self._lock:
                    n_failures = self._n_failures
                    slots = np.array([self._slots.get(key, -1) for key in keys], np.int64)
                    missing = (slots < 0).nonzero()[0]
                    if missing.size:
                        room = self._room(missing.size, slots)
                        if room is None:
                            return None
                        slots[missing] = room
                        for at, slot in zip(missing.tolist(), room.tolist(), strict=True):
                            self._put(slot, keys[at], filled)
                    self._time += 1
                    self._used[slots] = self._time
                    self._n_readers[slots] += 1
                    others = {self._filled[slot] for slot in slots.tolist()} - {filled, None}
                self._fill([(keys[at], int(slots[at])) for at in missing.tolist()], slots, decode)
                filled.set()
                for other in others:
                    other.wait()
                with self._lock:
                    if self._n_failures == n_failures and not self._is_over:
                        return slots
                    # Another thread could not decode what this one waited for: this one tells why.
                    self._n_readers[slots] -= 1
                filled = threads.Flag()
        except BaseException as error:
            self._is_over |= not isinstance(error, Exception)
            raise
        finally:
            filled.set()
        return None

    def _room(self, n: int, held: Ids) -> Ids | None:
        """Slots that no thread reads, except those to be held; None if there are too few."""
        used = np.where(self._n_readers > 0, _TAKEN, self._used)
        used[held[held >= 0]] = _TAKEN
        if n > self.n_chunks:
            return None
        room = used.argpartition(n - 1)[:n]
        return None if used[room].max() == _TAKEN else np.sort(room)

    def _put(self, slot: int, key: int | None, filled: threads.Flag | None) -> None:
        """Give a slot another key, whose chunk is still to come."""
        before = self._keys[slot]
        if before is not None:
            del self._slots[before]
        self._keys[slot], self._filled[slot] = key, filled
        if key is not None:
            self._slots[key] = slot

    def _fill(
        self, mine: list[tuple[int, int]], slots: Ids, decode: Callable[[int, Bytes], None]
    ) -> None:
        """Decode chunks into their slots, which this thread has claimed."""
        try:
            for key, slot in mine:
                decode(key, self._parts[slot])
        except BaseException:
            with self._lock:
                for _, slot in mine:
                    self._put(slot, None, None)
                self._n_readers[slots] -= 1
                self._n_failures += 1
            raise


_DECODED: weakref.WeakSet[DecodedChunks] = weakref.WeakSet()
forks.after_fork_in_child(_DECODED, DecodedChunks.begin_again)
