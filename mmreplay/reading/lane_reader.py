"""Read-only view of the lane of one environment: its log, and where its episodes begin.

Invariant: what it says of the beginnings is of the session that it follows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import layout, parse
from mmreplay.format.columns import Column, lane_columns
from mmreplay.format.consolidated import Copy
from mmreplay.ids import Ids
from mmreplay.reading.log_reader import LogReader
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import Root
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

_PIECE_ROWS = 1 << 16


class LaneReader(LogReader):
    """The lane of one environment, read-only; `number` is its place in the store."""

    schema: Schema
    width = 1
    _index: tuple[layout.ArraySpec, int] | None = None  # of its beginnings, as the copy has it

    def __init__(self, path: AnyPath, number: int = 0) -> None:
        self.number = number
        super().__init__(path)

    @property
    def log(self) -> LogReader:
        """The one with its steps."""
        return self

    @property
    def logs(self) -> tuple[LogReader, ...]:
        """What is followed."""
        return (self,)

    def _columns(self) -> Mapping[str, Column]:
        if self.metadata["kind"] != "lane":
            raise FormatError(
                f"{self.path}: expected a lane, found {_KINDS[self.metadata['kind']]}"
            )
        self.schema = parse.schema_from_json(
            self.metadata.get("schema"), str(self.path / "zarr.json")
        )
        return lane_columns(self.schema)

    def _find_copy(self, root: Root) -> Copy | None:
        copy = super()._find_copy(root)
        self._index = None if copy is None else copy.array(layout.index_spec().path)
        return copy

    def resets(self, start: int, stop: int) -> Ids:
        """Rows in [start, stop) with a reset, ascending, from the reset bits."""
        return chunk_files.nonzero_rows(self, self.specs["resets"], start, stop)

    def starts(self) -> Ids:
        """Rows in [base, head) with a reset: from the index of a closed lane, else the bits."""
        if not self.is_closed:
            return self.resets(self.base, self.head)
        try:
            out = self._stored_starts()
        except (CorruptStoreError, FormatError):
            if self.replaced():
                raise EvictedError(str(self.path)) from None
            raise
        if self.replaced():  # by a later closing, whose index this may be
            raise EvictedError(str(self.path))
        return out

    def _stored_starts(self) -> Ids:
        path = self.path / "episodes" / "starts" / "zarr.json"
        spec, count = self._index or self._own_index(path)
        if count > self.head - self.base:
            raise FormatError(
                f"{path}: expected at most {self.head - self.base:,} episodes, found {count:,}"
            )
        if (spec.row_shape, spec.dtype, spec.is_raw) != ((), np.dtype("int64"), True):
            raise FormatError(f"{path}: expected raw int64, found {spec}")
        # Piece by piece: what is in the first is known before there is memory for the rest.
        parts = [np.array([self.base - 1])]
        for first in range(0, count, _PIECE_ROWS):
            part = chunk_files.read_rows(self, spec, first, min(first + _PIECE_ROWS, count))
            known = np.append(parts[-1][-1:], part)
            if not np.all(known[1:] > known[:-1]) or part[-1] >= self.head:
                raise CorruptStoreError(
                    f"{path.parent}: expected ascending rows in [{self.base:,}, {self.head:,}); "
                    f"run `mmreplay verify`"
                )
            parts.append(part)
        out: Ids = np.concatenate(parts)[1:]
        return out

    def _own_index(self, path: AnyPath) -> tuple[layout.ArraySpec, int]:
        try:
            data = checked_reads.read_bytes(path, layout.MAX_METADATA_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FormatError(f"{path}: missing; a closed lane has its index") from error
        return parse.parse_array(data, layout.index_spec().path, str(path))


_KINDS = {
    "lanes": "a store of lanes",
    "vector": "a lane of many environments",
    "log": "a log of a lane of many environments",
}
