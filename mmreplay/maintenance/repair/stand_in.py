"""A stand-in for a lane whose documents are damaged: its files, with documents written again.

Invariant: the lane itself is only read; the stand-in shares its chunk files, and is only read too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.copy_lane import copy_priorities
from mmreplay.maintenance.repair import layouts
from mmreplay.maintenance.repair.attributes import Attributes, read_attributes
from mmreplay.maintenance.repair.extent import Extent, durable_head, find_extent, find_uuid
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files, tail_file
from mmreplay.storage.checkpoint import PAGE_BYTES, CheckpointFile
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath

_UNSURE = (
    "zarr.json does not match its crc32c: capacity, padding and env are kept as they stand there, "
    "and may not be what was written"
)
_UNKNOWN_HEAD = (
    ".live cannot be read whole, so nothing tells how many rows there were; kept are those of "
    "the last flush or close that is known, and more may be lost than are counted"
)

_LOST_PRIORITIES = (
    "priorities: nothing tells any more how they are laid out; they are lost, and each transition "
    "counts as a new one"
)


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What a stand-in cannot tell of the lane that it stands for.

    Attributes:
        lost: rows past its last one that were committed.
        untrusted: rows past its last one that a state page speaks of which is not trusted.
        known: whether there were no more rows than these.
        notes: what is not what it was, or may not be, a sentence each.
    """

    lost: int = 0
    untrusted: int = 0
    known: bool = True
    notes: tuple[str, ...] = ()


def stand_in(
    lane: AnyPath,
    target: AnyPath,
    root: Mapping[str, Any] | None,
    *,
    trust_first: bool,
    trust_name: bool,
) -> Uncertainty:
    """Put a lane together at `target` that can be read, from what is known of the damaged one.

    `trust_first` and `trust_name`: whether the first row that its zarr.json names, and its name,
    may be right. Raises CorruptStoreError if it lacks something that nothing else tells.
    """
    old = read_attributes(lane)
    documents = layouts.read_documents(lane)
    copied = layouts.copied_documents(lane)
    schema = layouts.find_schema((old.own, root), copied | documents, lane, sure=old.sure)
    specs = layouts.find_specs(lane, schema, documents, copied, root)
    store = find_uuid(lane, old.own)
    extent = find_extent(lane, old, documents, specs, store)
    chunks = {path: layouts.kept_files(lane, spec) for path, spec in specs.items()}
    first = _first(old, extent, specs, chunks, trust_first=trust_first)
    new = new_attributes(old, root, schema, store)
    n_kept, capacity = extent.head - first, new["capacity"]
    if first and capacity is None:
        new["capacity"] = max(n_kept, 1)
    elif capacity is not None and old.own is not None and not old.sure:
        new["capacity"] = max(capacity, n_kept)  # a damaged one takes no row away
    if not trust_name:
        new.pop("name", None)
    notes = [*attribute_notes(old, new, extent, has_root=root is not None)]
    notes += make_log(lane, target, new, specs, extent, first, layout.index_spec())
    return Uncertainty(extent.lost, extent.untrusted, extent.known, tuple(notes))


