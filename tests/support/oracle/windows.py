"""Sequences worked out naively from the model: which windows there are, and what each one shows.

Invariant: nothing here is shared with the samplers or the gather; windows are found by trying every
row, and each step of each window is what the model says of that transition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.sequences import SequenceBatch
from mmreplay.schema import FRAME
from tests.support.oracle.checks import check_same
from tests.support.oracle.model import LANE_SHIFT, LaneModel, Model, usual_stack

__all__ = ["Kept", "check_sequences", "kept_episodes", "window_starts"]

Array = npt.NDArray[Any]
ROW_MASK = (1 << LANE_SHIFT) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """What can be sampled of one episode.

    Attributes:
        lane: its number.
        start: row of its reset.
        rows: its transitions that can be sampled, ascending.
        whole: whether these are all it has.
    """

    lane: int
    start: int
    rows: list[int]
    whole: bool


def kept_episodes(model: Model) -> list[Kept]:
    """All episodes of a step or more that can be sampled, in the order of lanes and rows."""
    out = []
    for number, lane in enumerate(model.lanes):
        offered = lane.transitions()
        for start, stop in lane.spans():
            rows = [row for row in offered if start <= row < stop]
            if rows:
                out.append(Kept(number, start, rows, rows[0] == start))
    return out


def window_starts(
    model: Model, length: int, burn_in: int = 0, boundary: str = "drop", stride: int = 1
) -> list[int]:
    """Ids of the first steps after the burn-in of every window, ascending."""
    out = []
    for kept in kept_episodes(model):
        found = set()
        offered = set(kept.rows)
        for offset in range(0, len(kept.rows), stride):
            begin = kept.rows[offset]
            if boundary == "pad":
                found.add(begin)
                continue
            rows = range(begin, begin + burn_in + length)
            if all(row in offered for row in rows):
                found.add(begin + burn_in)
        if boundary == "shift":
            # The last `length` steps, and the burn-in that there is before them.
            found.add(kept.rows[max(len(kept.rows) - length, 0)])
        out += [kept.lane << LANE_SHIFT | row for row in sorted(found)]
    return out


def check_sequences(
    found: SequenceBatch,
    model: Model,
    starts: Sequence[int],
    length: int,
    burn_in: int = 0,
    *,
    begins_are_known: bool = False,
    **settings: Any,
) -> None:
    """Every step of every window is what the model says.

    Args:
        found: to be checked.
        model: of the store as it was.
        starts: ids of the first steps after the burn-in.
        length: steps after the burn-in.
        burn_in: steps before them.
        begins_are_known: the store has seen every reset, so that it can number every step.
        settings: keywords of `Store.transitions`.

    Raises:
        AssertionError: they differ.
    """
    shape = len(starts), burn_in + length
    if found.burn_in != burn_in or len(found) != len(starts):
        raise AssertionError(f"expected {len(starts)} windows, found {len(found)}")
    episodes = {
        kept.lane << LANE_SHIFT | row: kept for kept in kept_episodes(model) for row in kept.rows
    }
    ids = np.full(shape, -1, np.int64)
    step, first = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    pads = []
    for number, start in enumerate(starts):
        kept = episodes[start]
        begin = (start & ROW_MASK) - burn_in
        for time in range(shape[1]):
            row, place = begin + time, (number, time)
            if not kept.rows[0] <= row <= kept.rows[-1]:
                pads.append((place, kept, row, max(begin, kept.rows[0])))
                continue
            ids[place] = kept.lane << LANE_SHIFT | row
            first[place] = row == kept.start
            if kept.whole or begins_are_known or found.step[place] != -1:
                step[place] = row - kept.start
            else:
                step[place] = -1
    mask = ids >= 0
    check_same(found.weight, np.ones(len(starts), np.float32), "weight")
    check_same(found.id, ids, "id")
    check_same(found.mask, mask, "mask")
    check_same(found.first, first, "first")
    check_same(found.step, step, "step")

    # Each transition is asked of the model once, in however many windows it is.
    distinct, which = np.unique(ids[mask], return_inverse=True)
    batch = model.batch(distinct, **settings)

    def spread(column: Array) -> Array:
        out = np.zeros((*shape, *column.shape[1:]), column.dtype)
        out[mask] = column[which]
        return out

    for name in ("reward", "discount", "non_terminal", "action"):
        check_same(getattr(found, name), spread(getattr(batch, name)), name)
    check_same(found.extras, {name: spread(one) for name, one in batch.extras.items()}, "extras")
    for name, ahead in (("observation", 0), ("next_observation", 1)):
        given = getattr(batch, name)
        expected = {
            key: spread(one)
            for key, one in (given if isinstance(given, dict) else {FRAME: given}).items()
        }
        padding = _Padding(model, settings)
        for place, kept, row, oldest in pads:
            for key, one in expected.items():
                one[place] = padding.stack(kept, row + ahead, oldest, key)
        check_same(
            getattr(found, name), expected if isinstance(given, dict) else expected[FRAME], name
        )


class _Padding:
    """What stands where a window has no step: frames that a real step shows as well, and zeros."""

    def __init__(self, model: Model, settings: dict[str, Any]) -> None:
        self._model = model
        self._size = settings.get("stack", usual_stack(model.schema))
        self._axis = settings.get("stack_axis", 0)
        self._padding = settings.get("padding", "reset")
        self._known: dict[tuple[int, int, int, str], Array] = {}

    def stack(self, kept: Kept, newest: int, oldest: int, key: str) -> Array:
        """Frames of the rows up to `newest`.

        Args:
            kept: the episode.
            newest: row of the newest frame of the stack.
            oldest: first step of the window that is one.
            key: of the frames.
        """
        place = kept.lane << LANE_SHIFT | kept.start, newest, oldest, key
        if place not in self._known:
            size = self._size or 1
            lane = self._model.lanes[kept.lane]
            blank = np.zeros_like(lane.rows[0].frame[key])
            frames = [
                self._frame(lane, kept, row, key)
                if oldest - size + 1 <= row <= kept.rows[-1] + 1
                else blank
                for row in range(newest - size + 1, newest + 1)
            ]
            self._known[place] = _joined(frames, self._size, self._axis)
        return self._known[place]

    def _frame(self, lane: LaneModel, kept: Kept, row: int, key: str) -> Array:
        if row >= kept.start:
            return lane.rows[row].frame[key]
        first = lane.rows[kept.start].frame[key]
        return first if self._padding == "reset" else np.zeros_like(first)


def _joined(frames: list[Array], stack: int | None, axis: int) -> Array:
    images = 3
    if stack is None:
        return frames[-1]
    if axis == 0:
        return np.stack(frames)
    return np.concatenate(frames, -1) if frames[0].ndim == images else np.stack(frames, -1)
