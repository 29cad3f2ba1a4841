"""The rows of a lane in a new directory: what snapshots and repairs are made of.

Invariant: no file of the source is changed, now or later: a chunk file gets a second name only if
no writer of the source or of the copy will ever store into it again, all else is copied. Row ids
stay.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, DiskFullError, MmreplayError
from mmreplay.format import compression, layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import Cells, VectorReader
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files, priority_column, shard_column, shard_file, tail_file
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.checksums import damaged, rows_match, stored_checksum
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane, recover
from mmreplay.writing.background import Background
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

KEPT = ("capacity", "padding", "env", "versions", "name")
"""Attributes of a lane that a copy of it has, too."""

SIDE_DATA = frozenset({"generator", "priorities"})
"""Side data of a lane: the random state of the sampler, and the column of priorities."""

Made = Callable[[str, int, int], Iterator[tuple[int, Array]]]
"""Rows [start, stop) of a column that is not copied, as (first row, rows)."""

_STEP_BYTES = 4 << 20


def copy_lane(
    reader: LaneReader,
    target: AnyPath,
    stop: int | None = None,
    *,
    side_data: Collection[str] = SIDE_DATA,
    to_rewrite: Collection[tuple[str, int]] = (),
    wrong_sums: Collection[tuple[str, int]] = (),
    strict: bool = False,
    moved: Callable[[int], None] | None = None,
) -> None:
    """Make a closed lane of the rows below `stop` of one that is closed, live or left by a crash.

    `target` must not exist; it is removed again if this fails. (array, chunk file) in `to_rewrite`
    are shards that are damaged in rows that were evicted, and hold others; in `wrong_sums` those
    whose checksum is damaged, and is computed again. `strict`: a file of a closed lane that has no
    checksum is damage: the copy would have one, and nobody could tell any more. `moved` is called
    with the size of each file, or part of one, that has its place.

    Raises EvictedError if rows went meanwhile, or another session began (try again), and
    CorruptStoreError if a row below `stop` cannot be read.
    """
    own = {name: reader.metadata[name] for name in KEPT if name in reader.metadata}
    try:
        build_lane.build_lane(target, reader.schema, reader.specs, own)
        if not reader.poll():
            raise EvictedError(str(reader.path))
        stop = reader.head if stop is None else stop
        _copy(reader, target, stop, to_rewrite, wrong_sums, moved, strict=strict)
        copy_side_data(reader, target, side_data)
        if reader.replaced():
            raise EvictedError(str(reader.path))
        durable_writes.sync_tree(target)
        # The ordinary way of a lane that was not closed: make the newest row final, seal, sum up,
        # write the index.
        Writer(target, background=Background(0)).close()
    except BaseException:
        durable_writes.remove_tree(target)
        raise


def copy_vector(
    reader: VectorReader,
    target: AnyPath,
    stops: Mapping[str, int] | None = None,
    *,
    side_data: Collection[str] = SIDE_DATA,
    to_rewrite: Mapping[str, Collection[tuple[str, int]]] | None = None,
    wrong_sums: Mapping[str, Collection[tuple[str, int]]] | None = None,
    made: Mapping[str, tuple[Collection[str], Made]] | None = None,
    strict: bool = False,
    moved: Callable[[int], None] | None = None,
) -> None:
    """As `copy_lane`, of a lane of many environments; what is given by log is of its logs' rows.

    `made` has columns that are not read in the source, and where their rows are from. Without
    `stops` the ticks that there are now are copied, and the starts that there are then: each tick's
    episodes have theirs. Raises as `copy_lane`.
    """
    own = {name: reader.metadata[name] for name in KEPT if name in reader.metadata}
    to_rewrite, wrong_sums, made = to_rewrite or {}, wrong_sums or {}, made or {}
    try:
        specs = {layout.STARTS: reader.starts.specs, layout.TICKS: reader.ticks.specs}
        build_lane.build_vector_lane(target, reader.schema, specs, reader.width, own)
        if not reader.poll():  # the ticks first
            raise EvictedError(str(reader.path))
        if stops is None:
            stops = {layout.TICKS: reader.ticks.head, layout.STARTS: reader.starts.head}
        # The starts first: what has two names cannot be evicted, and the ticks that are evicted
        # meanwhile are not those that need them.
        for name, log in ((layout.STARTS, reader.starts), (layout.TICKS, reader.ticks)):
            if not log.poll():
                raise EvictedError(str(reader.path))
            _copy(
                log,
                target / name,
                stops[name],
                to_rewrite.get(name, ()),
                wrong_sums.get(name, ()),
                moved,
                context=layout.context_rows(reader.width if name == layout.TICKS else None),
                made=made.get(name),
                strict=strict,
            )
        ticks = target / layout.TICKS
        copy_side_data(reader.ticks, ticks, side_data, reader.width)
        if reader.replaced():
            raise EvictedError(str(reader.path))
        durable_writes.sync_tree(target)
        VectorWriter(target, background=Background(0)).close()
    except BaseException:
        durable_writes.remove_tree(target)
        raise


def _copy(
    reader: LogReader,
    target: AnyPath,
    stop: int,
    to_rewrite: Collection[tuple[str, int]],
    wrong_sums: Collection[tuple[str, int]],
    moved: Callable[[int], None] | None,
    *,
    context: int = layout.CONTEXT_ROWS,
    made: tuple[Collection[str], Made] | None = None,
    strict: bool,
) -> None:
    """Put the rows below `stop` into a log of none that is open; `context` as of an eviction."""
    moved = moved or (lambda _size: None)
    strict = strict and reader.is_closed
    specs, tail_start = reader.specs, _tail_start(reader, stop)
    settled = _settled(reader, stop)
    whole = {
        path: (settled if spec.is_raw else tail_start) // spec.chunk_rows
        for path, spec in specs.items()
    }
    made_paths, make = made or ((), None)
    whole |= dict.fromkeys(made_paths, 0)
    # The oldest first, and before anything is read: what has two names cannot be evicted.
    base = min(reader.base, stop)
    sums = dict.fromkeys(wrong_sums, 0)  # which closing the copy works out
    for start, path in heapq.merge(
        *(_starts(spec, base, whole[spec.path]) for spec in specs.values())
    ):
        spec, chunk = specs[path], start // specs[path].chunk_rows
        try:
            if (path, chunk) in to_rewrite:
                sums[path, chunk] = _rewrite_shard(reader, spec, chunk, target) or 1
                moved(spec.chunk_bytes)
            else:
                moved(_share(reader, spec, chunk, target))
        except EvictedError:  # a moment ago: without these rows, then
            base = max(base, start + spec.chunk_rows)
    if base and base + context > stop:  # too few are left to be a lane of its own
        raise EvictedError(str(reader.path))
    for path, spec in specs.items():
        shared = range(base // spec.chunk_rows, whole[path])
        _share_sums(reader, spec, shared, target, sums, strict=strict)
        first = max(whole[path] * spec.chunk_rows, base)
        if make is not None and path in made_paths:
            _write_rows(spec, target, make(path, first, stop))
            continue
        for size in _copy_rows(reader, spec, target, first, stop, wrong_sums, strict=strict):
            moved(size)
    store = read_metadata(target)["uuid"]
    checkpoint = target / ".live" / "checkpoint"
    CheckpointFile.create(checkpoint, store, head=stop, tail_start=tail_start, base=base)


def _starts(spec: ArraySpec, base: int, stop: int) -> Iterator[tuple[int, str]]:
    """The first rows of the chunk files from that of row `base` to file `stop`."""
    for chunk in range(base // spec.chunk_rows, stop):
        yield chunk * spec.chunk_rows, spec.path


def empty_lane(
    target: AnyPath,
    schema: Schema,
    specs: Mapping[str, ArraySpec],
    metadata: Mapping[str, Any],
) -> None:
    """Make a closed lane of no row; `metadata` may have attributes for it."""
    own = {name: metadata[name] for name in KEPT if name in metadata}
    try:
        build_lane.build_lane(target, schema, specs, own)
        Writer(target, background=Background(0)).close()
    except BaseException:
        durable_writes.remove_tree(target)
        raise


def empty_vector(target: AnyPath, reader: VectorReader) -> None:
    """Make a closed lane of no tick, of the environments that another has."""
    own = {name: reader.metadata[name] for name in KEPT if name in reader.metadata}
    specs = {layout.STARTS: reader.starts.specs, layout.TICKS: reader.ticks.specs}
    try:
        build_lane.build_vector_lane(target, reader.schema, specs, reader.width, own)
        VectorWriter(target, background=Background(0)).close()
    except BaseException:
        durable_writes.remove_tree(target)
        raise


def _tail_start(reader: LogReader, stop: int) -> int:
    """Rows below this one are in shards, which never change; a half of the tail may wait for its.

    A shard that is there already while its half still waits will be made again after a power cut,
    under the same name; so it counts only once the source says so.
    """
    return min(recover.shard_start(reader.specs, stop), reader.tail_start())


def _settled(reader: LogReader, stop: int) -> int:
    """Raw rows below this one change no more, neither in the source nor in the copy.

    The copy makes its newest row a final row. After a power cut a writer of the source goes back
    to the newest checkpoint, does the same there, and writes the rows after it again, in place.
    """
    if reader.is_closed:
        return max(stop - 1, 0)
    path = reader.path / ".live" / "checkpoint"
    try:
        best = CheckpointFile(path, reader.metadata["uuid"]).best
    except FileNotFoundError as error:  # it is being closed
        raise EvictedError(str(path)) from error
    # What was read may have been written just now, and be lost with the power: not after this.
    try:
        durable_writes.sync_file(path, missing_ok=True)
    except FailedSyncError:
        return 0  # a disk that takes nothing any more can still be copied from
    return max(min(stop, best.head) - 1, 0)


def _share(reader: LogReader, spec: ArraySpec, chunk: int, target: AnyPath) -> int:
    """Give a chunk file a second name in the copy; returns its size."""
    source = chunk_files.chunk_path(reader.path, spec, chunk)
    shared = chunk_files.chunk_path(target, spec, chunk)
    try:
        size = spec.chunk_bytes if spec.is_raw else shard_file.file_size(source, spec)
        durable_writes.share_file(source, shared, size)
    except FileNotFoundError as error:
        raise reader.missing(source, (chunk + 1) * spec.chunk_rows) from error
    return shared.stat().st_size


def _rewrite_shard(reader: LogReader, spec: ArraySpec, chunk: int, target: AnyPath) -> int:
    """Write a shard with zeros for what was evicted; returns its checksum."""
    source = chunk_files.chunk_path(reader.path, spec, chunk)
    codec = compression.make_codec(spec.codec or {})
    shard = shard_file.Shard(source, spec, codec)
    stored = checked_reads.read_bytes(source, shard_file.file_size(source, spec))
    zeros = compression.encode(codec, np.zeros(spec.inner_bytes, np.uint8))
    gone = max(reader.base - chunk * spec.chunk_rows, 0) // spec.inner_rows * spec.width
    parts = [stored[place[0] : place[1]] for place in shard.slices[gone:] if place is not None]
    data = shard_file.assemble(spec, [zeros] * gone + parts)
    durable_writes.write_file(chunk_files.chunk_path(target, spec, chunk), data)
    return compression.crc32c(data)


def _share_sums(
    reader: LogReader,
    spec: ArraySpec,
    shared: range,
    target: AnyPath,
    others: Mapping[tuple[str, int], int],
    *,
    strict: bool,
) -> None:
    """Copy the checksums of the chunk files that are shared, or take others that are known."""
    sums = layout.checksum_spec(spec.path)
    for file in range(-(-shared.stop // sums.chunk_rows)):
        path = chunk_files.chunk_path(reader.path, sums, file)
        start = file * sums.chunk_rows
        here = slice(max(shared.start - start, 0), max(shared.stop - start, 0))
        try:
            data = checked_reads.read_at(path, 0, sums.chunk_bytes, sums.chunk_bytes)
        except (FileNotFoundError, MmreplayError):
            data = b""
        values = np.frombuffer(data or bytes(sums.chunk_bytes), sums.dtype).copy()
        if strict and not values[here].all():
            raise damaged_file(
                reader, path, "expected a checksum of each chunk file, found none of some"
            )
        if not data:
            continue
        values[here.stop :] = 0
        for (array, chunk), value in others.items():
            if array == spec.path and chunk // sums.chunk_rows == file:
                values[chunk % sums.chunk_rows] = value
        durable_writes.write_file(
            chunk_files.chunk_path(target, sums, file), values.tobytes(), overwritten=True
        )


def _copy_rows(
    reader: LogReader,
    spec: ArraySpec,
    target: AnyPath,
    start: int,
    stop: int,
    wrong_sums: Collection[tuple[str, int]],
    *,
    strict: bool,
) -> Iterator[int]:
    """Copy rows [start, stop), to where a live lane has them; yields bytes."""
    if not spec.is_raw:
        tail = tail_file.map_tail(target, spec, writable=True)
        for row, rows in read_rows(reader, spec, start, stop):
            tail[np.arange(row, row + len(rows)) % len(tail)] = rows
            yield rows.nbytes
        return
    for chunk in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
        path = chunk_files.chunk_path(reader.path, spec, chunk)
        try:
            known = (spec.path, chunk) in wrong_sums
            intact = known or is_intact(reader, spec, chunk, strict=strict)
        except FileNotFoundError as error:
            raise reader.missing(path, (chunk + 1) * spec.chunk_rows) from error
        if not intact:  # the copy would have a checksum that fits
            raise damaged_file(reader, path)
        window = chunk_files.open_window(target, spec, chunk)
        first, last = max(window.start, start), min(window.start + spec.chunk_rows, stop)
        for row, rows in read_rows(reader, spec, first, last):
            window.rows[row - window.start : row - window.start + len(rows)] = rows
            yield rows.nbytes


def _write_rows(spec: ArraySpec, target: AnyPath, pieces: Iterable[tuple[int, Array]]) -> None:
    """Write rows of an uncompressed column, which come in ascending order."""
    for start, rows in pieces:
        row, stop = start, start + len(rows)
        while row < stop:
            window = chunk_files.open_window(target, spec, row // spec.chunk_rows)
            end = min(window.start + spec.chunk_rows, stop)
            window.rows[row - window.start : end - window.start] = rows[row - start : end - start]
            row = end


def damaged_file(reader: LogReader, path: AnyPath, *what: str) -> Exception:
    """What to raise: a lane that was just opened again has forgotten its newest checksums."""
    return EvictedError(str(path)) if reader.replaced() else damaged(path, *what)


def is_intact(reader: LogReader, spec: ArraySpec, chunk: int, *, strict: bool = False) -> bool:
    """Whether the rows in a raw chunk file match its checksum; see `checksums.rows_match`.

    If `strict`, one without a checksum is not intact. Raises FileNotFoundError, or
    CorruptStoreError if it has another size.
    """
    try:
        known = reader.is_closed and stored_checksum(reader.path, spec, chunk)
    except CorruptStoreError:
        known = 0
    if not known:
        return not strict
    return rows_match(reader.path, spec, chunk, reader.head)


def read_rows(
    reader: LogReader, spec: ArraySpec, start: int, stop: int
) -> Iterator[tuple[int, Array]]:
    """Rows [start, stop) of a column, as (first row, rows) in steps that fit into memory."""
    step = max(_STEP_BYTES // max(spec.row_bytes, 1), 1)
    # As the only lane it is number 0. What is beside each other in shards is read as cells.
    width = spec.width
    files = reader if width == 1 else Cells(reader, width)
    shard = None if spec.is_raw else shard_column.ShardColumn([files], spec.path)
    for row in range(start, stop, step):
        last = min(row + step, stop)
        if shard is None:
            yield row, chunk_files.read_rows(reader, spec, row, last)
        else:
            rows = shard.take(np.arange(row * width, last * width))
            yield row, rows.reshape(-1, *spec.row_shape)


def _stored_generator(reader: LogReader) -> str | None:
    """The random state that was saved with a lane."""
    if reader.is_closed:
        generator = reader.metadata.get("generator")
        return generator if isinstance(generator, str) else None
    return build_lane.read_generator(reader.path)


def copy_side_data(
    reader: LogReader, target: AnyPath, wanted: Collection[str], width: int | None = None
) -> None:
    """Copy the random state and the priorities, as far as they are wanted and can be read."""
    generator = _stored_generator(reader) if "generator" in wanted else None
    if generator is not None:
        durable_writes.write_file(
            build_lane.generator_path(target), generator.encode(errors="replace")
        )
    if "priorities" in wanted:
        try:
            copy_priorities(reader.path, target, closed=reader.is_closed, width=width)
        except DiskFullError:
            raise
        except (MmreplayError, OSError):  # damaged, or evicted meanwhile: no row depends on it
            durable_writes.remove_tree(target / "priorities")


def copy_priorities(
    source: AnyPath, target: AnyPath, *, closed: bool, width: int | None = None
) -> None:
    """Copy what there is of a lane's priorities; they are changed in place, so never shared.

    `width` is that of a log of ticks. From a source that is `closed` what does not match its
    checksum is left out.
    """
    spec = priority_column.find_spec(source, width)
    if spec is None:
        return
    durable_writes.make_directory(target / spec.path)
    durable_writes.copy_file(source / spec.path / "zarr.json", target / spec.path / "zarr.json")
    for chunk in chunk_files.chunk_files(source, spec):
        with contextlib.suppress(FileNotFoundError):  # evicted
            if priority_column.is_usable(source, spec, chunk, closed=closed):
                durable_writes.copy_file(
                    chunk_files.chunk_path(source, spec, chunk),
                    chunk_files.chunk_path(target, spec, chunk),
                )
