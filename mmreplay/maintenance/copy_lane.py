"""Copies the rows of a lane to a new directory, for snapshots and repairs.

Invariant: no file of the source is changed, now or later: a chunk file is linked only if no writer
of the source or of the copy will store into it again, or until the copy is closed if its values may
change; all else is copied. Row ids stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, DiskFullError, MmreplayError
from mmreplay.format import compression, layout
from mmreplay.format.layout import FINALS, PRIORITIES, ArraySpec
from mmreplay.format.plan import LanePlan
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.verify.documents import generator_problem
from mmreplay.reading.lane_reader import LaneReader, LogReader
from mmreplay.storage import chunk_files, priority_column, shard_column, shard_file
from mmreplay.storage.checksums import crc32c_of_file, damaged, rows_match, stored_checksum
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.storage.state_page import Checkpoint, CheckpointFile
from mmreplay.system import checked_reads, durable_writes, platform
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.locks import DirectoryLock
from mmreplay.writing import build_lane
from mmreplay.writing.create import open_writer
from mmreplay.writing.lane_files import holder_of

_KEPT = ("capacity", "padding", "env", "versions", "name")
_STEP_BYTES = 4 << 20
_NOTHING: Mapping[str, Ids] = {}


def close_lane(lane: AnyPath) -> None:
    """Close a lane as its next writer would."""
    open_writer(lane, {}, 0).close()


def lock_all(folders: Iterable[AnyPath], held: contextlib.ExitStack) -> dict[AnyPath, Any]:
    """Lock a store and its lanes until `held` is left; the locks. LockedError names the writer."""
    out = {}
    for folder in dict.fromkeys(folders):
        out[folder] = DirectoryLock(folder, who=functools.partial(holder_of, folder))
        held.callback(out[folder].release)
    return out


def copy_lane(
    reader: LaneReader,
    target: AnyPath,
    stop: int | None = None,
    *,
    finals: Ids | None = None,
    remade: Collection[tuple[str, int]] = (),
    moved: Callable[[int], None] = lambda _: None,
) -> None:
    """Make a closed lane of the rows below `stop` of a lane; None: of all that are committed now.

    Episodes that run on at `stop` end there as truncated; the frames of row `stop`, which has to be
    sound, are their final observations.

    Args:
        reader: the source.
        target: a directory that does not exist; it is removed again if this fails.
        stop: a row up to the head.
        finals: (rows of the log, ids, firsts), (3, m) by id, of the final observations of kept
            steps; None for those that the source names.
        remade: (array, chunk file), as ``("finals/id", 3)``, of files whose checksum or evicted
            rows are damaged, and whose kept rows are sound; of fields of episodes and of columns
            that may change, those that are lost, so zeros in the copy.
        moved: called with the size of each file or part that was copied.

    Raises EvictedError if rows were evicted, or a session began: open the lane again and retry.
    """
    try:
        _build(target, reader)
        _Copy(reader, target, finals, remade, moved).run(stop)
        _copy_side_data(reader, target)
        if reader.replaced():
            raise EvictedError(str(reader.path))
        durable_writes.sync_tree(target)
        close_lane(target)
    except BaseException:
        durable_writes.remove_tree(target)
        raise


def empty_lane(target: AnyPath, reader: LaneReader) -> None:
    """Make a closed lane without rows, with the arrays and attributes of another."""
    _build(target, reader)
    close_lane(target)


def _build(target: AnyPath, reader: LaneReader) -> None:
    own = {name: reader.metadata[name] for name in _KEPT if name in reader.metadata}
    plan = LanePlan(reader.rows.specs, reader.finals.specs)
    build_lane.build_lane(target, reader.schema, plan, reader.environments, own)


@dataclasses.dataclass(frozen=True, slots=True)
class _Copy:
    """Copies rows into an open, empty lane; arguments as in `copy_lane`."""

    _reader: LaneReader
    _target: AnyPath
    _index: Ids | None
    _remade: Collection[tuple[str, int]]
    _moved: Callable[[int], None]

    def run(self, stop: int | None) -> None:
        """Copy the rows below `stop`."""
        reader, rows, finals = self._reader, self._reader.rows, self._reader.finals
        if not rows.poll():
            raise EvictedError(str(reader.path))
        stop = rows.head if stop is None else stop
        # In this order: an episode that is not among the finals, then, had its observation there.
        self._copy_pending(stop)
        if platform.barrier is not None:
            platform.barrier()
        if not finals.poll():
            raise EvictedError(str(reader.path))
        # In this order, too: the finals of rows go after a checkpoint lets the rows go.
        final_best, best = durable_part(reader, finals), durable_part(reader, rows)
        base = min(best.base, stop)
        if base and base + layout.CONTEXT_ROWS > stop:  # too few are left to be a lane
            raise EvictedError(str(reader.path))
        self._share_values(base)
        oldest, given = final_best.base, dict[str, Ids]()
        if self._index is not None and self._index.size:
            order = self._index[0].argsort()
            places, *index = self._index[:, order]
            oldest, given = int(places[0]), dict(zip(("id", "first"), index, strict=True))
        n_finals = self._first_final(stop, oldest, finals.head)
        settled = self._first_final(min(stop, best.head), oldest, n_finals)
        # The finals first: what has two names cannot be evicted, and rows that are evicted
        # meanwhile are not those that need them.
        settled = min(settled, final_best.head)
        self._copy_log(finals, min(oldest, n_finals), n_finals, settled, given=given)
        # The newest row may still end; after a power cut a writer of the source goes back to the
        # newest checkpoint, and writes the rows after it again, in place.
        self._copy_log(rows, base, stop, max(min(stop, best.head) - 1, 0), best.before)
        self._copy_fields(base, stop, best.before)

    def _share_values(self, base: int) -> None:
        """Link the files of the columns that may change; closing the copy makes them its own.

        After the head is read, as the rows below it have theirs; before the base moves, as missing
        files stand for zeros.
        """
        reader, rows = self._reader, self._reader.rows
        lost = None if self._index is None else self._remade
        for spec in rows.specs.values():
            if spec.may_change:
                _share_values(reader, self._target, spec, lost, self._moved)
        if not rows.poll() or rows.base > base:
            raise EvictedError(str(reader.path))

    def _copy_fields(self, base: int, stop: int, before: int) -> None:
        """Copy the fields of the episodes that begin in rows [base, stop), as these may change."""
        reader, rows = self._reader, self._reader.rows
        pieces = chunk_files.filled_rows(rows, rows.specs["resets"], base, stop)
        head = before + sum(int(np.count_nonzero(values)) for _, values in pieces)
        for path, spec in reader.document.episodes.items():
            for chunk in range(before // spec.chunk_rows, -(-head // spec.chunk_rows)):
                source = chunk_files.chunk_path(rows.path, spec, chunk)
                copy = chunk_files.chunk_path(self._target, spec, chunk)
                if (path, chunk) in self._remade:
                    durable_writes.allocate(copy, spec.chunk_bytes)
                    continue
                try:
                    if self._index is None:
                        check_intact(rows, spec, chunk, head)
                    durable_writes.copy_file(source, copy)
                except FileNotFoundError as error:
                    raise _damaged_file(rows, source, "missing") from error

    def _copy_pending(self, stop: int) -> None:
        """Copy row `stop` of frames: what followed the newest steps of running episodes."""
        reader, rows = self._reader, self._reader.rows
        runs = stop > 0 and not (reader.is_closed and stop >= rows.head)
        if runs and self._index is not None:  # else it may be damaged
            steps = chunk_files.read_rows(rows, rows.specs["step"], stop - 1, stop)
            ended = self._index[1] >= (stop - 1) * reader.n
            runs = bool(np.count_nonzero(steps > 0) > np.count_nonzero(ended))
        for path in reader.schema.frame_paths.values():
            spec = rows.specs[path]
            if spec.is_raw and stop:  # every open lane has a place for it
                chunk_files.open_window(self._target, spec, stop // spec.chunk_rows)
            if runs:
                self._copy_rows(rows, spec, stop, stop + 1)

    def _first_final(self, stop: int, low: int, high: int) -> int:
        """The first final observation of [low, high) whose step is in row `stop` or later."""
        finals, first = self._reader.finals, stop * self._reader.n
        if self._index is not None:
            return low + int(self._index[1].searchsorted(first))
        return chunk_files.first_final(finals, finals.specs["id"], first, low, high)

    def _folder(self, log: LogReader) -> AnyPath:
        return self._target / FINALS if log is self._reader.finals else self._target

    def _is_remade(self, log: LogReader, spec: ArraySpec, chunk: int) -> bool:
        """Whether of a chunk file only the kept rows are sound."""
        prefix = f"{FINALS}/" if log is self._reader.finals else ""
        return (prefix + spec.path, chunk) in self._remade

    def _copy_log(
        self,
        log: LogReader,
        base: int,
        stop: int,
        settled: int,
        before: int = 0,
        given: Mapping[str, Ids] = _NOTHING,
    ) -> None:
        """Copy rows [base, stop) of a log into an open, empty one, and write its checkpoint.

        Raw rows below `settled` do not change; `before` episodes began below `base`; `given` has
        the rows of some arrays.
        """
        target, tail_start = self._folder(log), _tail_start(log, stop)
        whole = {
            path: (base if path in given else settled if spec.is_raw else tail_start)
            // spec.chunk_rows
            for path, spec in log.specs.items()
            if not spec.may_change
        }
        # The oldest first, and before anything is read: a linked file cannot be evicted.
        shared = [
            (chunk * log.specs[path].chunk_rows, path, chunk)
            for path, stop_chunk in whole.items()
            for chunk in range(base // log.specs[path].chunk_rows, stop_chunk)
        ]
        for _, path, chunk in sorted(shared):
            self._moved(self._share(log, log.specs[path], chunk, base))
        for path, stop_chunk in whole.items():
            spec = log.specs[path]
            self._share_sums(log, spec, range(base // spec.chunk_rows, stop_chunk))
            first = max(stop_chunk * spec.chunk_rows, base)
            self._copy_rows(log, spec, first, stop, given.get(path))
        CheckpointFile.create(
            target / ".live" / "checkpoint",
            read_metadata(self._target)["uuid"],
            head=stop,
            tail_start=tail_start,
            base=base,
            before=before,
        )

    def _share_sums(self, log: LogReader, spec: ArraySpec, shared: range) -> None:
        """Copy the checksums of the chunk files that are shared."""
        sums = layout.checksum_spec(spec.path)
        for file in range(-(-shared.stop // sums.chunk_rows)):
            path, start = chunk_files.chunk_path(log.path, sums, file), file * sums.chunk_rows
            values = np.zeros(sums.chunk_rows, sums.dtype)
            with contextlib.suppress(FileNotFoundError, MmreplayError):
                data = checked_reads.read_at(path, 0, sums.chunk_bytes, sums.chunk_bytes)
                values = np.frombuffer(data, sums.dtype).copy()
            here = range(max(shared.start - start, 0), min(shared.stop - start, sums.chunk_rows))
            for place in here:
                if self._is_remade(log, spec, start + place):
                    values[place] = 0  # closing the copy works it out
                elif log.is_closed and not values[place] and self._index is None:
                    text = "expected a checksum of each chunk file, found none of some"
                    raise _damaged_file(log, path, text)
            values[here.stop :] = 0
            durable_writes.write_file(
                chunk_files.chunk_path(self._folder(log), sums, file),
                values.tobytes(),
                overwritten=True,
            )

    def _copy_rows(
        self, log: LogReader, spec: ArraySpec, start: int, stop: int, given: Ids | None = None
    ) -> None:
        target = self._folder(log)
        if not spec.is_raw:
            tail = chunk_files.map_tail(target, spec, writable=True)
            for row, rows in read_rows(self._reader, log, spec, start, stop):
                tail[np.arange(row, row + len(rows)) % len(tail)] = rows
                self._moved(rows.nbytes)
            return
        for chunk in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
            window = chunk_files.open_window(target, spec, chunk)
            first, last = max(window.start, start), min(window.start + spec.chunk_rows, stop)
            if given is not None:
                rows = given[first - start : last - start]
                window.rows[first - window.start : last - window.start] = rows
                continue
            if self._index is None:
                check_intact(log, spec, chunk)
            for row, rows in read_rows(self._reader, log, spec, first, last):
                window.rows[row - window.start : row - window.start + len(rows)] = rows
                self._moved(rows.nbytes)

    def _share(self, log: LogReader, spec: ArraySpec, chunk: int, base: int) -> int:
        """Link a chunk file into the copy; returns its size."""
        source = chunk_files.chunk_path(log.path, spec, chunk)
        shared = chunk_files.chunk_path(self._folder(log), spec, chunk)
        try:
            if self._is_remade(log, spec, chunk) and not spec.is_raw:
                durable_writes.write_file(shared, _mended(source, spec, chunk, base), durable=False)
            else:
                size = spec.chunk_bytes if spec.is_raw else shard_file.file_size(source, spec)
                durable_writes.share_file(source, shared, size)
        except FileNotFoundError as error:
            raise log.missing(source, (chunk + 1) * spec.chunk_rows) from error
        return shared.stat().st_size


def durable_part(reader: LaneReader, log: LogReader) -> Checkpoint:
    """The durable part of a log; of a closed one all of it."""
    own = reader.metadata
    if log.is_closed:
        before = own["episodes_before"] if log is reader.rows else 0
        return Checkpoint(log.head, log.head, log.base, before, 0, b"")
    path = log.path / ".live" / "checkpoint"
    try:
        best = CheckpointFile(path, own["uuid"]).best
    except FileNotFoundError as error:  # it is being closed
        raise EvictedError(str(path)) from error
    # What was read may have been written just now, and be lost with the power: not after this.
    try:
        durable_writes.sync_file(path, missing_ok=True)
    except FailedSyncError:  # a disk that accepts no writes can still be read
        return dataclasses.replace(best, head=0)
    return best


def _tail_start(log: LogReader, stop: int) -> int:
    """Rows below this one are in shards that the source counts, which never change."""
    half = max((spec.chunk_rows for spec in log.specs.values() if not spec.is_raw), default=0)
    return min(stop - stop % half, log.tail_start()) if half else 0


def _mended(path: AnyPath, spec: ArraySpec, chunk: int, base: int) -> bytes:
    """A shard with zeros for inner chunks that are damaged, all of whose rows are below `base`."""
    codec, scratch = compression.make_codec(spec.codec or {}), np.zeros(spec.inner_bytes, np.uint8)
    shard, zeros = shard_file.Shard(path, spec, codec), compression.encode(codec, scratch)
    chunks = []
    for number in range(spec.n_inner):
        stop = chunk * spec.chunk_rows + (number // spec.width + 1) * spec.inner_rows
        try:
            shard.decode(number, scratch)
            chunks.append(shard.encoded(number))
        except CorruptStoreError:
            if stop > base:
                raise
            chunks.append(zeros)
    return shard_file.assemble(spec, chunks)


def _damaged_file(log: LogReader, path: AnyPath, *what: str) -> Exception:
    """The error to raise: a lane that was just reopened has cleared its newest checksums."""
    return EvictedError(str(path)) if log.replaced() else damaged(path, *what)


def check_intact(log: LogReader, spec: ArraySpec, chunk: int, head: int | None = None) -> None:
    """Raise an error unless rows below `head` in a closed lane's raw file match its checksum."""
    if not log.is_closed:
        return
    path = chunk_files.chunk_path(log.path, spec, chunk)
    try:
        with contextlib.suppress(CorruptStoreError):
            if not stored_checksum(log.path, spec, chunk):
                if spec.may_change:  # its values are being changed
                    return
            elif rows_match(log.path, spec, chunk, log.head if head is None else head):
                return
    except FileNotFoundError as error:
        raise log.missing(path, (chunk + 1) * spec.chunk_rows) from error
    raise _damaged_file(log, path)


