"""Sequences worked out naively from the model: which windows there are, and what each one shows.

Invariant: nothing here is shared with the samplers or the gather; windows are found by trying every
row, and each step of each window is asked of the model by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.sequences import SequenceBatch
from mmreplay.testing.checks import check_same
from mmreplay.testing.model import LANE_SHIFT, LaneModel, Model

__all__ = ["Kept", "check_sequences", "kept_episodes", "window_starts"]

Array = npt.NDArray[Any]


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
    steps = burn_in + length
    if found.burn_in != burn_in or len(found) != len(starts):
        raise AssertionError(f"expected {len(starts)} windows, found {len(found)}")
    check_same(found.weight, np.ones(len(starts), np.float32), "weight")
    episodes = kept_episodes(model)
    for number, start in enumerate(starts):
        lane, row = divmod(int(start), 1 << LANE_SHIFT)
        kept = next(one for one in episodes if one.lane == lane and row in one.rows)
        for time in range(steps):
            here = row - burn_in + time
            what = f"window {number} at {start}, step {time}"
            if here in kept.rows:
                _check_step(found, (number, time), model, kept, here, what, settings)
                at = int(found.step[number, time])
                if at != here - kept.start and (kept.whole or begins_are_known or at != -1):
                    raise AssertionError(f"{what}: found step {at}")
            else:
                _check_no_step(found, (number, time), what)
                first = max(row - burn_in, kept.rows[0])
                _check_padding(found, (number, time), model, kept, here, first, what, settings)


def _each(found: SequenceBatch, place: tuple[int, int]) -> dict[str, Any]:
    names = ("reward", "discount", "non_terminal", "action", "id")
    out: dict[str, Any] = {name: np.asarray(getattr(found, name)[place]) for name in names}
    out["extras"] = {name: np.asarray(one[place]) for name, one in found.extras.items()}
    for name in ("observation", "next_observation"):
        given = getattr(found, name)
        out[name] = (
            {key: one[place] for key, one in given.items()}
            if isinstance(given, dict)
            else given[place]
        )
    return out


def _check_step(
    found: SequenceBatch,
    place: tuple[int, int],
    model: Model,
    kept: Kept,
    row: int,
    what: str,
    settings: dict[str, Any],
) -> None:
    expected = model.batch([kept.lane << LANE_SHIFT | row], **settings)
    for name, one in _each(found, place).items():
        other = getattr(expected, name)
        other = {key: x[0] for key, x in other.items()} if isinstance(other, dict) else other[0]
        check_same(one, other, f"{what}: {name}")
    if not found.mask[place] or bool(found.first[place]) != (row == kept.start):
        raise AssertionError(f"{what}: mask or first are wrong")


def _check_no_step(found: SequenceBatch, place: tuple[int, int], what: str) -> None:
    if found.id[place] != -1 or found.mask[place] or found.first[place] or found.step[place]:
        raise AssertionError(f"{what}: expected none")
    for name in ("reward", "discount", "non_terminal", "action"):
        one = getattr(found, name)[place]
        check_same(one, np.zeros_like(one), f"{what}: {name}")
    for name, column in found.extras.items():
        check_same(column[place], np.zeros_like(column[place]), f"{what}: {name}")


def _check_padding(
    found: SequenceBatch,
    place: tuple[int, int],
    model: Model,
    kept: Kept,
    row: int,
    first: int,
    what: str,
    settings: dict[str, Any],
) -> None:
    """Frames that a real step shows as well, and zeros."""
    stack, axis = settings.get("stack", 4), settings.get("stack_axis", 0)
    padding = settings.get("padding", "reset")
    size = stack or 1
    lane = model.lanes[kept.lane]
    for name, ahead in (("observation", 0), ("next_observation", 1)):
        newest = row + ahead
        rows = range(newest - size + 1, newest + 1)
        for key in model.schema.frames:
            frames = [
                _frame(lane, kept, one, key, padding)
                if first - size + 1 <= one <= kept.rows[-1] + 1
                else np.zeros_like(lane.rows[0].frame[key])
                for one in rows
            ]
            given = getattr(found, name)
            given = given[key] if isinstance(given, dict) else given
            check_same(given[place], _joined(frames, stack, axis), f"{what}: {name} {key}")


def _frame(lane: LaneModel, kept: Kept, row: int, key: str, padding: str) -> Array:
    if row >= kept.start:
        return lane.rows[row].frame[key]
    first = lane.rows[kept.start].frame[key]
    return first if padding == "reset" else np.zeros_like(first)


def _joined(frames: list[Array], stack: int | None, axis: int) -> Array:
    images = 3
    if stack is None:
        return frames[-1]
    if axis == 0:
        return np.stack(frames)
    return np.concatenate(frames, -1) if frames[0].ndim == images else np.stack(frames, -1)
