"""Columns of a vector lane that follow from its others: made again where they are damaged or lost.

Invariant: the lane is only read. `count` follows from `episode` in the ticks, and so do `env` and
`tick` of a start that one of them names. What is not known stays as it stands where that breaks no
rule, and nothing that is kept depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format import compression, layout
from mmreplay.format.layout import STARTS, TICKS, ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.copy_lane import Made
from mmreplay.maintenance.repair.spans import Span
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.tick_rules import OTHER_ENVIRONMENT, OTHER_FIRST_TICK
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage import chunk_files
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

_PIECE_CELLS = 1 << 18
_PATHS = {TICKS: ("count",), STARTS: ("env", "tick")}
_UNKNOWN = -1


class DerivedColumns:
    """Those of a lane that have to be made again, by what `verify` has found in each of its logs.

    `findings` have the paths of their log. None has to be, until `make` is called.

    Attributes:
        paths: of each log, the columns that are damaged.
        notes: a sentence about each.
    """

    def __init__(self, reader: VectorReader, findings: dict[str, list[Finding]]) -> None:
        self._reader = reader
        self.paths: dict[str, set[str]] = {
            log: {path for path in paths if any(_is_about(one, path) for one in findings[log])}
            for log, paths in _PATHS.items()
        }
        # The ticks are found to contradict a start: nothing tells which of them is wrong.
        self._doubtful = any(_contradicts(one) for one in findings[TICKS])
        self._before = 0  # transitions below the oldest tick that is kept
        self._starts: dict[str, Ids] = {}
        self.notes: list[str] = []

    def rest(self, log: str, findings: Iterable[Finding]) -> list[Finding]:
        """The findings about a log that are not about what is made again."""
        made = self.paths[log]
        of_starts = self._doubtful or bool(self.paths[STARTS])
        return [
            one
            for one in findings
            if not any(_is_about(one, path) for path in made)
            and not (log == TICKS and of_starts and _contradicts(one))
        ]

    def make(self, damaged: Sequence[Span]) -> None:
        """Read the ticks outside of these; only what no damaged one is needed for is made."""
        if self._doubtful or self.paths[STARTS]:
            scan = _Starts(self._reader, damaged)
            if scan.is_sound:
                self.paths[STARTS] |= {"env", "tick"} if self._doubtful else set()
                self._starts = {path: scan.column(path) for path in self.paths[STARTS]}
            else:
                self.paths[STARTS], self._doubtful = set(), False
        self.notes = [
            f"{log}/{path} was damaged; it is made again from {TICKS}/episode"
            for log, paths in self.paths.items()
            for path in sorted(paths)
        ]
        if self.paths[TICKS]:
            self._before = self._count_before(damaged[0][0] if damaged else self._reader.head)

    def to_copy(self) -> dict[str, tuple[set[str], Made]]:
        """As `copy_vector` takes them."""
        return {TICKS: (self.paths[TICKS], self._counts), STARTS: (self.paths[STARTS], self._rows)}

    def put_into(self, target: AnyPath) -> None:
        """Write them into a stand-in for the lane, which is closed, with their checksums."""
        logs = {TICKS: self._reader.ticks, STARTS: self._reader.starts}
        for log, (paths, make) in self.to_copy().items():
            for path in sorted(paths):
                reader = logs[log]
                spec = reader.specs[path]
                first = reader.base // spec.chunk_rows
                rows = np.zeros(
                    (-(-reader.head // spec.chunk_rows) - first) * spec.chunk_rows, "<i8"
                )
                for start, values in make(path, reader.base, reader.head):
                    low = start - first * spec.chunk_rows
                    rows[low : low + len(values)] = values
                for place, part in enumerate(rows.reshape(-1, spec.chunk_rows)):
                    write_chunk(target / log, spec, first + place, part.tobytes())

    def _rows(self, path: str, start: int, stop: int) -> Iterator[tuple[int, Array]]:
        base = self._reader.starts.base
        yield start, self._starts[path][start - base : stop - base]

    def _counts(self, _: str, start: int, stop: int) -> Iterator[tuple[int, Array]]:
        count = self._before
        for first, episodes in _episodes(self._reader, self._reader.base, stop):
            counts = count + (episodes >= 0).sum(1).cumsum()
            count = int(counts[-1])
            low = max(start - first, 0)
            if low < len(counts):
                yield first + low, counts[low:]

    def read(self, path: str, number: int) -> int:
        """A value of a start."""
        if path in self._starts:
            return int(self._starts[path][number - self._reader.starts.base])
        return int(_read(self._reader.starts, path, number, number + 1)[0])

    def _count_before(self, stop: int) -> int:
        """The transitions below the oldest tick that is kept, by most of the counts."""
        base = self._reader.base
        if not base:
            return 0
        offsets = [np.empty(0, np.int64)]
        count = 0
        with contextlib.suppress(MmreplayError, OSError):
            for first, episodes in _episodes(self._reader, base, stop):
                counts = count + (episodes >= 0).sum(1).cumsum()
                count = int(counts[-1])
                stored = _read(self._reader.ticks, "count", first, first + len(counts))
                offsets.append(stored - counts)
        values, numbers = np.unique(np.concatenate(offsets), return_counts=True)
        if values.size:
            likely, n = int(values[numbers.argmax()]), int(numbers.max())
            if 2 * n > numbers.sum() and base <= likely <= base * self._reader.width:
                return likely
        self.notes.append(
            f"{TICKS}/count: nothing tells how many transitions ticks below {base:,} had, which "
            f"were evicted; they are counted as {self._reader.width:,} each"
        )
        return base * self._reader.width


class _Starts:
    """What sound ticks tell of starts; `is_sound`: whether they agree."""

    def __init__(self, reader: VectorReader, damaged: Sequence[Span]) -> None:
        self._log = log = reader.starts
        self._width, self._head = reader.width, reader.head
        n = log.head - log.base
        self._env, self._tick = (np.full(n, _UNKNOWN, np.int64) for _ in range(2))
        self._latest = np.full(n, _UNKNOWN, np.int64)  # of those of which the tick is not known
        self.is_sound = True
        edges = [reader.base, *(tick for span in damaged for tick in span), reader.head]
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            self._follow(reader, start, stop)
        known = self._tick[self._tick >= 0]
        self.is_sound &= bool((np.diff(known) >= 0).all())  # they were appended in this order

    def _follow(self, reader: VectorReader, start: int, stop: int) -> None:
        before: Ids | None = np.full(reader.width, -1, np.int64) if start == 0 else None
        base = self._log.base
        for first, episodes in _episodes(reader, start, stop):
            if before is None:
                for env in np.flatnonzero(episodes[0] >= 0).tolist():
                    number = int(episodes[0, env]) - base
                    if not 0 <= number < len(self._env):
                        self.is_sound = False
                    elif self._env[number] in (_UNKNOWN, env):
                        if self._env[number] == _UNKNOWN:
                            # The oldest tick that is kept may be its first; one after damage, too.
                            self._latest[number] = first - (first != reader.base)
                        self._env[number] = env
                    else:
                        self.is_sound = False
                before = episodes[0]
            last = np.concatenate((before[None], episodes[:-1]))
            ticks, envs = np.nonzero((episodes >= 0) & (episodes != last))
            numbers = episodes[ticks, envs] - base
            inside = (numbers >= 0) & (numbers < len(self._env))
            self.is_sound &= bool(inside.all()) and len(np.unique(numbers)) == len(numbers)
            ticks, envs, numbers = ticks[inside], envs[inside], numbers[inside]
            self.is_sound &= bool((self._env[numbers] == _UNKNOWN).all())
            self._env[numbers], self._tick[numbers] = envs, ticks + first
            before = episodes[-1]

    def column(self, path: str) -> Ids:
        """The values of all starts that there are."""
        log, stored = self._log, None
        with contextlib.suppress(MmreplayError, OSError):
            stored = _read(log, path, log.base, log.head)
        if path == "env":
            # What no tick names is of no episode, and may be of any environment.
            other = np.zeros_like(self._env) if stored is None else stored
            other = np.where((other >= 0) & (other < self._width), other, 0)
            return np.where(self._env >= 0, self._env, other)
        # Of an episode that began before the ticks that are known, any tick before them will do;
        # what no tick names lies between its neighbours, as starts are appended in this order.
        is_old = self._latest >= 0
        low = np.where(is_old, 0, np.maximum.accumulate(np.maximum(self._tick, 0)))
        following = np.where(self._tick >= 0, self._tick, self._head)
        high = np.where(is_old, self._latest, np.minimum.accumulate(following[::-1])[::-1])
        other = np.where(is_old, np.maximum(high - 1, 0), low) if stored is None else stored
        other = np.where((other < low) | (other > high), low, other)
        return np.where(self._tick >= 0, self._tick, other)


def write_chunk(log: AnyPath, spec: ArraySpec, chunk: int, data: bytes) -> None:
    """Write a chunk file of a stand-in, and its checksum; the files may be shared."""
    durable_writes.write_file(chunk_files.chunk_path(log, spec, chunk), data, durable=False)
    sums = layout.checksum_spec(spec.path)
    file = chunk_files.chunk_path(log, sums, chunk // sums.chunk_rows)
    table = np.zeros(sums.chunk_rows, np.uint32)
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        stored = checked_reads.read_at(file, 0, sums.chunk_bytes, sums.chunk_bytes)
        table = np.frombuffer(stored, np.uint32).copy()
    table[chunk % sums.chunk_rows] = compression.crc32c(data) or 1
    durable_writes.write_file(file, table.tobytes(), durable=False)


def _episodes(reader: VectorReader, start: int, stop: int) -> Iterator[tuple[int, Ids]]:
    """`episode` of ticks [start, stop), as (first tick, rows)."""
    n = max(_PIECE_CELLS // reader.width, 1)
    for first in range(start, stop, n):
        yield first, _read(reader.ticks, "episode", first, min(first + n, stop))


def _read(log: LogReader, path: str, start: int, stop: int) -> npt.NDArray[np.int64]:
    return chunk_files.read_rows(log, log.specs[path], start, stop)


def _is_about(finding: Finding, path: str) -> bool:
    """Whether a finding is about a column, or its checksums."""
    return finding.array in (path, f"checksums/{path}")


def _contradicts(finding: Finding) -> bool:
    """Whether an episode is found that is not as its start has it."""
    return finding.array == "episode" and finding.message.startswith(
        (OTHER_ENVIRONMENT, OTHER_FIRST_TICK)
    )
