"""Draws of transitions, of windows of steps, and of whole episodes.

Invariants:
- All transitions, windows or episodes of an index are equally likely, with one draw each: none is
  rejected. The same random numbers give the same ones of the same index.
- The id of the first step after its burn-in identifies a window. Of a selection, only windows whose
  steps to learn from are all selected are drawn, and only episodes whose steps are all selected.
- Windows of columns are drawn by their one step; all around it is read and not drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.episode_index import Index, Transitions
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.sampling.episode_sums import Counted, EpisodeSums, RowSums, SelectedSums, sums_over
from mmreplay.sampling.epoch import Blocks
from mmreplay.sampling.selection import Selection

BOUNDARIES = ("drop", "pad", "shift", "cross")
_LONGEST = 1 << 20  # of a window: its times are kept in memory


def check_not_empty(index: Transitions) -> int:
    """How many transitions there are; EmptyBufferError if there is none."""
    count = index.n_transitions
    if not count:
        raise EmptyBufferError("there is no transition yet; a transition needs a reset and a step")
    return count


def uniform_ids(index: Transitions, draws: npt.NDArray[np.float64]) -> Ids:
    """One transition for each draw in [0, 1): int64 (B,); raises as `check_not_empty`."""
    # The product never rounds up to the count, and each transition's share is right to one part in
    # 2^53. `Generator.integers` costs three times as much.
    count = index.n_transitions or check_not_empty(index)
    return index.at((draws * count).astype(np.int64))


def distinct_ids(index: Transitions, size: int, seed: int) -> Ids:
    """Ids of distinct transitions, in any order: int64 (size,); SchemaError if there are fewer."""
    return index.at(distinct_ranks(check_not_empty(index), size, seed, "transitions"))


def distinct_ranks(total: int, size: int, seed: int, what: str) -> Ids:
    """Distinct numbers in [0, total): int64 (size,); SchemaError if there are fewer."""
    if size > total:
        raise SchemaError(
            f"expected at most the {total:,} {what} there are, as each is drawn once; found "
            f"{size:,}; draw fewer, or with replacement"
        )
    # A generator per draw: the total is known only when the store is read, and may differ when it
    # is read again.
    return np.random.default_rng(seed).choice(total, size, replace=False)


def grouped_ids(index: Transitions, blocks: Blocks, n_groups: int, group: int, seed: int) -> Ids:
    """Ids of `n_groups` groups of one block each, one after the other: (n_groups * group,).

    A block is drawn in proportion to its transitions; those of a group are distinct unless its
    block has fewer. Raises as `check_not_empty`.
    """
    random = np.random.default_rng(seed)
    members = blocks.members(blocks.keys(uniform_ids(index, random.random(n_groups))))
    absent = index.invalid(members.reshape(-1)).reshape(members.shape)
    order = random.random(members.shape)
    order[absent] = 1  # behind all others
    shuffled = order.argsort(1, kind="stable")
    # If there are too few, they repeat from the first on, which is random.
    turns = np.arange(group) % (~absent).sum(1)[:, None]
    chosen = np.take_along_axis(shuffled, turns, 1)
    return np.take_along_axis(members, chosen, 1).reshape(-1)


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """Which windows an episode has; see `sample_sequences`. SchemaError for an invalid value.

    With `beyond` they are those of one step, the one drawn: in its episode there are `burn_in`
    steps before it, which may have been evicted, and `beyond` steps after it.
    """

    length: int
    burn_in: int = 0
    boundary: str = "drop"
    stride: int = 1
    beyond: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("burn_in", 0), ("stride", 1)):
            given = whole_number(name, getattr(self, name), least, _LONGEST)
            object.__setattr__(self, name, given)
        if self.boundary not in BOUNDARIES:
            raise SchemaError(
                f"boundary: expected 'drop', 'pad', 'shift' or 'cross', found {self.boundary!r:.80}"
            )

    def arguments(self) -> dict[str, Any]:
        """As `sample_sequences` takes them."""
        return {name: getattr(self, name) for name in ("length", "burn_in", "boundary", "stride")}

    @property
    def steps(self) -> int:
        """T: those of the burn-in, `length`, and those beyond."""
        return self.burn_in + self.length + (self.beyond or 0)

    def count(self, steps: Ids) -> Ids:
        """Windows per episode, from its number of steps: int64 (n,)."""
        if self.boundary == "pad":
            return np.asarray(-(-steps // self.stride), np.int64)
        if self.stride == 1 and self.boundary == "drop":  # faster for many episodes
            full = steps - (self.steps - 1)
            np.maximum(full, 0, out=full)
            return full
        left = steps - self.steps
        full = left // self.stride + 1
        np.maximum(full, 0, out=full)
        if self.boundary != "shift":
            return full
        # One more where the last one does not end with the episode; one for short episodes.
        shifted = (left % self.stride != 0) & (left > 0)
        return np.asarray(full + (shifted | ((left < 0) & (steps > 0))), np.int64)

    def count_selected(self, steps: Ids, skipped: Ids, kept: Ids) -> Counted:
        """The windows whose steps to learn from are all selected: the first, and how many, (n,).

        Of each episode's `steps`, the `kept` after the first `skipped` are selected.
        """
        every, stop = self.count(steps), skipped + kept
        lead = 0 if self.boundary == "pad" else self.burn_in
        # Windows begin at multiples of the stride.
        low = np.maximum(-(-(skipped - lead) // self.stride), 0)
        high = np.maximum((stop - self.length - lead) // self.stride + 1, 0)
        if self.boundary == "pad":  # the last ones reach past the end of the episode
            high = np.where(stop >= steps, every, high)
            return low, np.maximum(np.minimum(high, every) - low, 0)
        full = np.maximum((steps - self.steps) // self.stride + 1, 0)
        low, high = np.minimum(low, full), np.minimum(high, full)
        out = np.maximum(high - low, 0)
        if self.boundary == "shift":  # one more window ends with the episode
            begins = np.maximum(steps - self.length, 0)
            out += (every > full) & (skipped <= begins) & (stop >= steps)
        return low, out

    def offset(self, steps: Ids, number: Ids) -> Ids:
        """Steps before the first one after the burn-in, (B,), of windows `number` (B,), from 0.

        `steps` is the number of steps of the episode that can be sampled.
        """
        begins = number * self.stride
        if self.boundary == "pad":
            return begins
        begins += self.burn_in
        if self.boundary == "shift":
            begins = np.maximum(np.minimum(begins, steps - self.length), 0)
        return np.asarray(begins)


class WindowSampler:
    """Draws windows of one kind; raises EmptyBufferError if there are none."""

    def __init__(self, windows: Windows, selection: Selection | None = None) -> None:
        self.windows = windows
        self._sums = sums_over(
            selection,
            windows.count,
            windows.count_selected,
            reach=0 if windows.beyond is None else windows.burn_in,
            across=windows.boundary == "cross",
        )

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """An equally likely window for each draw in [0, 1): int64 (B,)."""
        return self._at((draws * self.total(index)).astype(np.int64))

    def every(self, index: Index) -> Ids:
        """Each window once, ascending: int64 (n,)."""
        return np.sort(self._at(np.arange(self.total(index))))

    def total(self, index: Index) -> int:
        """How many windows there are."""
        return self._sums.follow(index) or _none_of(self.windows, index)

    def _at(self, ranks: Ids) -> Ids:
        firsts, steps, numbers, strides = self._sums.at(ranks)
        return firsts + self.windows.offset(steps, numbers) * strides


class PortionSampler:
    """Draws a whole episode by its length, and a window in it; EmptyBufferError if none fits."""

    def __init__(self, windows: Windows, selection: Selection | None = None) -> None:
        self.windows = windows
        self._sums = _whole_episodes(
            selection, lambda steps: np.where(steps >= windows.length, steps, 0)
        )

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """The first steps of windows, from (2, B) draws of episodes and windows: int64 (B,)."""
        total = self._sums.follow(index) or _none_of(self.windows, index, "whole ")
        firsts, steps, _, strides = self._sums.at((draws[0] * total).astype(np.int64))
        room = steps - self.windows.length + 1
        out: Ids = firsts + (draws[1] * room).astype(np.int64) * strides
        return out


class TrajectorySampler:
    """Draws whole episodes with a step or more; EmptyBufferError if there are none."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._sums = _whole_episodes(selection, lambda steps: np.asarray(steps > 0, np.int64))

    def draw(self, index: Index, draws: npt.NDArray[np.float64]) -> Ids:
        """The ids of the first steps of an episode for each draw in [0, 1): int64 (B,)."""
        return self._sums.at((draws * self._total(index)).astype(np.int64))[0]

    def draw_distinct(self, index: Index, size: int, seed: int) -> Ids:
        """Those of distinct episodes, (size,); SchemaError if there are fewer than `size`."""
        ranks = distinct_ranks(self._total(index), size, seed, "whole episodes")
        return self._sums.at(ranks)[0]

    def _total(self, index: Index) -> int:
        total = self._sums.follow(index)
        if not total:
            raise EmptyBufferError(
                "there is no whole episode to sample: each is without steps, or its oldest steps "
                "were evicted"
            )
        return total


def _whole_episodes(
    selection: Selection | None, weight: Callable[[Ids], Ids]
) -> EpisodeSums | SelectedSums | RowSums:
    """Sums over whole episodes of (n,) steps, whose weights are (n,)."""

    def weigh(steps: Ids, skipped: Ids, kept: Ids) -> Counted:  # noqa: ARG001 (of whole ones)
        return np.zeros_like(steps), weight(steps)

    return sums_over(selection, weight, weigh, whole=True)


def _none_of(windows: Windows, index: Index, kind: str = "") -> NoReturn:
    """Raise EmptyBufferError, as there is no such window."""
    check_not_empty(index)
    is_burnt_in = windows.burn_in and windows.beyond is None
    burn_in = f" (with {windows.burn_in} of burn-in)" if is_burnt_in else ""
    crosses = windows.boundary == "cross"
    what, unit = ("environment", "rows") if crosses else ("episode", "steps")
    raise EmptyBufferError(
        f"no {kind}{what} has the {windows.steps} {unit}{burn_in} of a window; take shorter ones"
        + ("" if kind else ", or boundary='pad'")
    )
