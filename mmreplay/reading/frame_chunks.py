"""How the frames of each lane are stored together; and those kept decoded between batches.

Invariant: where frames are compressed, a block begins and ends with a chunk of the column that has
the longest ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.reading.lane_reader import LaneReader
from mmreplay.sampling.epoch import Blocks
from mmreplay.storage.shard_column import KeptColumn, ShardColumn

_RAW_ROWS = 16  # of uncompressed frames, that count as a chunk
_RAW_BYTES = 16 << 10  # of a chunk of theirs, where blocks are concerned: four pages
_CHUNKS_FOR_EACH = 4  # in a block, for each one beside it whose frames it shows


class FrameChunks:
    """The lanes of a store: rows of a chunk, and how many entries of one row lie in it."""

    def __init__(self, readers: Sequence[LaneReader], paths: Sequence[str]) -> None:
        """`paths` are those of the columns of frames."""
        chunks, rows, widths, strides = [], [], [], []
        self.row_bytes = 0
        for reader in readers:
            specs = [reader.entries.specs[path] for path in paths]
            compressed = [spec for spec in specs if not spec.is_raw]
            row_bytes = [spec.row_bytes for spec in specs]
            self.row_bytes = sum(row_bytes)
            width = max(spec.width for spec in compressed or specs)
            chunks.append(max([spec.inner_rows for spec in compressed], default=_RAW_ROWS))
            least = 1 if compressed else _RAW_BYTES // max(row_bytes)
            rows.append(max(chunks[-1], least))
            widths.append(width)
            strides.append(reader.n // width)
        self._chunks, self._rows, self._widths, self._strides = (
            np.array(one, np.int64) for one in (chunks, rows, widths, strides)
        )

    def blocks(self, behind: int, ahead: int) -> Blocks:
        """Blocks for steps that show `behind` frames before their own and `ahead` after it.

        They are so long that at most a quarter more is decoded than a block has.
        """
        seen = np.array([[behind], [ahead]])
        beside = -(-seen * self._strides // self._rows)
        return Blocks(self._rows * np.maximum(_CHUNKS_FOR_EACH * beside.sum(0), 1), self._widths)

    def at_least(self, n_rows: int) -> Blocks:
        """Single chunks, or enough of them for that number of rows; 16 rows each of raw frames."""
        return Blocks(self._chunks * -(-n_rows // self._chunks), self._widths)


class KeptFrames:
    """As many as blocks of `n_rows` rows need, and no more; for one or several threads."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._made: tuple[Mapping[str, Any], dict[str, Any]] | None = None

    def columns(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same columns; of those that are compressed what is decoded stays here."""
        made = self._made
        if made is None or made[0] is not columns:
            mine = {
                path: KeptColumn(one, self.n_rows) if isinstance(one, ShardColumn) else one
                for path, one in columns.items()
            }
            self._made = made = columns, mine  # two threads may make it: one keeps nothing then
        return made[1]
