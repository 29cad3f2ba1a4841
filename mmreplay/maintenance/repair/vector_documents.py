"""A stand-in for a closed lane of many environments of which documents are lost or damaged.

Invariant: the lane is only read. A document is made again only where all that stood in it is known
from the lane's schema, the other arrays and the sizes of chunk files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from mmreplay import episode_index
from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format import layout, parse
from mmreplay.format.columns import Column, start_columns, tick_columns
from mmreplay.format.layout import LOGS, STARTS, TICKS, ArraySpec
from mmreplay.ids import Ids
from mmreplay.maintenance.repair import layouts
from mmreplay.maintenance.repair.layouts import Documents, Specs
from mmreplay.storage import chunk_files
from mmreplay.storage.lane_metadata import read_metadata, read_root
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath


def was_closed(lane: AnyPath) -> bool:
    """Whether nothing says that a lane was left open; CorruptStoreError if a log is a link."""
    checked_reads.check_directories(lane, *LOGS)
    abouts = [_log_document(lane / name) for name in LOGS]
    is_open = any(about is not None and not about["closed"] for about in abouts)
    return not is_open and not any((lane / name / ".live").exists() for name in LOGS)


def make_documents(lane: AnyPath, target: AnyPath) -> list[str]:
    """Put a lane together at `target` from the files of a closed one, its documents made again.

    Returns what is not what it was, a sentence each. Raises CorruptStoreError or FormatError if
    something is lost that nothing else tells, such as the layout of a compressed array.
    """
    own = read_metadata(lane)
    schema = parse.schema_from_json(own.get("schema"), str(lane / "zarr.json"))
    width: int | None = own.get("width")
    if width is None:
        raise CorruptStoreError(f"{lane / 'zarr.json'}: this is no lane of many environments")
    columns = {TICKS: tick_columns(schema, width), STARTS: start_columns(schema)}
    made = dict[AnyPath, bytes]()
    notes = list[str]()
    for name, wanted in columns.items():
        log = lane / name
        documents = _fitting(log, wanted, _read_documents(log, wanted))
        copied = _fitting(log, wanted, layouts.copied_documents(lane, name))
        known = copied | documents
        specs = {
            path: known[path][0] if path in known else _lost_spec(log, path, one)
            for path, one in wanted.items()
        }
        rows = _rows(log, documents or copied)
        for path in wanted.keys() - documents.keys():
            made[target / name / path / "zarr.json"] = layout.array_json(specs[path], rows)
        if _log_document(log) is None:
            first = _first(log, specs, rows, own["capacity"], width if name == TICKS else None)
            about = {"format": layout.FORMAT, "kind": "log", "uuid": own["uuid"]}
            about |= {"rows": rows, "first": first, "closed": True}
            whole = _copied_attributes(lane, name, about)
            made[target / name / "zarr.json"] = layout.group_json(whole or about)
            if name == TICKS and whole is None:
                notes.append(f"{TICKS}/zarr.json is made again, without the sampler's random state")
    share_tree(lane, target)
    for document, data in made.items():
        durable_writes.write_file(document, data, durable=False)
    return notes


def share_tree(source: AnyPath, target: AnyPath) -> None:
    """Give each file a second name below `target`; raises CorruptStoreError for what is none."""
    durable_writes.make_directory(target)
    for name in checked_reads.names(source):
        path = source / name
        if path.is_dir() and not path.is_symlink():
            share_tree(path, target / name)
        else:
            durable_writes.share_file(path, target / name)


def _read_documents(log: AnyPath, columns: Mapping[str, Column]) -> Documents:
    """The arrays of a log whose zarr.json can be read, and their rows."""
    out: Documents = {}
    for path in columns:
        with contextlib.suppress(MmreplayError, OSError):
            checked_reads.check_directories(log, path)
            where = log / path / "zarr.json"
            data = checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES)
            out[path] = parse.parse_array(data, path, str(where))
    return out


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


def _lost_spec(log: AnyPath, path: str, column: Column) -> ArraySpec:
    """The layout of an array whose document is lost, by its files; CorruptStoreError if unknown."""
    spec = ArraySpec(path, column.row_shape, column.dtype, 1)
    is_large = spec.row_bytes // column.width >= layout.LARGE_FRAME_BYTES
    if path.startswith("frames") and column.width > 1 and is_large:
        what = "tick by tick or environment by environment"
        raise layouts.lost_layout(log, path, what)
    return layouts.from_file_sizes(log, spec)


def _log_document(log: AnyPath) -> dict[str, Any] | None:
    """attributes.mmreplay of a log; None if they cannot be read."""
    with contextlib.suppress(MmreplayError):
        return read_metadata(log)
    return None


def _copied_attributes(lane: AnyPath, name: str, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """attributes.mmreplay of a log, as the lane's own zarr.json has them; None if not for sure."""
    with contextlib.suppress(MmreplayError):
        copy = read_root(lane).copy
        document = None if copy is None else copy.documents().get(name)
        if isinstance(document, dict):
            own = parse.root_attributes(document, "")
            return own if own.items() >= known.items() else None
    return None


def _rows(log: AnyPath, documents: Documents) -> int:
    """The rows of a closed log, by all that tells."""
    about = _log_document(log)
    counts = {rows for _, rows in documents.values()}
    counts |= set() if about is None else {int(about["rows"])}
    if len(counts) != 1:
        raise CorruptStoreError(f"{log}: its documents disagree on how many rows there are")
    return counts.pop()


def _first(log: AnyPath, specs: Specs, rows: int, capacity: int | None, width: int | None) -> int:
    """The first row, by the chunk files that are there, and of ticks by the capacity."""
    kept = [(spec, layouts.kept_files(log, spec)[:1]) for spec in specs.values()]
    base = max((chunks[0] * spec.chunk_rows for spec, chunks in kept if chunks), default=0)
    if capacity is None or (width is None and not base):
        return 0
    if width is None:
        return min(base + layout.context_rows(None), rows)

    def counts(start: int, stop: int) -> Ids:
        return chunk_files.read_rows(_Files(log), specs["count"], start, stop)

    return episode_index.first_tick(counts, episode_index.floor_tick(base), rows, capacity)


class _Files:
    """The chunk files of a log that cannot be opened; see `chunk_files.ChunkFiles`."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path

    def missing(self, path: AnyPath, stop: int) -> Exception:
        return CorruptStoreError(f"{path}: missing; it holds rows up to {stop:,}")

    def check_in_place(self) -> None:
        """Nobody exchanges it: it is locked."""
