"""A stand-in for a lane of many environments whose documents, or ``.live``, are lost or damaged.

Invariant: the lane is only read. Nothing is made up: what stood in a document is known from others
and the sizes of chunk files, and of each log only rows count that were committed.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mmreplay import episode_index
from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format import layout
from mmreplay.format.columns import Column, start_columns, tick_columns
from mmreplay.format.layout import LOGS, STARTS, TICKS, ArraySpec
from mmreplay.ids import Ids
from mmreplay.maintenance.commit_records import newest_problem, read_state
from mmreplay.maintenance.repair import layouts
from mmreplay.maintenance.repair.attributes import (
    Attributes,
    parse_attributes,
    read_attributes,
)
from mmreplay.maintenance.repair.extent import (
    Extent,
    find_extent,
    find_uuid,
    has_tail,
    oldest_row,
)
from mmreplay.maintenance.repair.layouts import Documents, Specs
from mmreplay.maintenance.repair.stand_in import (
    Uncertainty,
    attribute_notes,
    make_log,
    new_attributes,
)
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files, tail_file
from mmreplay.storage.checkpoint import may_be_rows
from mmreplay.storage.lane_metadata import read_root
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

_LOST_STARTS = (
    "starts: the newest ones are lost with what was in .live; ticks are kept up to the first of an "
    "episode that begins there"
)


def stand_in_vector(lane: AnyPath, target: AnyPath, root: Mapping[str, Any] | None) -> Uncertainty:
    """Put a lane together at `target` that can be read, from what is known of the damaged one.

    `root` is the attributes.mmreplay of the store of many lanes, if it is one. Raises
    CorruptStoreError or FormatError if the lane lacks something that nothing else tells, such as
    the layout of a compressed array.
    """
    checked_reads.check_directories(lane, *LOGS)
    old = read_attributes(lane, "vector")
    logs = {name: _log_attributes(lane, name) for name in LOGS}
    store = _find_uuid(lane, old, logs)
    schema, width = _find_schema(lane, old, root)
    columns = {TICKS: tick_columns(schema, width), STARTS: start_columns(schema)}
    documents, specs = dict[str, Documents](), dict[str, Specs]()
    for name, wanted in columns.items():
        own = _fitting(lane / name, wanted, layouts.read_documents(lane / name, wanted))
        copied = _fitting(lane / name, wanted, layouts.copied_documents(lane, name))
        documents[name] = own or copied
        specs[name] = _find_specs(lane / name, wanted, copied | own)
    extents = _find_extents(lane, old, logs, documents, specs, store)
    # What a damaged capacity says takes no row away.
    capacity = old.own["capacity"] if old.own is not None else (root or {}).get("capacity")
    firsts = {
        name: _first(lane / name, extents[name], logs[name], specs[name], capacity, of)
        for name, of in ((TICKS, width), (STARTS, None))
    }
    new = new_attributes(old, root, schema, store) | {"kind": "vector", "width": width}
    ticks, kept = extents[TICKS], (extents[TICKS].head - firsts[TICKS]) * width
    if capacity is None and firsts[TICKS]:
        new["capacity"] = max(kept, 1)
    elif capacity is not None and old.own is not None and not old.sure:
        new["capacity"] = max(capacity, kept)
    notes = [*attribute_notes(old, new, ticks, has_root=root is not None)]
    durable_writes.make_directory(target)
    durable_writes.write_file(target / "zarr.json", layout.group_json(new), durable=False)
    for name in LOGS:
        about = {**(logs[name].own or {}), "format": layout.FORMAT, "kind": "log", "uuid": store}
        of = width if name == TICKS else None
        log, extent, first = lane / name, extents[name], firsts[name]
        notes += make_log(log, target / name, about, specs[name], extent, first, width=of)
    if extents[STARTS].lost or not extents[STARTS].known:
        notes.append(_LOST_STARTS)
    if ticks.closed and logs[TICKS].own is None:
        notes.append(f"{TICKS}/zarr.json is made again, without the sampler's random state")
    return Uncertainty(ticks.lost, ticks.untrusted, ticks.known, tuple(notes))


def share_tree(source: AnyPath, target: AnyPath) -> None:
    """Give each file a second name below `target`; raises CorruptStoreError for what is none."""
    durable_writes.make_directory(target)
    for name in checked_reads.names(source):
        path = source / name
        if path.is_dir() and not path.is_symlink():
            share_tree(path, target / name)
        else:
            durable_writes.share_file(path, target / name)


# ---------------------------------------------------------------- attributes


def _log_attributes(lane: AnyPath, name: str) -> Attributes:
    """Those of a log; of one that is closed also from the copy in the lane's own zarr.json."""
    found = read_attributes(lane / name, "log")
    if found.own is not None or (lane / name / ".live").exists():
        return found
    with contextlib.suppress(MmreplayError, OSError):
        copy = read_root(lane).copy
        document = None if copy is None else copy.documents().get(name)
        if isinstance(document, dict):
            copied = parse_attributes(layout.dump(document), "log")
            return copied if copied.sure else found
    return found


