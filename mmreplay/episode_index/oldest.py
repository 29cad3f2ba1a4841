"""The oldest row, or tick, that may be sampled: what a capacity leaves.

Invariant: writer and reader ask the same functions, so they agree on what may go.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import numpy as np

from mmreplay.format.layout import CONTEXT_ROWS, CONTEXT_TICKS
from mmreplay.ids import Ids


def floor_row(base: int) -> int:
    """The oldest row that may be sampled when rows below `base` are gone: its stack is whole."""
    return base + CONTEXT_ROWS if base else 0


def floor_tick(base: int) -> int:
    """The oldest tick that may be sampled when ticks below `base` are gone: as `floor_row`."""
    return base + CONTEXT_TICKS if base else 0


def first_row(starts: Ids, floor: int, head: int, capacity: int | None) -> int:
    """The oldest row such that at most `capacity` transitions lie from it to `head`.

    `starts`: rows with a reset, ascending; no row below `floor` counts, and all from there on do if
    `capacity` is None.
    """
    if capacity is None or head <= floor:
        return min(floor, head)
    below = int(starts.searchsorted(floor, "right"))
    excess = max(head - 1 - floor, 0) - (len(starts) - below) - capacity
    if excess <= 0:
        return floor
    # The excess-th transition from `floor` is the last one to go.
    ranks = starts[below:] - np.arange(1, len(starts) - below + 1)
    rank = floor + excess - 1
    return rank + int(ranks.searchsorted(rank, "right")) + 1


def first_tick(
    counts: Callable[[int, int], Ids], floor: int, head: int, capacity: int | None
) -> int:
    """The oldest tick such that at most `capacity` transitions lie from it to `head`.

    `counts(start, stop)` gives, of each of these ticks, the transitions up to it, itself included;
    no tick below `floor` counts, and all from there on do if `capacity` is None.
    """
    if capacity is None or head <= floor:
        return min(floor, head)
    too_many = int(counts(head - 1, head)[0]) - capacity

    def before(tick: int) -> int:
        return int(counts(tick - 1, tick)[0]) if tick else 0

    # As a rule it is not far: each tick that comes takes one away.
    stop, step = floor, 1
    while stop < head and before(stop) < too_many:
        floor, stop, step = stop + 1, min(stop + step, head), 2 * step
    return bisect.bisect_left(range(stop), too_many, lo=floor, key=before)
