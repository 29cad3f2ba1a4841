"""`add_column` and `drop_column`: derived columns of stores that nobody is writing.

Invariant: a column is built beside its place, and is whole and durable before any zarr.json names
it; that of a store of lanes is the last to name it, and the first to forget it. No row is changed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mmreplay.errors import LockedError, SchemaError
from mmreplay.format import layout, parse, plan
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.column_values import Blocks, Source, blocks_of
from mmreplay.maintenance.copy_lane import close_lane, lock_all
from mmreplay.reading.lane_reader import Entries, LaneReader
from mmreplay.reading.store import Store
from mmreplay.schema import Field, Schema
from mmreplay.storage.changing_column import end_values, lock_column
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.lane_metadata import (
    hold_store,
    lane_paths,
    read_document,
    read_metadata,
    store_around,
)
from mmreplay.storage.raw_column import RawColumn
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane

_FOLDERS = "derived", "checksums/derived"


def add_column(
    path: str | os.PathLike[str],
    name: str,
    source: Source,
    field: Field | None = None,
    replace: bool = False,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Add a derived column to a store that nobody is writing.

    `extras` of batches and trajectories have it from the next opening on. Transitions without a
    value have 0. If it is interrupted, the store is as before: call it again.

    Args:
        path: the store; one that a crash left open is closed first.
        name: of the column; no field of a `Batch` and no extra column has it.
        source: an array (n, *field shape) in the order of `Store.ids`; a function of a trajectory
            of T steps that returns (T, *field shape), or its name, ``module:function``; or an
            iterator over pairs of ids, of any shape, and values. Of an id that comes twice the last
            value counts, and those of -1 are skipped.
        field: shape, dtype and rows per chunk; None: shape and dtype of the first values.
        replace: also if there is a derived column of that name, which an interruption may remove.
        progress: called with the number of values stored, and of transitions.

    Returns the number of values stored.

    Raises:
        StoreNotFoundError, FormatError, CorruptStoreError: there is no store, or it is damaged.
        SchemaError: a name that is taken or not possible; values that do not fit; a path within a
            store.
        InvalidIdError: an id that is not a transition.
        LockedError: a process writes the store, or updates the column to be replaced.
        DiskFullError, FailedStoreError: no room, or a write failed.
    """
    with _unwritten(path) as (root, lanes), Store([root]) as store:
        if name in store.schema.derived and not replace:
            raise SchemaError(
                f"{path}: there is a derived column {name!r} already; pass replace=True "
                f"(--replace), or choose another name"
            )
        # Before any value is worked out: a name that is not possible.
        _with(store.schema, {**store.schema.derived, name: field or Field()})
        blocks = blocks_of(store, source)
        if field is None:
            first = next(blocks, None)
            if first is None:
                raise SchemaError(f"{path}: {name}: no value to take the field from: pass field=")
            field = Field(first[1].shape[1:], first[1].dtype)
            blocks = itertools.chain([first], blocks)
        column = _Column(root, store, name, field)
        try:
            n_values = column.fill(blocks, progress)
            _drop(root, lanes, name)
            column.put_in_place()
        finally:
            column.remove()  # what has not got its name
    return n_values


def drop_column(path: str | os.PathLike[str], name: str) -> None:
    """Remove the derived column `name` from a store that nobody is writing.

    Readers that have it open get a SchemaError within a second. A store that a crash left open is
    closed first. SchemaError if there is no such derived column; otherwise raises as `add_column`.
    """
    with _unwritten(path) as (root, lanes):
        if not _drop(root, lanes, name):
            raise SchemaError(
                f"{path}: expected a derived column, of {sorted(_schema(root).derived) or 'none'}; "
                f"found {name!r:.120}"
            )


@contextlib.contextmanager
def _unwritten(path: Any) -> Iterator[tuple[AnyPath, list[AnyPath]]]:
    """A store and its lanes, closed and locked."""
    named = user_paths.absolute_path(path)
    if (above := store_around(named)) is not None:
        raise SchemaError(f"{path}: this is a part of the store {above}; give the path of that")
    root = hold_store(named).root
    lanes = lane_paths(root)
    for lane in lanes:
        if not read_metadata(lane)["closed"]:
            close_lane(lane)
    with contextlib.ExitStack() as held:
        lock_all([root, *lanes], held)
        if lane_paths(root) != lanes or not all(read_metadata(lane)["closed"] for lane in lanes):
            raise LockedError(f"{path}: a writer has just opened it; end its writers first")
        yield root, lanes


def _schema(path: AnyPath) -> Schema:
    return parse.schema_from_json(read_metadata(path).get("schema"), str(path / "zarr.json"))


def _with(old: Schema, derived: Mapping[str, Field]) -> Schema:
    """A schema with other derived columns; SchemaError if they are not possible."""
    given = old.frame, old.action, old.extras, old.reward_dtype
    return Schema.make(*given, episode=old.episode, derived=derived)


def _drop(root: AnyPath, lanes: list[AnyPath], name: str) -> bool:
    """Let no zarr.json name a column, then remove what there is of it; whether there was any."""
    path = f"derived/{name}"
    there = [lane for lane in lanes if (lane / path).is_dir()]
    with contextlib.ExitStack() as held:
        for lane in there:
            held.callback(lock_column(lane, path).release)
        named = [one for one in dict.fromkeys([root, *lanes]) if name in _schema(one).derived]
        for one in named:
            _write(one, path, None)
        for lane in lanes:
            _remove(lane, path)
    return bool(named or there)