def _find_uuid(lane: AnyPath, old: Attributes, logs: Mapping[str, Attributes]) -> str:
    """The lane's uuid; raises CorruptStoreError if a log is of another lane."""
    known = [one for one in (old, *logs.values()) if one.own is not None]
    known.sort(key=lambda one: not one.sure)
    store = find_uuid(lane / TICKS, known[0].own if known else None)
    for name, one in logs.items():
        if one.own is not None and one.sure and one.own["uuid"] != store:
            raise CorruptStoreError(
                f"{lane / name}: expected a log of this lane, uuid {store}; found one of another "
                f"lane, uuid {one.own['uuid']}"
            )
    return store


def _find_schema(
    lane: AnyPath, old: Attributes, root: Mapping[str, Any] | None
) -> tuple[Schema, int]:
    """What a step of one environment holds, and how many environments there are."""
    found = layouts.read_documents(lane / TICKS)
    widths = collections.Counter(spec.row_shape[0] for spec, _ in found.values() if spec.row_shape)
    if old.own is None and not widths:
        raise CorruptStoreError(
            f"{lane}: neither its zarr.json nor those of its arrays say what a row holds"
        )
    width = old.own["width"] if old.own is not None else 0
    if widths and not old.sure:
        width = widths.most_common(1)[0][0]
    cells = {
        path: (spec.cells(width), rows)
        for path, (spec, rows) in found.items()
        if spec.row_shape[:1] == (width,)
    }
    return layouts.find_schema((old.own, root), cells, lane, sure=old.sure, log=TICKS), width


# ---------------------------------------------------------------- layouts


def _fitting(log: AnyPath, columns: Mapping[str, Column], documents: Documents) -> Documents:
    """Those documents that neither the schema nor the chunk files contradict."""
    return {
        path: documents[path]
        for path, one in columns.items()
        if path in documents
        and (documents[path][0].row_shape, documents[path][0].dtype) == (one.row_shape, one.dtype)
        and not layout.width_problem(documents[path][0], one.width)
        and layouts.fits(log, documents[path][0])
    }


def _find_specs(log: AnyPath, columns: Mapping[str, Column], known: Documents) -> Specs:
    """How each array is laid out; raises CorruptStoreError if nothing tells."""
    specs = {
        path: known[path][0] if path in known else _lost_spec(log, path, one)
        for path, one in columns.items()
    }
    for path, text in layout.odd_lengths(specs):
        raise CorruptStoreError(f"{log / path}: {text}")
    return specs


def _lost_spec(log: AnyPath, path: str, column: Column) -> ArraySpec:
    """The layout of an array whose document is lost, by its files; CorruptStoreError if unknown."""
    spec = ArraySpec(path, column.row_shape, column.dtype, 1)
    is_large = spec.row_bytes // column.width >= layout.LARGE_FRAME_BYTES
    if path.startswith("frames") and column.width > 1 and is_large:
        what = "tick by tick or environment by environment"
        raise layouts.lost_layout(log, path, what)
    return layouts.from_file_sizes(log, spec)


# ---------------------------------------------------------------- rows


