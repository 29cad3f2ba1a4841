"""The lanes of a store as one: columns over all of them, and their trajectory boundaries.

Invariant: `index` and the columns show the same heads, and change only in `follow`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import EPISODE_DTYPE, Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, Ids
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.raw_column import RawColumn, Remaps
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.system.held_directories import AnyPath


class JoinedLanes:
    """The lanes of a store as they were opened; `heads` are those that `index` and `columns` know.

    A store replaces it whole when a lane was opened again, for threads that read meanwhile.
    """

    def __init__(self, paths: Sequence[AnyPath]) -> None:
        """Raise EvictedError if a lane changed at this moment, SchemaError if they do not fit."""
        self.readers = [LaneReader(path, number) for number, path in enumerate(paths)]
        schema = self.readers[0].schema
        for reader in self.readers[1:]:
            if not reader.schema.same_data(schema):
                raise SchemaError(
                    f"{reader.path}: expected rows as in {paths[0]}, found another schema; "
                    f"load them apart"
                )
        self.columns: dict[str, RawColumn | ShardColumn] = {}
        self.remaps = Remaps()
        for path in self.readers[0].specs:
            self.columns[path] = (
                RawColumn(self.readers, path, self.remaps)
                if self._is_raw(path)
                else ShardColumn(self.readers, path)
            )
        self.index = Index(len(self.readers))
        self.heads = [reader.head for reader in self.readers]
        for number, reader in enumerate(self.readers):
            capacity = reader.metadata["capacity"]
            self.index.load(number, reader.base, reader.head, reader.starts(), capacity)
        for column in self.columns.values():
            column.refresh()

    def _is_raw(self, path: str) -> bool:
        """Whether a column is stored uncompressed, in all lanes."""
        raw = [reader for reader in self.readers if reader.specs[path].is_raw]
        compressed = [reader for reader in self.readers if not reader.specs[path].is_raw]
        if raw and compressed:
            codec = compressed[0].specs[path].codec_name
            raise SchemaError(
                f"{raw[0].path / path} is raw, {compressed[0].path / path} is compressed "
                f"({codec}); load them apart, or record both with one codec"
            )
        return bool(raw)

    def follow(self) -> bool:
        """Take the newest rows; False when a lane's session is over.

        Raises EvictedError if rows came and went unseen.
        """
        for number, reader in enumerate(self.readers):
            if not reader.poll():
                return False
            if reader.head != self.heads[number]:
                self._grow(number, reader)
        return True

    def _grow(self, number: int, reader: LaneReader) -> None:
        old, head = self.heads[number], reader.head
        if old < reader.base:  # so far behind that rows came and went unseen
            raise EvictedError(str(reader.path))
        for column in self.columns.values():
            column.refresh()
        starts = np.flatnonzero(self.columns["resets"].read(number, old, head)) + old
        self.heads[number] = head
        self.index.extend(number, reader.base, head, starts)

    def is_ahead(self) -> bool:
        """Whether every lane is followed, and no row of it came and went unseen."""
        pairs = zip(self.readers, self.heads, strict=True)
        return all(reader.poll() and head >= reader.base for reader, head in pairs)

    def same_session(self) -> bool:
        """Whether every lane is still in the session that was opened."""
        return all(reader.poll() for reader in self.readers)

    def newest(self, lane: int, path: str, resets: Ids) -> int:
        """The value of a scalar column in the newest row of a lane that is not closed.

        What is stored may be on its way in at this moment, or a crash has left some; as long as
        it is the newest, it is a final row. `resets` are the lane's as it had them at this head.
        """
        head = self.heads[lane]
        is_reset = bool(resets.size and resets[-1] == head - 1)
        if path == "resets":
            return int(is_reset)
        if path != "non_terminals":
            return 0
        if is_reset or head - 1 <= self.readers[lane].base:
            return 1
        before = np.array([(lane << LANE_SHIFT) + head - 2])
        return int(self.columns[path].take(before)[0])

    def episodes(self, lane: int) -> npt.NDArray[np.void]:
        """The whole retained episodes of one lane: see `EPISODE_DTYPE`."""
        _, first, head = self.index.window(lane)
        starts = self.index.resets(lane)
        starts = starts[starts >= first]
        stops = np.append(starts[1:], head)
        has_steps = stops - starts > 1
        starts, stops = starts[has_steps], stops[has_steps]
        out = np.zeros(starts.size, EPISODE_DTYPE)
        if not starts.size:
            return out
        lasts = stops - 2 + (lane << LANE_SHIFT)
        out["id"] = starts + (lane << LANE_SHIFT)
        out["length"] = stops - starts - 1
        out["return"] = self._returns(lane, starts, stops)
        out["terminated"] = self.columns["non_terminals"].take(lasts) == 0
        out["truncated"] = ~out["terminated"]
        if self.readers[lane].is_live and stops[-1] == head:
            out["truncated"][-1] = False
        return out

    def _returns(self, lane: int, starts: Ids, stops: Ids) -> npt.NDArray[np.float64]:
        """The sums of the rewards of rows [start, stop - 1): the last row of each is final."""
        out = np.zeros(starts.size)
        reader = self.readers[lane]
        spec = reader.specs["rewards"]
        pieces = chunk_files.filled_rows(reader, spec, int(starts[0]), int(stops[-1]))
        for row, values in pieces:
            # The episodes that have rows in this piece.
            first = int(starts.searchsorted(row, "right")) - 1
            last = int(starts.searchsorted(row + len(values)))
            begins = np.maximum(starts[first:last], row) - row
            ends = np.minimum(stops[first:last] - 1, row + len(values)) - row
            bounds = np.stack((begins, np.maximum(ends, begins)), 1).ravel()
            with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
                rewards = np.append(values.astype(np.float64), 0.0)  # an end may be the piece's
                sums = np.add.reduceat(rewards, bounds)[::2]
                out[first:last] += np.where(ends > begins, sums, 0.0)
        return out

    def endings(self, firsts: Ids) -> tuple[Ids, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """How whole episodes of a step or more end: (steps, terminated, truncated), (B,) each."""
        _, _, stops = self.index.span(firsts)
        terminated = self.columns["non_terminals"].take(stops - 1) == 0
        lanes = firsts >> LANE_SHIFT
        heads = np.array(self.heads)[lanes] + (lanes << LANE_SHIFT)
        live = np.array([reader.is_live for reader in self.readers])[lanes]
        return stops - firsts, terminated, ~terminated & ~(live & (stops + 1 == heads))