def _remove(lane: AnyPath, column: str) -> None:
    """Remove a column of a lane that its zarr.json does not name, and directories without any."""
    for part in (column, f"checksums/{column}"):
        durable_writes.remove_tree(lane / part)
    for folder in _FOLDERS:
        if set(checked_reads.names(lane / folder)) <= {"zarr.json"}:
            durable_writes.remove_tree(lane / folder)
        elif (lane / folder).is_dir():
            durable_writes.sync_directory(lane / folder)
    durable_writes.sync_directory(lane)


def documents_below(lane: AnyPath) -> layout.Documents:
    """The zarr.json files below that of a lane, by path, for the copy in it."""
    out: layout.Documents = {}
    for folder, _, names in checked_reads.walk(lane):
        name = str(folder)[len(str(lane)) + 1 :].replace(os.sep, "/")
        if name and "zarr.json" in names and not name.endswith(".tmp"):
            data = checked_reads.read_bytes(folder / "zarr.json", layout.MAX_METADATA_BYTES)
            out[name] = parse.parse_json(data, str(folder))
    return out


def _write(path: AnyPath, column: str, field: Field | None, spec: ArraySpec | None = None) -> None:
    """Let the zarr.json of a store or lane name a column, or, without a field, forget it.

    `spec` is its array in a further lane of a store.
    """
    where = str(path / "zarr.json")
    document = parse.parse_json(read_document(path), where)
    own = parse.root_attributes(document, where)
    old = parse.schema_from_json(own.get("schema"), where)
    name = column.partition("/")[2]
    derived = {one: of for one, of in old.derived.items() if one != name}
    schema = _with(old, derived if field is None else {**derived, name: field}).to_json()
    if own["kind"] == "lanes":
        lengths = {one: of for one, of in own["layout"].items() if one != column}
        lengths |= {} if spec is None else layout.layout_json({column: spec})
        changed = {**own, "schema": schema, "layout": lengths}
        durable_writes.write_file(path / "zarr.json", layout.group_json(changed))
        return
    gone = {column, f"checksums/{column}", *(() if derived else _FOLDERS)} if field is None else ()
    copy = {one: of for one, of in documents_below(path).items() if one not in gone}
    build_lane.write_metadata(path, own, copy, schema=schema)


class _Column:
    """A new column of all lanes of a store, built beside its place."""

    def __init__(self, root: AnyPath, store: Store, name: str, field: Field) -> None:
        self._root, self._store, self._name, self._field = root, store, name, field
        self._path, self._staged = f"derived/{name}", f"derived/{name}.tmp"
        self._readers = store.live.readers

    def _planned(self, reader: LaneReader | None) -> ArraySpec:
        """The array of a lane; None: of a further one."""
        environments, capacity = None, None
        if reader is not None:
            environments, capacity = reader.environments, reader.metadata["capacity"]
        alone = Schema.make(Field((1,)), Field(), derived={self._name: self._field})
        in_group = self._readers[0].path != self._root
        return plan.plan_lane(alone, environments, capacity, in_group=in_group).rows[self._path]

    def _arrays(self, reader: LaneReader) -> dict[str, tuple[ArraySpec, int]]:
        """The column and its checksums in a lane, and their rows, as they are staged."""
        spec = dataclasses.replace(self._planned(reader), path=self._staged)
        sums, head = layout.checksum_spec(self._staged), reader.rows.head
        return {self._staged: (spec, head), sums.path: (sums, -(-head // spec.chunk_rows))}

    def fill(self, blocks: Blocks, progress: Callable[[int, int], None] | None) -> int:
        """Build it with these values, durably; returns how many there were."""
        self.remove()  # what an interrupted call left
        parts = []
        for reader in self._readers:
            arrays = self._arrays(reader)
            for path in arrays:
                durable_writes.make_directory(reader.path / path)
            reader.rows.specs[self._staged] = arrays[self._staged][0]
            parts.append(Entries(reader.rows, reader.n, has_axis=reader.environments is not None))
        column, n_values, total = RawColumn(parts, self._staged), 0, len(self._store)
        for ids, values in blocks:
            column.put(ids, self._field.coerce_rows(values, ids.shape, self._name))
            n_values += ids.size
            if progress is not None:
                progress(n_values, total)
        for reader in self._readers:
            self._finish(reader.path, self._arrays(reader))
        return n_values

    def _finish(self, lane: AnyPath, arrays: Mapping[str, tuple[ArraySpec, int]]) -> None:
        spec, head = arrays[self._staged]
        end_values(lane, spec, head)
        Checksums(lane, {spec.path: spec}, collections.deque()).complete(spec, head)
        for path, array in arrays.items():
            durable_writes.write_new(lane / path / "zarr.json", layout.array_json(*array))
            durable_writes.sync_tree(lane / path)

    def put_in_place(self) -> None:
        """Give it its name in each lane, and name it in the zarr.json; last in the store's."""
        for reader in self._readers:
            lane = reader.path
            for folder in _FOLDERS:
                if not (lane / folder / "zarr.json").exists():
                    durable_writes.write_file(lane / folder / "zarr.json", layout.group_json())
            for path in (f"checksums/{self._path}", self._path):  # with its checksums first
                durable_writes.rename(lane / f"{path}.tmp", lane / path)
            durable_writes.sync_all(directories=[lane / folder for folder in ("", *_FOLDERS)])
            _write(lane, self._path, self._field)
        if self._readers[0].path != self._root:
            _write(self._root, self._path, self._field, spec=self._planned(None))

    def remove(self) -> None:
        """Remove what was built and does not have its name."""
        for reader in self._readers:
            _remove(reader.path, self._staged)