def _find_extents(
    lane: AnyPath,
    old: Attributes,
    logs: Mapping[str, Attributes],
    documents: Mapping[str, Documents],
    specs: Mapping[str, Specs],
    store: str,
) -> dict[str, Extent]:
    """How far each log was written; raises CorruptStoreError if nothing tells of the ticks."""
    # Whether rows may have been evicted is all that it is needed for.
    capacity = old.own["capacity"] if old.own is not None and old.sure else 1

    def find(name: str, *, trust: bool = True) -> Extent:
        own = logs[name].own
        about = Attributes(own and {**own, "capacity": capacity}, logs[name].sure)
        return find_extent(lane / name, about, documents[name], specs[name], store, trust=trust)

    # The newest ticks may name starts that are lost, as when the machine went down.
    ticks = find(TICKS, trust=not _is_old(lane / STARTS))
    starts: Extent | None
    try:
        starts = find(STARTS)
    except CorruptStoreError:
        starts = _reached(lane, specs, ticks, None)
        if starts is None:
            raise
    if not starts.known:
        starts = _reached(lane, specs, ticks, starts) or starts
    return {TICKS: ticks, STARTS: starts}


def _is_old(log: AnyPath) -> bool:
    """Whether a log has a state page, and that is not trusted: the ticks' is not then either."""
    state = read_state(log)
    return state is not None and state.is_written() and not state.is_of_this_boot()


def _reached(
    lane: AnyPath, specs: Mapping[str, Specs], ticks: Extent, starts: Extent | None
) -> Extent | None:
    """How far the starts were written, by ticks that were: each step has its start before it.

    `starts` is what else is known. None if that tells more, or the frames are lost with their tail.
    """
    log, of_starts = lane / STARTS, specs[STARTS]
    compressed = [spec for spec in of_starts.values() if not spec.is_raw]
    if compressed and (starts is None or not all(has_tail(log, spec) for spec in compressed)):
        return None
    head = 0 if starts is None else starts.head
    files = layouts.kept_files(log, of_starts["env"])
    most = (files[-1] + 1) * of_starts["env"].chunk_rows if files else 0
    for episodes in _episodes(lane / TICKS, specs[TICKS]["episode"], ticks):
        head = max(head, int(episodes[episodes < most].max(initial=-1)) + 1)
    if newest_problem(log, of_starts, head):
        return None
    if starts is not None:
        is_held = not tail_file.tail_problem(of_starts, head, starts.tail_start)
        return replace(starts, head=head, known=True) if is_held else None
    base = oldest_row(log, of_starts)
    return Extent(closed=False, head=head, base=base) if may_be_rows(base, head) else None


def _episodes(log: AnyPath, spec: ArraySpec, ticks: Extent) -> Iterator[Ids]:
    """`episode` of the ticks that there are, but for those that cannot be read."""
    for chunk in layouts.kept_files(log, spec):
        start = max(chunk * spec.chunk_rows, ticks.base)
        stop = min((chunk + 1) * spec.chunk_rows, ticks.head)
        with contextlib.suppress(MmreplayError, OSError):
            if start < stop:
                yield chunk_files.read_rows(_Files(log), spec, start, stop)


def _first(
    log: AnyPath,
    extent: Extent,
    attributes: Attributes,
    specs: Specs,
    capacity: int | None,
    width: int | None,
) -> int:
    """The first row: by the documents, or by the chunk files that there are and the capacity."""
    context = layout.context_rows(width)
    if not extent.closed:
        return min(extent.base + context, extent.head) if extent.base else 0
    if attributes.own is not None and attributes.sure and attributes.own["first"] <= extent.head:
        return int(attributes.own["first"])
    base = oldest_row(log, specs)
    if capacity is None or width is None:
        return min(base + context, extent.head) if base else 0

    def counts(start: int, stop: int) -> Ids:
        return chunk_files.read_rows(_Files(log), specs["count"], start, stop)

    floor = episode_index.floor_tick(base)
    return episode_index.first_tick(counts, floor, extent.head, capacity)


class _Files:
    """The chunk files of a log that cannot be opened; see `chunk_files.ChunkFiles`."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path

    def missing(self, path: AnyPath, stop: int) -> Exception:
        return CorruptStoreError(f"{path}: missing; it holds rows up to {stop:,}")

    def check_in_place(self) -> None:
        """Nobody exchanges it: it is locked."""
