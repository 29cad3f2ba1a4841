"""Advise the kernel which pages of mapped chunk files to bring in, by what is in memory already.

Invariant: nothing here changes what is read, only when its pages come. A file that is in the page
cache gets its page tables filled at once, and not by one fault for each few rows; of one that is
not, the rows of a batch are asked for together before the first of them is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.system import memory_maps

Chunk = tuple[int, int]

LARGE_BYTES = 1 << 20
"""Of chunk files from which on advice is worth it."""

_MOSTLY = 0.75  # of a file's pages; reading the rest at once costs little
_LOOK_AGAIN = 256  # batches


class Pager:
    """What is known of the chunk files of one column; `active` until all of them are in memory."""

    def __init__(self) -> None:
        self._unknown: dict[Chunk, npt.NDArray[np.uint8]] = {}
        self._absent: dict[Chunk, npt.NDArray[np.uint8]] = {}
        self._batches = 0
        self.active = False

    def add(self, chunk: Chunk, data: npt.NDArray[np.uint8]) -> None:
        """A large chunk file was mapped whose rows are all written."""
        self._unknown[chunk] = data
        self.active = True

    def before(self, touched: set[Chunk]) -> bool:
        """Fill page tables of files touched for the first time; True if some are not in memory."""
        for chunk in touched & self._unknown.keys():
            data = self._unknown.pop(chunk, None)
            if data is None:  # another thread was first
                continue
            if memory_maps.resident(data) >= _MOSTLY:
                memory_maps.populate_read(data)
            else:
                # Rows that are sampled have no neighbours worth reading ahead.
                memory_maps.advise_random(data)
                self._absent[chunk] = data
        self._batches += 1
        if self._absent and self._batches % _LOOK_AGAIN == 0:
            self._unknown |= self._absent
            self._absent.clear()
        self.active = bool(self._unknown or self._absent)
        return not touched.isdisjoint(self._absent)


def ranges(first: Any, last: Any, row_bytes: int) -> list[tuple[int, int]]:
    """(start, length) in bytes of the rows from each of `first` to each of `last`, inclusive."""
    starts = np.asarray(first) * row_bytes
    lengths = (np.asarray(last) + 1) * row_bytes - starts
    return list(zip(starts.tolist(), lengths.tolist(), strict=True))
