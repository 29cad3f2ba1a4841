"""The rules of "Vector lanes" in docs/format.md, each broken once: the simulator has to see each.

Invariant: as of mutants.py; and each is noticed by what it breaks, as its pattern says.

Rules that no history can break, as it has one thread and its disk no errors, have tests of their
own that go red without them:

- that a reader takes the ticks' head first: tests/unit/reading/test_vector_reader.py;
- that starts are evicted by the base of ticks that is durable, as 64 more of them are kept:
  tests/unit/writing/test_kept_rows.py;
- that ticks are not trusted where starts are not, and that a failed fsync of starts distrusts both:
  tests/unit/writing/test_vector_writer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmreplay.ids import Ids
from mmreplay.reading import episodes
from mmreplay.reading.lane_ticks import LaneTicks
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.schema import Field
from mmreplay.storage import priority_column
from mmreplay.storage.priority_column import PriorityColumn
from mmreplay.storage.state_page import COMMITTED
from mmreplay.writing import flush
from mmreplay.writing.kept_rows import StartRows
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log
from mmreplay.writing.vector_writer import VectorWriter
from tests.support.oracle.layout import Layout
from tests.support.power_cut.layouts import VECTOR_LAYOUTS, VectorLayout
from tests.support.power_cut.mutation import (
    Change,
    Mutant,
    before,
    breaking,
    changed,
    during,
    nothing,
    with_flushed,
)

__all__ = ["MUTANTS"]

MUTANTS: dict[str, Mutant] = {}
_EVICTING = [one for one in VECTOR_LAYOUTS if one.layout.capacity is not None]
_SEVERAL = [one for one in VECTOR_LAYOUTS if one.width > 1]
_PRIORITIES = [one for one in VECTOR_LAYOUTS if one.has_priorities]
# With more starts than are kept as context below the oldest one that is needed.
_MANY_STARTS = [
    VectorLayout(
        Layout(Field((2,), "uint8", "raw", 9), Field((), "int64", chunk=8), {}, capacity=16), 8
    )
]
# With so many cells that a page of priorities is of few ticks.
_WIDE = [
    VectorLayout(
        Layout(Field((1,), "uint8", "raw", 9), Field((), "int64", chunk=8), {}, capacity=32),
        32,
        has_priorities=True,
    )
]
_LOST_START = "is of episode|expected one of the starts|expected episodes of the starts"


def _breaks(
    rule: str,
    noticed: str,
    layouts: Sequence[VectorLayout] = VECTOR_LAYOUTS,
    *,
    others: bool | None = None,
) -> Callable[[Callable[[], list[Change]]], Callable[[], list[Change]]]:
    return breaking(MUTANTS, rule, layouts, others=others, noticed=noticed)


# ------------------------------------------------------------ starts and ticks


@_breaks("flush: the starts, then the ticks", _LOST_START)
def _ticks_flushed_first() -> list[Change]:
    def flush_rows(lane: LockedLane) -> None:
        for log, head in [(log, log.head) for log in reversed(lane.logs)]:
            if not log.closed:
                flush._flush_log(lane, log, head)

    return [(flush, "flush_rows", flush_rows)]


@_breaks("flush: the ticks up to the head that was noted before the starts", _LOST_START)
def _ticks_counted_after_the_starts() -> list[Change]:
    def flush_rows(lane: LockedLane) -> None:
        for log in lane.logs:
            if not log.closed:
                flush._flush_log(lane, log, log.head)

    return [(flush, "flush_rows", flush_rows)]


@_breaks("reset: starts are committed before a tick names them", _LOST_START)
def _starts_committed_with_the_next_ones() -> list[Change]:
    real = VectorWriter._append_starts

    def append(self: VectorWriter, *args: Any) -> int:
        words = self._starts.log.words
        words[COMMITTED] = max(getattr(self, "late", 0), words[COMMITTED])
        first = real(self, *args)
        self.late = words[COMMITTED]  # type: ignore[attr-defined]
        words[COMMITTED] = first
        return first

    return [(VectorWriter, "_append_starts", append)]


@_breaks(
    "evict: starts only below those that the oldest kept tick names", _LOST_START, _MANY_STARTS
)
def _starts_evicted_by_their_number() -> list[Change]:
    return [(StartRows, "first_row", lambda _, head: head)]


@_breaks("episodes: a start counts only if its cell names it", "episodes: id")
def _starts_without_a_step_counted() -> list[Change]:
    def begun(_: VectorReader, ticks: LaneTicks, first: int, head: int) -> Ids:
        numbers = np.arange(*ticks.starts)
        begins = ticks.start_ticks(numbers)
        out: Ids = numbers[(begins >= first) & (begins < head)]
        return out

    return [(episodes, "_begun", begun)]


# ------------------------------------------------------------ ticks


@_breaks("step: all values, then committed", "differ|disagree|verify found")
def _tick_committed_before_its_values() -> list[Change]:
    def commit(writer: VectorWriter, *_: Any, **__: Any) -> None:
        writer._prepare()
        writer._words[COMMITTED] = writer._head + 1
        if not writer.files.flush_lock.locked():  # as the thread that flushes may at this moment
            writer._session._timed_flush.flush_in_background(timer=True)

    return [before(VectorWriter, "step", commit)]


def _not_ending(name: str) -> list[Change]:
    """A call that leaves `ends` as they are."""
    real = VectorWriter._settle

    def settle(self: VectorWriter) -> None:
        ends = self._head and self._ticks.chunks.stored_row("ends", self._head - 1)
        kept = np.copy(ends)
        real(self)
        if self._head:
            ends[...] = kept

    return [during(VectorWriter, name, (VectorWriter, "_settle", settle))]


@_breaks("opening: `ends` of all episodes that had not ended", "ends from tick")
def _episodes_left_running_at_an_opening() -> list[Change]:
    return _not_ending("_attach")


@_breaks("reset: `ends` of the running episodes that it ends", "ends from tick")
def _episodes_left_running_at_a_reset() -> list[Change]:
    return _not_ending("reset")


@_breaks("flush: the newest tick of the last one too, whose `ends` may be set since", "ends from")
def _ends_of_the_last_flush_forgotten() -> list[Change]:
    return with_flushed(lambda log, _: log.flushed + 1)


@_breaks("count: goes on from that of the newest tick", "ids: |count", _SEVERAL)
def _count_taken_from_the_ticks() -> list[Change]:
    def count(writer: VectorWriter) -> None:
        writer._count_before = writer._head * len(writer)

    real = VectorWriter._cache_columns

    def cache(self: VectorWriter) -> None:
        real(self)
        count(self)

    return [(VectorWriter, "_cache_columns", cache)]


@_breaks("base: 65 ticks below the oldest that may be sampled", "base: expected", _EVICTING)
def _a_tick_of_context_evicted() -> list[Change]:
    def base_of(log: Log, first: int) -> int:
        return max(log.base, first - 64)

    return [(flush, "_base_of", base_of)]


# ------------------------------------------------------------ environments that are left out


def _leaving_out(change: Callable[[VectorWriter, int, Ids], tuple[int, Ids]]) -> list[Change]:
    """What a function makes of the number of steps and the row of episodes of a tick."""
    real = VectorWriter._leave_out

    def leave_out(self: VectorWriter, t: int, absent: Any) -> tuple[int, Ids]:
        return change(self, *real(self, t, absent))

    return [(VectorWriter, "_leave_out", leave_out)]


@_breaks("left out: all values are zero", r"(frames|actions|rewards).* from tick|zeros", _SEVERAL)
def _values_of_those_left_out_kept() -> list[Change]:
    real = VectorWriter._leave_out

    def leave_out(self: VectorWriter, t: int, absent: Any) -> tuple[int, Ids]:
        with changed([(self, "_cells", ())]):
            return real(self, t, absent)

    return [(VectorWriter, "_leave_out", leave_out)]


@_breaks("left out: is no transition, and not in `count`", "count|ids: ", _SEVERAL)
def _those_left_out_counted() -> list[Change]:
    return _leaving_out(lambda writer, _, row: (len(writer), row))


@_breaks("left out: names the step that takes its number", "the step that is theirs", _SEVERAL)
def _those_left_out_without_a_partner() -> list[Change]:
    return _leaving_out(lambda _, n, row: (n, np.maximum(row, -1)))


# ------------------------------------------------------------ priorities


@_breaks(
    "priorities: chunk files go with those of the ticks",
    "priorities: chunk",
    _WIDE,
    others=False,
)
def _priorities_of_evicted_ticks_kept() -> list[Change]:
    return [(priority_column, "evict", nothing)]


@_breaks(
    "priorities: zero past the head after an opening", "past the head", _PRIORITIES, others=False
)
def _priorities_of_lost_ticks_kept() -> list[Change]:
    return [(priority_column, "_clear", nothing)]


@_breaks("priorities: the newest tick may have some", "priority of cell", _PRIORITIES, others=False)
def _priorities_of_the_newest_tick_zeroed() -> list[Change]:
    return [(priority_column, "_n_prioritized", lambda head, _: max(head - 1, 0))]


@_breaks("flush: priorities durably", "priority of cell", _PRIORITIES, others=False)
def _priorities_unsynced() -> list[Change]:
    return [(PriorityColumn, "sync", nothing)]
