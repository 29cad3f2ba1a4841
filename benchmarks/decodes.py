"""The decodes of a batch alone: the compressed chunks that its frames lie in, each once.

They go into one array that is kept: memory that was never touched would be slow the first time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mmreplay
from mmreplay.ids import LANE_SHIFT, ROW_MASK
from mmreplay.storage.shard_column import ShardColumn

__all__ = ["Decodes", "places"]

_CRC_BYTES = 4


def places(store: mmreplay.Store, ids: Any, offsets: Any) -> Any:
    """(B, offsets) places of the frames that lie so many steps from those of the ids."""
    steps = store.live.look(lambda index: index.steps(ids, 1, back=True))
    return steps.frames(offsets)


class Decodes:
    """Chunks of a column that has been read as a whole, so that all of its shards are mapped."""

    def __init__(self, column: ShardColumn) -> None:
        """No room yet."""
        self._column = column
        self._room = np.empty((0, column.longest_inner * column._row_bytes), np.uint8)

    def chunks(self, frames: Any) -> list[tuple[Any, int, Any]]:
        """Shard, number of the chunk, and where to decode it, of every chunk of these places."""
        return [(shard, chunk, room) for _, shard, chunk, room in self._found(frames)]

    def payloads(self, frames: Any) -> list[tuple[Any, Any, Any]]:
        """As `chunks`: the function of numcodecs, its bytes without their checksum, and where."""
        codecs = self._column._codecs
        return [
            (codecs[lane].decompress, _payload(shard, chunk), room)
            for lane, shard, chunk, room in self._found(frames)
        ]

    def _found(self, frames: Any) -> list[tuple[int, Any, int, Any]]:
        column = self._column
        keys = np.unique(column._locate(frames.ravel())[0])
        if len(self._room) < len(keys):
            self._room = np.ones((2 * len(keys), self._room.shape[1]), np.uint8)
        out = []
        for key, room in zip(keys.tolist(), self._room, strict=False):
            lane, chunk = key >> LANE_SHIFT, key & ROW_MASK
            shard, within = divmod(chunk, column._per_shard[lane])
            size = column._specs[lane].inner_rows * column._row_bytes
            out.append((lane, column._shards[lane, shard], within, room[:size]))
        return out


def _payload(shard: Any, chunk: int) -> Any:
    return np.frombuffer(shard.encoded(chunk), np.uint8)[:-_CRC_BYTES]
