"""One lane of a packed store: what it is made from, its documents, and what stands beside its rows.

Invariant: a lane is read as of one moment. One that is not closed is copied first, by hard links.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.format import layout
from mmreplay.format.consolidated import Documents, documents_of, documents_of_log
from mmreplay.format.layout import STARTS, TICKS, ArraySpec
from mmreplay.ids import ROW_MASK, Ids
from mmreplay.maintenance.chosen_episodes import Choice
from mmreplay.maintenance.copy_lane import KEPT, copy_side_data
from mmreplay.maintenance.packed_layout import Logs
from mmreplay.maintenance.packed_log import write_documents
from mmreplay.maintenance.packed_rows import ChosenRows, ChosenSteps, Rows, StoredRows, check_file
from mmreplay.maintenance.progress import ByteCount
from mmreplay.maintenance.snapshot import copy_now
from mmreplay.reading.joined_lanes import AnyReader, open_lane
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage import chunk_files, priority_column
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane

__all__ = ["PackedLane"]


class PackedLane:
    """A lane of a source, and what becomes of it.

    A closed one is read where it is; of any other one a closed copy is made at `spare`, which
    shares its files where it can. `number` is its place among all.

    Attributes:
        reader: of closed logs.
        choice: the episodes that are wanted; None for all rows.
    """

    def __init__(self, path: AnyPath, number: int, spare: AnyPath) -> None:
        self.reader: AnyReader = open_lane(path, number)
        self.choice: Choice | None = None
        # Attributes of the new lane; of each of its logs these, and the arrays and their rows.
        self._own: dict[str, Any] = {}
        self._written: dict[str, tuple[dict[str, Any], list[tuple[ArraySpec, int]]]] = {}
        self._is_own = not self.reader.is_closed
        if self._is_own:
            copy_now(path, spare, ByteCount(None, lambda: 0))
            self.reader = open_lane(spare, number)

    @property
    def becomes_rows(self) -> bool:
        """Whether the new lane is one of one environment."""
        return self.choice is not None or isinstance(self.reader, LaneReader)

    def is_replaced(self) -> bool:
        """Whether the source is another by now than the one that was read."""
        return not self._is_own and self.reader.replaced()

    def rows(self) -> dict[str, Rows]:
        """The rows of the new lane, by log."""
        reader, choice = self.reader, self.choice
        if choice is not None:
            ids, lengths = choice["id"] & ROW_MASK, choice["length"].astype(np.int64)
            if isinstance(reader, VectorReader):
                return {"": ChosenSteps(reader, _numbers(reader, ids), ids, lengths)}
            return {"": ChosenRows(reader, ids, lengths + 1)}
        return {name: StoredRows(log) for name, log in _logs(reader).items()}

    def checks(self, rows: Mapping[str, Rows], specs: Logs) -> Iterator[Callable[[], None]]:
        """Calls that compare raw chunk files with their checksums: those not copied as they are."""
        return (
            functools.partial(check_file, log, spec, chunk)
            for name, log in _logs(self.reader).items()
            for path, spec in log.specs.items()
            if spec.is_raw and (self.choice is not None or not rows[name].stored(specs[name][path]))
            for chunk in range(log.base // spec.chunk_rows, -(-log.head // spec.chunk_rows))
        )

    def write_documents(
        self,
        target: AnyPath,
        rows: Mapping[str, Rows],
        specs: Logs,
        *,
        name: str | None,
        generator: bool,
    ) -> None:
        """Make the directory of the new lane, with every zarr.json and the index of its episodes.

        `generator` says whether a buffer's random state comes along, of a lane of all rows.
        """
        reader = self.reader
        own = {key: reader.metadata[key] for key in KEPT if key in reader.metadata}
        own |= {"format": layout.FORMAT, "uuid": uuid.uuid4().hex}
        own |= {"schema": reader.schema.to_json()}
        own |= {} if name is None else {"name": name}
        if self.becomes_rows:
            state = self._state(reader.log, rows[""], generator=generator)
            self._own, starts = {**own, "kind": "lane", **state}, self._starts()
            index = layout.index_spec(len(starts)), len(starts)
            arrays = write_documents(target, self._own, specs[""], rows[""], index)
            self._written[""] = self._own, arrays
            build_lane.write_index(target, starts, durable=False)
            return
        for log, of in _logs(reader).items():
            state = self._state(of, rows[log], generator=generator)
            of_log = {"format": layout.FORMAT, "kind": "log", "uuid": own["uuid"], **state}
            arrays = write_documents(target / log, of_log, specs[log], rows[log])
            self._written[log] = of_log, arrays
        self._own = own | {"kind": "vector", "width": reader.width}

    def _state(self, log: LogReader, rows: Rows, *, generator: bool) -> dict[str, Any]:
        """The attributes of a closed log of these rows."""
        first = log.metadata["first"] if self.choice is None else 0
        out = {"rows": rows.head, "first": first, "closed": True}
        if generator and self.choice is None and "generator" in log.metadata:
            out["generator"] = log.metadata["generator"]
        return out

    def _starts(self) -> Ids:
        """The rows of the new lane of one environment in which an episode begins."""
        if self.choice is None and isinstance(self.reader, LaneReader):
            return self.reader.starts()
        lengths = () if self.choice is None else self.choice["length"]
        n_rows = np.asarray(lengths, np.int64) + 1
        out: Ids = np.cumsum(n_rows) - n_rows
        return out

    def finish(self, target: AnyPath) -> None:
        """Copy the priorities, if it has all rows, and write its own zarr.json, with all others."""
        reader = self.reader
        width = reader.width if isinstance(reader, VectorReader) else None
        name = "" if width is None else TICKS
        if self.choice is None:
            log = target / name
            copy_side_data(reader.log, log, {"priorities"}, width)
            self._written[name][1].extend(priority_column.finish(log, reader.head, width))
        documents: Documents = {}
        for name, (own, arrays) in self._written.items():
            below = documents_of(arrays)
            documents |= documents_of_log(name, own, below) if name else below
        build_lane.write_metadata(target, self._own, documents, durable=False)


def _logs(reader: AnyReader) -> dict[str, LogReader]:
    if isinstance(reader, VectorReader):
        return {STARTS: reader.starts, TICKS: reader.ticks}
    return {"": reader}


def _numbers(reader: VectorReader, cells: Ids) -> Ids:
    """The episodes, as rows in the log of starts, that some first steps belong to."""
    spec: ArraySpec = reader.ticks.specs["episode"]
    out = np.empty(cells.size, np.int64)
    ticks, envs = np.divmod(cells, reader.width)
    order = np.argsort(ticks, kind="stable")
    bounds = np.flatnonzero(np.diff(ticks[order], prepend=-1, append=-1))
    for first, stop in itertools.pairwise(bounds.tolist()):
        here = order[first:stop]
        tick = int(ticks[here[0]])
        row = chunk_files.read_rows(reader.ticks, spec, tick, tick + 1)[0]
        out[here] = row[envs[here]]
    return out
