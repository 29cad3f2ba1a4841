"""Where the next rows of a log go, many of them at once or one after the other.

Invariant: a row's place is free and mapped before anything of the row is written.
"""

from __future__ import annotations

import numpy as np

from mmreplay.ids import Array
from mmreplay.storage import chunk_files, shard_file
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log
from mmreplay.writing.open_chunks import OpenChunks
from mmreplay.writing.seal import Sealer

__all__ = ["Appender"]


class Appender:
    """The end of one of the two logs of a vector lane.

    Attributes:
        log: that is appended to.
        chunks: its mapped chunk files; empty once it is about to be closed.
        border: the first row that needs `make_room`: beyond it there is no place, or its pages have
            no memory yet.
    """

    def __init__(self, lane: LockedLane, log: Log, background: Background) -> None:
        self.log = log
        self.chunks = OpenChunks(lane, log, background)
        self._sealer = Sealer(log, background)
        self._room = self.border = 0

    def make_room(self, n: int) -> None:
        """Free the place of row n.

        Raises:
            DiskFullError: no room; nothing was changed.
        """
        if n >= self.border:
            self.border = 0  # until all of it is done
            if n >= self._room:
                self._room = 0
                self.chunks.make_room(n)
                self._sealer.make_room(n)
                self._room = min(self.chunks.border(n), self._sealer.half_stop)
            self.border = min(self._room, self.chunks.populate(n))

    def place(self, path: str, n: int) -> tuple[Array, int]:
        """Where row n of a column goes: an array, and the row of its first place."""
        return self.chunks.place(path, n)

    def finish(self) -> None:
        """Wait for the shard of the rows before the newest ones; no row is appended any more."""
        self._room = self.border = 0
        self._sealer.wait()

    def read(self, path: str, row: int) -> Array:
        """A committed row, wherever it is by now."""
        log, spec = self.log, self.log.specs[path]
        if spec.is_raw:
            out: Array = chunk_files.read_rows(log, spec, row, row + 1)[0, ...]
            return out
        if row >= log.tail_start:  # and there until this thread makes room for others
            tail = log.tails[path]
            return tail[row % len(tail), ...]
        chunk, first = divmod(row, spec.chunk_rows)
        inner, place = divmod(first, spec.inner_rows)
        file = chunk_files.chunk_path(log.path, spec, chunk)
        buffer = np.empty(spec.inner_bytes, np.uint8)
        shard_file.Shard(file, spec, log.codecs[path]).decode(inner, buffer)
        rows: Array = buffer.view(spec.dtype).reshape(spec.inner_rows, *spec.row_shape)
        return rows[place, ...]