def read_rows(
    reader: LaneReader, log: LogReader, spec: ArraySpec, start: int, stop: int
) -> Iterator[tuple[int, Array]]:
    """Rows [start, stop) of an array, and the pending row of frames, as (first row, rows)."""
    step = max(_STEP_BYTES // max(spec.row_bytes, 1), 1)
    n, files = (reader.n, reader.frames) if log is reader.rows else (1, log)
    # As the only lane it is number 0.
    shard = None if spec.is_raw else shard_column.ShardColumn([files], spec.path)
    for row in range(start, stop, step):
        last = min(row + step, stop)
        if shard is None:
            yield row, chunk_files.read_rows(log, spec, row, last)
        else:
            entries = shard.take(np.arange(row * n, last * n))
            yield row, entries.reshape(-1, *spec.row_shape)


def _copy_side_data(reader: LaneReader, target: AnyPath) -> None:
    """Copy the random state and the priorities, if they are sound: no row depends on them."""
    generator = reader.metadata.get("generator")
    if not reader.is_closed:
        generator = build_lane.read_generator(reader.path)
    if generator is not None and not generator_problem(generator):
        durable_writes.write_file(build_lane.generator_path(target), generator.encode())
    try:
        _copy_priorities(reader, target)
    except DiskFullError:
        raise
    except (MmreplayError, OSError):  # damaged or evicted
        durable_writes.remove_tree(target / "priorities")


def _copy_priorities(reader: LaneReader, target: AnyPath) -> None:
    spec = priority_column.find_spec(reader.path, reader.environments)
    if spec is not None:
        folder, document = target / spec.path, "zarr.json"
        durable_writes.make_directory(folder)
        durable_writes.copy_file(reader.path / spec.path / document, folder / document)
        _share_values(reader, target, spec)


def _share_values(
    reader: LaneReader,
    target: AnyPath,
    spec: ArraySpec,
    lost: Collection[tuple[str, int]] | None = None,
    moved: Callable[[int], None] = lambda _: None,
) -> None:
    """Link the files of a column that may change into the copy; raises as `copy_lane`.

    When the copy is opened, they become its own, and what lies past its rows is zeroed. Damaged
    priorities are left out.
    """
    if lost is not None and not (reader.path / spec.path).exists():
        return  # the whole column is lost
    for chunk in chunk_files.chunk_files(reader.path, spec):
        source, copy = (chunk_files.chunk_path(lane, spec, chunk) for lane in (reader.path, target))
        if (spec.path, chunk) in (lost or ()):
            continue
        try:
            known = stored_checksum(reader.path, spec, chunk) if lost is None else 0
            durable_writes.share_file(source, copy)
        except FileNotFoundError as error:
            raise reader.rows.missing(source, (chunk + 1) * spec.chunk_rows) from error
        moved(spec.chunk_bytes)
        if not known or crc32c_of_file(copy, spec.chunk_bytes) == known:
            continue
        if stored_checksum(reader.path, spec, chunk) == known:  # else it changed meanwhile
            if spec.path != PRIORITIES:
                raise _damaged_file(reader.rows, source)
            durable_writes.unlink(copy)
