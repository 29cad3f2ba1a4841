"""The rules between the ticks and the starts of a lane of many environments.

Invariant: they are applied only to arrays whose files are sound, and read in pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from mmreplay import episode_index
from mmreplay.errors import MmreplayError
from mmreplay.format.layout import CONTEXT_TICKS, STARTS, TICKS
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.verify import tick_rules
from mmreplay.maintenance.verify.report import Finding, reason
from mmreplay.maintenance.verify.row_rules import Problem
from mmreplay.maintenance.verify.second_look import Watch
from mmreplay.maintenance.verify.tick_rules import Known
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage import chunk_files, priority_column
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.system import checked_reads

_PIECE_CELLS = 1 << 18
_PIECE_BYTES = 4 << 20

PRIORITY_OF_NOBODY = "environments that were left out: expected no priority, found one"
_PRIORITIES = "priorities"
_NEEDED = {TICKS: ("episode", "ends", "count"), STARTS: ("env", "tick")}


class StepRules:
    """Applies the rules to a lane that could be opened; `logs` has what was found in each log."""

    def __init__(self, watch: Watch, lane: VectorReader, logs: Mapping[str, Watch]) -> None:
        self._watch, self._lane, self._logs = watch, lane, logs
        self._head, self._starts = lane.head, (lane.starts.base, lane.starts.head)

    def check(self, *, live: bool) -> None:
        """Check all of them; what they need has to be sound.

        Priorities of a `live` lane change all the time, and are left out.
        """
        self._damaged = {one.array for watch in self._logs.values() for one in watch.findings}
        needed = {f"{log}/{path}" for log, paths in _NEEDED.items() for path in paths}
        if needed & self._damaged or not self._check_starts():
            return
        lane = self._lane
        self._columns: dict[str, RawColumn | ShardColumn] = {}
        for path, spec in lane.cells.specs.items():
            if path != "episode" and f"{TICKS}/{path}" not in self._damaged:
                kind = RawColumn if spec.is_raw else ShardColumn
                self._columns[path] = kind([lane.cells], path)
        has_priorities = not live and f"{TICKS}/{_PRIORITIES}" not in self._damaged
        self._priorities = None
        if has_priorities:
            with contextlib.suppress(MmreplayError):  # a finding of its own
                self._priorities = priority_column.find_spec(lane.ticks.path, lane.width)
        self._lookups = {path: RawColumn([lane.starts], path) for path in _NEEDED[STARTS]}
        n = max(_PIECE_CELLS // lane.width, 1)
        known, tick = Known(), lane.base
        while tick < self._head:
            stop = min((tick // n + 1) * n, self._head)
            found = self._logs[TICKS].confirm(partial(self._check_ticks, tick, stop, known))
            known, tick = found if found is not None else (Known(), max(lane.base, tick + 1))
        if self._logs[TICKS].closed and self._logs[STARTS].closed:
            self._check_first()

    # ------------------------------------------------------------ starts

    def _check_starts(self) -> bool:
        """Environments and ticks of starts are such; whether they all are."""
        base, head = self._starts
        watch, n_before = self._logs[STARTS], len(self._logs[STARTS].findings)
        row = base
        while row < head:
            stop = min(row + _PIECE_CELLS, head)
            watch.confirm(partial(self._check_starts_piece, row, stop))
            row = stop
        return len(watch.findings) == n_before

    def _check_starts_piece(self, start: int, stop: int) -> tuple[list[Finding], None]:
        log = self._lane.starts
        try:
            rows = {
                p: chunk_files.read_rows(log, log.specs[p], start, stop)
                for p in log.specs
                if p in _NEEDED[STARTS]
            }
        except EvictedError:
            return [], None
        except (MmreplayError, OSError) as error:
            return [self._logs[STARTS].finding("env", reason(error, log.path), "env")], None
        problems = tick_rules.check_starts(rows["env"], rows["tick"], start, self._lane.width)
        return self._findings(STARTS, problems), None

    # ------------------------------------------------------------ ticks

    def _check_ticks(
        self, start: int, stop: int, known: Known
    ) -> tuple[list[Finding], tuple[Known, int] | None]:
        """What is wrong with ticks [start, stop), and what is known after them.

        None if some of them were evicted meanwhile.
        """
        log = self._lane.ticks
        try:
            counts, episodes, ends = (
                chunk_files.read_rows(log, log.specs[path], start, stop)
                for path in ("count", "episode", "ends")
            )
            for column in (*self._columns.values(), *self._lookups.values()):
                column.refresh()
            base, head = self._starts
            problems, known = tick_rules.check_ticks(
                counts, episodes, ends, start, known, (base, head), self._start_of
            )
            problems += self._absent_problems(episodes, start)
        except EvictedError:
            log.poll()
            return [], None
        except (MmreplayError, OSError) as error:
            watch = self._logs[TICKS]
            text = reason(error, log.path)
            return [watch.finding("episode", text, "episode", (start, stop))], (known, stop)
        return self._findings(TICKS, problems), (known, stop)

    def _start_of(self, numbers: Ids) -> tuple[Ids, Ids]:
        """Environment and tick of starts."""
        return self._lookups["env"].take(numbers), self._lookups["tick"].take(numbers)

    def _absent_problems(self, episodes: Ids, start: int) -> list[tuple[str, Problem]]:
        """Everything of an environment that was left out is zero."""
        absent = np.flatnonzero(episodes.ravel() < 0)
        width, out = self._lane.width, list[tuple[str, Problem]]()
        for path, column in self._columns.items():
            size = self._lane.cells.specs[path].row_bytes
            step, wrong = max(_PIECE_BYTES // max(size, 1), 1), [np.empty(0, np.int64)]
            for part in range(0, absent.size, step):
                cells = absent[part : part + step]
                values: Array = column.take(cells + start * width)
                other = values.reshape(cells.size, -1).view(np.uint8).any(1)
                wrong.append(cells[other] // width + start)
            text = "environments that were left out: expected zeros, found other values"
            out += [(path, one) for one in tick_rules.wrong_ticks(text, np.concatenate(wrong))]
        ticks = self._with_priorities(episodes < 0, start)
        problems = tick_rules.wrong_ticks(PRIORITY_OF_NOBODY, ticks)
        return out + [(_PRIORITIES, one) for one in problems]

    def _with_priorities(self, absent: npt.NDArray[np.bool_], start: int) -> Ids:
        """The ticks from `start` on, one for each row of `absent`, in which such cells have one."""
        spec, log, out = self._priorities, self._lane.ticks, [np.empty(0, np.int64)]
        stop, row = start + len(absent), start
        while spec is not None and row < stop:
            chunk = row // spec.chunk_rows
            end = min((chunk + 1) * spec.chunk_rows, stop)
            # Where there is no file, or whoever made it died before it had its blocks, they are 0.
            path = chunk_files.chunk_path(log.path, spec, chunk)
            with contextlib.suppress(FileNotFoundError):
                if checked_reads.regular_size(path, spec.chunk_bytes) == spec.chunk_bytes:
                    values = chunk_files.read_rows(log, spec, row, end)
                    found = (values != 0) & absent[row - start : end - start]
                    out.append(np.flatnonzero(found.any(1)) + row)
            row = end
        return np.concatenate(out)

    def _findings(self, log: str, problems: Iterable[tuple[str, Problem]]) -> list[Finding]:
        watch, out = self._logs[log], list[Finding]()
        for path, problem in problems:
            out.append(watch.finding(path, problem.message, path, problem.rows))
        return out

    # ------------------------------------------------------------ capacity

    def _check_first(self) -> None:
        """The oldest tick that zarr.json names is that of the capacity."""
        capacity = (self._watch.metadata or {}).get("capacity")
        log, watch = self._lane.ticks, self._logs[TICKS]
        first = log.metadata["first"]
        starts = self._lane.starts.metadata["first"]
        if capacity is None:
            for one, found in ((watch, first), (self._logs[STARTS], starts)):
                if found:
                    text = f"first: expected 0 where no capacity is set, found {found:,}"
                    one.note([one.finding("zarr.json", text)])
            return
        floor = episode_index.floor_tick(max(first - CONTEXT_TICKS, 0))
        counts: Callable[[int, int], Ids] = partial(chunk_files.read_rows, log, log.specs["count"])
        expected = episode_index.first_tick(counts, floor, log.head, capacity)
        if expected != first:
            text = (
                f"first: expected {expected:,}, from which on the {capacity:,} transitions of the "
                f"capacity lie, found {first:,}"
            )
            watch.note([watch.finding("zarr.json", text)])
        elif 0 < first < log.head:
            count = int(counts(log.head - 1, log.head)[0]) - int(counts(first - 1, first)[0])
            n_oldest = int(counts(first, first + 1)[0]) - int(counts(first - 1, first)[0])
            if count + self._lane.width <= capacity and n_oldest:
                text = (
                    f"older ticks were evicted, though {count:,} transitions are fewer than the "
                    f"capacity of {capacity:,}: was it raised since, or were ticks lost to damage?"
                )
                self._watch.warnings.append(watch.finding("zarr.json", text))
