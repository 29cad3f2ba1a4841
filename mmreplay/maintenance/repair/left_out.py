"""Steps of which frames are damaged, left out; all others of their ticks stay.

Invariant: the damaged lane is only read. A file that is written again matched its checksum, but for
inner chunks that are known to be damaged: no other damage gets a checksum that fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import compression, layout
from mmreplay.format.layout import STARTS, TICKS, ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.copy_lane import is_intact
from mmreplay.maintenance.repair.damaged_rows import DamagedRows
from mmreplay.maintenance.repair.spans import Span, merged
from mmreplay.maintenance.repair.vector_stand_in import share_tree
from mmreplay.maintenance.verify.chunk_files import narrow_files
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.tick_rules import expected_partners
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage import chunk_files, priority_column, shard_file
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

_PIECE_CELLS = 1 << 18
_FEW_TICKS = 64

_Mask = npt.NDArray[np.bool_]
_Lost = Mapping[int, Sequence[Span]]  # ticks by environment


def leave_out(
    reader: VectorReader, findings: Mapping[str, Sequence[Finding]], target: AnyPath
) -> int | None:
    """Put a lane together at `target` that is the closed one of `reader` without some steps.

    `findings` are those about its logs. A damaged inner chunk of ticks costs the episodes of its
    environment their steps from there on, a start whose frame is damaged its episode. Returns how
    many steps those are; None if there is no such damage, or if other damage is in the way. Then
    nothing of what may be at `target` is of use.
    """
    if not reader.is_closed:
        return None
    starts = reader.starts
    lost = merged(DamagedRows(starts, findings[STARTS]).spans, starts.base, starts.head)
    damaged = {log: narrow_files(of_log) for log, of_log in findings.items()}
    if not damaged[TICKS] and not lost:
        return None
    try:
        durable_writes.remove_tree(target)
        return _LeavingOut(reader, damaged, lost).run(target)
    except (CorruptStoreError, FormatError, FileNotFoundError):
        return None


class _LeavingOut:
    """One closed lane; `damaged` are the files of each log with damaged inner chunks.

    `lost_starts` are starts of which frames are damaged.
    """

    def __init__(
        self, reader: VectorReader, damaged: Mapping[str, set[str]], lost_starts: Sequence[Span]
    ) -> None:
        self._reader, self._log, self._damaged = reader, reader.ticks, damaged[TICKS]
        self._damaged_starts, self._lost_starts = damaged[STARTS], lost_starts
        self._sums: dict[tuple[str, int], int] = {}
        self._lost = self._lost_steps()

    def run(self, target: AnyPath) -> int:
        """Make it; returns the number of steps left out. Raises CorruptStoreError if it cannot."""
        first = min((spans[0][0] for spans in self._lost.values()), default=0)
        stop = max((spans[-1][1] for spans in self._lost.values()), default=0)
        gone = np.zeros(max(stop - first, 0), np.int64)
        n = max(_PIECE_CELLS // self._reader.width, 1)
        for start in range(first, stop, n):
            end = min(start + n, stop)
            episodes = self._read("episode", start, end)
            lost = self._mask(start, end) & (episodes >= 0)
            gone[start - first : end - first] = lost.sum(1)
        share_tree(self._reader.path, target)
        if gone.any():
            self._leave_out_of_ticks(target / TICKS, first, stop, gone.cumsum())
        self._write_sums(target / TICKS)
        self._clear_starts(target / STARTS)
        self._write_sums(target / STARTS)
        return int(gone.sum())

    def _leave_out_of_ticks(self, target: AnyPath, first: int, stop: int, before: Ids) -> None:
        """Write the files of ticks [first, stop) again; `before`: steps that gone, summed up."""
        for spec in self._log.specs.values():
            last = self._log.head if spec.path == "count" else stop
            start = max(first - (spec.path == "ends"), self._reader.base)
            for chunk in range(start // spec.chunk_rows, -(-last // spec.chunk_rows)):
                if not spec.is_raw:
                    self._leave_out_of_shard(target, spec, chunk)
                elif spec.path == "count":
                    self._lower(target, spec, chunk, first, before)
                else:
                    self._leave_out_of_rows(target, spec, chunk)
        self._leave_out_of_priorities(target, first, stop)

    def _read(self, path: str, start: int, stop: int) -> Ids:
        return chunk_files.read_rows(self._log, self._log.specs[path], start, stop)

    # ------------------------------------------------------------ which steps

    def _lost_steps(self) -> _Lost:
        """The ticks from the first damaged one of an episode to its end, by environment."""
        found: dict[int, list[Span]] = {}
        for spec in self._log.specs.values():
            for chunk in chunk_files.chunk_files(self._log.path, spec):
                if f"{spec.path}/{spec.key(chunk)}" in self._damaged:
                    for number in self._damaged_inner(self._shard(self._log, spec, chunk), spec):
                        block, env = divmod(number, spec.width)
                        start = chunk * spec.chunk_rows + block * spec.inner_rows
                        found.setdefault(env, []).append((start, start + spec.inner_rows))
        base, head = self._reader.base, self._reader.head
        for number in itertools.chain.from_iterable(range(*span) for span in self._lost_starts):
            starts = self._reader.starts
            env, tick = (
                int(chunk_files.read_rows(starts, starts.specs[path], number, number + 1)[0])
                for path in ("env", "tick")
            )
            # Before the oldest tick that is kept nothing can be seen of it.
            if base <= tick < head and self._read("episode", tick, tick + 1)[0, env] == number:
                found.setdefault(env, []).append((tick, tick + 1))
        out = {}
        for env, spans in found.items():
            whole = [(start, self._end(env, stop)) for start, stop in merged(spans, base, head)]
            if whole:
                out[env] = merged(whole, base, head)
        return out

    @staticmethod
    def _damaged_inner(shard: shard_file.Shard, spec: ArraySpec) -> Iterator[int]:
        """The inner chunks of a shard that cannot be decoded."""
        buffer = np.empty(spec.inner_bytes, np.uint8)
        for number, place in enumerate(shard.slices):
            try:
                if place is not None:
                    shard.decode(number, buffer)
            except CorruptStoreError:
                yield number

    @staticmethod
    def _shard(log: LogReader, spec: ArraySpec, chunk: int) -> shard_file.Shard:
        path = chunk_files.chunk_path(log.path, spec, chunk)
        return shard_file.Shard(path, spec, compression.make_codec(spec.codec or {}))

    def _end(self, env: int, tick: int) -> int:
        """The first tick from `tick` on that is not of the episode that the one before it is of."""
        head = self._reader.head
        number = self._read("episode", tick - 1, tick)[0, env]
        n, most = _FEW_TICKS, max(_PIECE_CELLS // self._reader.width, 1)
        while number >= 0 and tick < head:
            others = self._read("episode", tick, min(tick + n, head))[:, env] != number
            if others.any():
                return tick + int(others.argmax())
            tick, n = min(tick + n, head), min(2 * n, most)
        return tick

    def _mask(self, start: int, stop: int) -> _Mask:
        """(stop - start, N): the cells of ticks [start, stop) that are left out now."""
        out = np.zeros((max(stop - start, 0), self._reader.width), np.bool_)
        for env, spans in self._lost.items():
            for low, high in spans:
                out[max(low - start, 0) : max(high - start, 0), env] = True
        return out

    # ------------------------------------------------------------ files

    def _leave_out_of_rows(self, target: AnyPath, spec: ArraySpec, chunk: int) -> None:
        """Zeros in a raw chunk file; `episode` and `ends` as docs/format.md has them then."""
        start = chunk * spec.chunk_rows
        stop = min(start + spec.chunk_rows, self._reader.head)
        rows = self._rows(spec, chunk)
        kept, lost = rows[: stop - start], self._mask(start, stop)
        low = max(start, self._reader.base)  # of evicted ticks the other columns may be gone
        if spec.path == "episode":
            there = (kept >= 0) & ~lost
            partial = lost.any(1)
            kept[partial] = expected_partners(there[partial], kept[partial])
        elif spec.path == "ends":
            kept[lost] = 0
            following = self._mask(low + 1, stop + 1)
            episodes = self._read("episode", low, stop)
            kept[low - start :][following & ~lost[low - start :] & (episodes >= 0)] = 1
        else:
            kept[lost] = 0
        self._replace(target, spec, chunk, rows.tobytes())

    def _lower(self, target: AnyPath, spec: ArraySpec, chunk: int, first: int, gone: Ids) -> None:
        """Counts without the steps that are gone: `gone` up to each tick from `first` on."""
        start, rows = chunk * spec.chunk_rows, self._rows(spec, chunk)
        stop = min(start + spec.chunk_rows, self._reader.head)
        low = max(first, start)
        rows[low - start : stop - start] -= gone[
            np.minimum(np.arange(low, stop) - first, len(gone) - 1)
        ]
        self._replace(target, spec, chunk, rows.tobytes())

    def _rows(self, spec: ArraySpec, chunk: int) -> Array:
        """All of a raw chunk file; raises CorruptStoreError unless it matches its checksum."""
        path = chunk_files.chunk_path(self._log.path, spec, chunk)
        if not is_intact(self._log, spec, chunk, strict=True):
            raise CorruptStoreError(f"{path}: does not match its checksum")
        data = checked_reads.read_at(path, 0, spec.chunk_bytes, spec.chunk_bytes)
        rows = np.frombuffer(data, spec.dtype).reshape(spec.chunk_rows, *spec.row_shape).copy()
        rows[max(self._reader.head - chunk * spec.chunk_rows, 0) :] = 0
        return rows

    def _leave_out_of_shard(self, target: AnyPath, spec: ArraySpec, chunk: int) -> None:
        """Zeros in the inner chunks of a shard, and all of those that are damaged."""
        start = chunk * spec.chunk_rows
        lost = self._mask(start, start + spec.chunk_rows)
        path = chunk_files.chunk_path(self._log.path, spec, chunk)
        size = shard_file.file_size(path, spec)
        is_damaged = f"{spec.path}/{spec.key(chunk)}" in self._damaged
        if not is_damaged and crc32c_of_file(path, size) != stored_checksum(
            self._log.path, spec, chunk
        ):
            raise CorruptStoreError(f"{path}: does not match its checksum")
        codec = compression.make_codec(spec.codec or {})
        shard, stored = self._shard(self._log, spec, chunk), checked_reads.read_bytes(path, size)
        damaged = set(self._damaged_inner(shard, spec)) if is_damaged else set()
        buffer, parts = np.empty(spec.inner_bytes, np.uint8), list[bytes]()
        for number, place in enumerate(shard.slices):
            if place is None:
                continue
            block, env = divmod(number, spec.width)
            here = lost[block * spec.inner_rows : (block + 1) * spec.inner_rows, env]
            if number in damaged or here.all():
                parts.append(compression.encode(codec, np.zeros(spec.inner_bytes, np.uint8)))
            elif here.any():
                shard.decode(number, buffer)
                buffer.reshape(spec.inner_rows, -1)[here] = 0
                parts.append(compression.encode(codec, buffer))
            else:
                parts.append(stored[place[0] : place[1]])
        self._replace(target, spec, chunk, shard_file.assemble(spec, parts))

    def _clear_starts(self, target: AnyPath) -> None:
        """Zeros in the frames of starts that are lost; no tick names one of these any more."""
        log = self._reader.starts
        for spec in (spec for path, spec in log.specs.items() if path not in ("env", "tick")):
            for chunk in sorted(
                {
                    number
                    for start, stop in self._lost_starts
                    for number in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows))
                }
            ):
                if f"{spec.path}/{spec.key(chunk)}" in self._damaged_starts:
                    self._clear_inner_chunks(target, spec, chunk)
                elif not self._is_whole(spec, chunk):
                    self._replace(target, spec, chunk, self._zeros(spec, chunk))

    def _clear_inner_chunks(self, target: AnyPath, spec: ArraySpec, chunk: int) -> None:
        path = chunk_files.chunk_path(self._reader.starts.path, spec, chunk)
        shard = self._shard(self._reader.starts, spec, chunk)
        stored = checked_reads.read_bytes(path, shard_file.file_size(path, spec))
        codec, damaged = (
            compression.make_codec(spec.codec or {}),
            set(self._damaged_inner(shard, spec)),
        )
        zeros = compression.encode(codec, np.zeros(spec.inner_bytes, np.uint8))
        parts = [
            zeros if number in damaged else stored[place[0] : place[1]]
            for number, place in enumerate(shard.slices)
            if place is not None
        ]
        self._replace(target, spec, chunk, shard_file.assemble(spec, parts))

    def _is_whole(self, spec: ArraySpec, chunk: int) -> bool:
        """Whether a file of starts is there and matches its checksum."""
        log = self._reader.starts
        try:
            if spec.is_raw:
                return is_intact(log, spec, chunk, strict=True)
            path = chunk_files.chunk_path(log.path, spec, chunk)
            size = shard_file.file_size(path, spec)
            return crc32c_of_file(path, size) == stored_checksum(log.path, spec, chunk)
        except (CorruptStoreError, OSError):
            return False

    def _zeros(self, spec: ArraySpec, chunk: int) -> bytes:
        """A chunk file of starts without any frame."""
        if spec.is_raw:
            return bytes(spec.chunk_bytes)
        codec = compression.make_codec(spec.codec or {})
        zeros = compression.encode(codec, np.zeros(spec.inner_bytes, np.uint8))
        n_rows = min(spec.chunk_rows, self._reader.starts.head - chunk * spec.chunk_rows)
        return shard_file.assemble(spec, [zeros] * -(-n_rows // spec.inner_rows))

    def _leave_out_of_priorities(self, target: AnyPath, first: int, stop: int) -> None:
        spec = priority_column.find_spec(self._log.path, self._reader.width)
        if spec is None:
            return
        for chunk in chunk_files.chunk_files(self._log.path, spec):
            start = chunk * spec.chunk_rows
            usable = priority_column.is_usable(self._log.path, spec, chunk, closed=True)
            if usable and start < stop and start + spec.chunk_rows > first:
                path = chunk_files.chunk_path(self._log.path, spec, chunk)
                data = checked_reads.read_at(path, 0, spec.chunk_bytes, spec.chunk_bytes)
                rows = np.frombuffer(data, spec.dtype).reshape(-1, *spec.row_shape).copy()
                rows[self._mask(start, start + spec.chunk_rows)] = 0
                self._replace(target, spec, chunk, rows.tobytes())

    def _replace(self, target: AnyPath, spec: ArraySpec, chunk: int, data: bytes) -> None:
        durable_writes.write_file(chunk_files.chunk_path(target, spec, chunk), data, durable=False)
        self._sums[spec.path, chunk] = compression.crc32c(data) or 1

    def _write_sums(self, target: AnyPath) -> None:
        """Checksums of the files that were written again; the others keep theirs."""
        tables: dict[AnyPath, npt.NDArray[np.uint32]] = {}
        for (path, chunk), value in self._sums.items():
            sums = layout.checksum_spec(path)
            file = chunk_files.chunk_path(target, sums, chunk // sums.chunk_rows)
            if file not in tables:
                data = checked_reads.read_at(file, 0, sums.chunk_bytes, sums.chunk_bytes)
                tables[file] = np.frombuffer(data, np.uint32).copy()
            tables[file][chunk % sums.chunk_rows] = value
        for file, table in tables.items():
            durable_writes.write_file(file, table.tobytes(), durable=False)
        self._sums.clear()