def make_log(
    log: AnyPath,
    target: AnyPath,
    attributes: Mapping[str, Any],
    specs: layouts.Specs,
    extent: Extent,
    first: int,
    *more: ArraySpec,
    width: int | None = None,
) -> list[str]:
    """Put a log together at `target`: its documents and ``.live`` written again, its files shared.

    `attributes` are its own but for rows, first and closed, `first` is the oldest row that may be
    sampled, `more` are arrays that get no rows, `width` is that of ticks. Returns what cannot be
    taken along, a sentence each.
    """
    closed, store = extent.closed, attributes["uuid"]
    rows = extent.head if closed else 0
    own = {**attributes, "rows": rows, "first": first if closed else 0, "closed": closed}
    base = max(first - layout.context_rows(width), 0)
    arrays = [(spec, rows) for spec in specs.values()]
    arrays += [
        (layout.checksum_spec(path), -(-rows // spec.chunk_rows)) for path, spec in specs.items()
    ]
    arrays += [(spec, 0) for spec in more]  # made of the rows again, when they are copied
    for spec, count in arrays:
        durable_writes.make_directory(target / spec.path)
        durable_writes.write_file(
            target / spec.path / "zarr.json", layout.array_json(spec, count), durable=False
        )
    for group in layout.group_paths([spec.path for spec, _ in arrays]):
        durable_writes.write_file(target / group / "zarr.json", layout.group_json(), durable=False)
    durable_writes.write_file(target / "zarr.json", layout.group_json(own), durable=False)
    # As far as a writer might go back, and write again: there the stand-in has files of its own.
    durable = rows if closed else durable_head(log, store)
    for path, spec in specs.items():
        sums = layout.checksum_spec(path)
        for chunk in layouts.kept_files(log, spec):
            start, stop = chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows
            if not closed or (start < rows and stop > base):
                file = chunk_files.chunk_path(log, spec, chunk)
                changes = spec.is_raw and not closed and stop >= durable
                _take(file, chunk_files.chunk_path(target, spec, chunk), copy=changes)
        for chunk in layouts.kept_files(log, sums):
            _take(
                chunk_files.chunk_path(log, sums, chunk),
                chunk_files.chunk_path(target, sums, chunk),
            )
    if not closed:
        _build_live(log, target, store, specs, extent)
    try:
        copy_priorities(log, target, closed=closed, width=width)
    except (FormatError, CorruptStoreError):  # damaged, they cost no row
        return [_LOST_PRIORITIES]
    return []


def attribute_notes(
    old: Attributes, new: Mapping[str, Any], extent: Extent, *, has_root: bool
) -> Iterator[str]:
    """What became of attributes that were damaged, and of what ``.live`` would have told."""
    if old.own is None:
        end = "env as those of the store" if has_root else "nothing else is set"
        # Of a lane that is open it is in .live, of one of many environments beside its ticks.
        state = (
            ", name and random state" if extent.closed and new["kind"] == "lane" else " and name"
        )
        yield (
            f"zarr.json cannot be read: capacity, padding, env{state} of the lane "
            f"are lost; now capacity is {new['capacity']}, padding "
            f"{new['padding']!r}, and {end}"
        )
    elif not old.sure:
        yield _UNSURE
    if not extent.known:
        yield _UNKNOWN_HEAD


def _first(
    old: Attributes,
    extent: Extent,
    specs: layouts.Specs,
    chunks: Mapping[str, list[int]],
    *,
    trust_first: bool,
) -> int:
    """The oldest row that may be sampled; 0 if none was evicted."""
    if not extent.closed:
        return min(extent.base + layout.CONTEXT_ROWS, extent.head) if extent.base else 0
    own = old.own
    if own is not None and (trust_first or old.sure) and own["first"] <= extent.head:
        return int(own["first"])
    least = max(
        (kept[0] * specs[path].chunk_rows for path, kept in chunks.items() if kept), default=0
    )
    return min(least + layout.CONTEXT_ROWS, extent.head) if least else 0


def new_attributes(
    old: Attributes, root: Mapping[str, Any] | None, schema: Schema, store: str
) -> dict[str, Any]:
    """attributes.mmreplay of the stand-in, without those that follow from its rows."""
    given = old.own or root or {}
    names = ("env", "versions", "name", "generator")
    kept = {name: given[name] for name in names if name in given}
    return {
        "format": layout.FORMAT,
        "kind": "lane",
        "uuid": store,
        "schema": schema.to_json(),
        "capacity": given.get("capacity"),
        "padding": given.get("padding", "reset"),
        "env": {},
        "versions": {},
        **kept,
    }


def _take(source: AnyPath, target: AnyPath, *, copy: bool = False) -> None:
    """Share a file, or copy it; where there is none, verify finds it missing in the stand-in."""
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        if copy:
            durable_writes.copy_file(source, target)
        else:
            durable_writes.share_file(source, target)


def _build_live(
    lane: AnyPath, target: AnyPath, store: str, specs: layouts.Specs, extent: Extent
) -> None:
    """``.live`` of a lane that was not closed: its tails, and a checkpoint of what is known."""
    old, new = lane / ".live", target / ".live"
    durable_writes.make_directory(new)
    has_live = old.is_dir() and not old.is_symlink()
    if has_live:
        _take(old / "generator", new / "generator")
    for spec in specs.values():
        if not spec.is_raw:
            tail, size = tail_file.tail_path(target, spec), 2 * spec.chunk_bytes
            try:
                if not has_live:
                    raise FileNotFoundError
                durable_writes.share_file(tail_file.tail_path(lane, spec), tail, size)
            except (FileNotFoundError, CorruptStoreError):
                durable_writes.allocate(tail, size)  # no row is in it
    durable_writes.write_file(new / "state", bytes(PAGE_BYTES), durable=False, overwritten=True)
    CheckpointFile.create(
        new / "checkpoint",
        store,
        head=extent.head,
        tail_start=extent.tail_start,
        base=extent.base,
    )
