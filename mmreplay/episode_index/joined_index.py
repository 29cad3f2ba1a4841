"""`JoinedIndex`: lanes of both kinds, or several vector lanes, as one.

Invariant: an answer is what the index of each lane gives for its part; only lanes' numbers differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.episodes import LaneEpisodes
from mmreplay.episode_index.row_index import RowIndex
from mmreplay.episode_index.steps import Span, Steps
from mmreplay.episode_index.tick_index import TickIndex
from mmreplay.ids import LANE_SHIFT, Ids


class JoinedIndex:
    """Several indices, each with the numbers of its lanes among all, ascending."""

    def __init__(self, parts: Sequence[tuple[RowIndex | TickIndex, Sequence[int]]]) -> None:
        self._parts = [part for part, _ in parts]
        self._lanes = [np.array(lanes, np.int64) for _, lanes in parts]
        self.n_lanes = sum(len(lanes) for _, lanes in parts)
        # Of each lane its part, and its number there.
        self._part_of = np.empty(self.n_lanes, np.int64)
        self._local = np.empty(self.n_lanes, np.int64)
        for number, lanes in enumerate(self._lanes):
            self._part_of[lanes], self._local[lanes] = number, np.arange(lanes.size)
        # What to add to an id, by its lane, for the id in its part.
        self._inward = (self._local - np.arange(self.n_lanes)) << LANE_SHIFT
        ticks = [isinstance(part, TickIndex) for part in self._parts]
        # To the places of starts: part 1 of a vector lane alone.
        self._starts = (self.n_lanes - 1 + np.cumsum(ticks) - 1) << LANE_SHIFT

    # ------------------------------------------------------------ transitions

    @property
    def version(self) -> int:
        """See `Index`."""
        return sum(part.version for part in self._parts)

    @property
    def n_transitions(self) -> int:
        """See `Index`."""
        return sum(part.n_transitions for part in self._parts)

    def n_transitions_of(self, n_lanes: int) -> int:
        """See `Index`."""
        pairs = zip(self._parts, self._lanes, strict=True)
        return sum(part.n_transitions_of(int(lanes.searchsorted(n_lanes))) for part, lanes in pairs)

    def _of(self, lane: int) -> tuple[RowIndex | TickIndex, int]:
        return self._parts[self._part_of[lane]], int(self._local[lane])

    def window(self, lane: int) -> tuple[int, int, int]:
        """See `Index`."""
        part, local = self._of(lane)
        return part.window(local)

    def extent(self, lane: int) -> tuple[int, int]:
        """See `Index`."""
        part, local = self._of(lane)
        return part.extent(local)

    def present(self, lane: int, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """See `Index`."""
        part, local = self._of(lane)
        return part.present(local, start, stop)

    def at(self, ranks: Ids) -> Ids:
        """See `Index`: ranks go through the parts, one after the other."""
        bounds = np.cumsum([0, *(part.n_transitions for part in self._parts)])
        numbers = bounds.searchsorted(ranks, "right") - 1
        out = np.empty_like(ranks)
        for number in range(len(self._parts)):
            here = (numbers == number).nonzero()[0]
            if here.size:
                ids = self._parts[number].at(ranks[here] - bounds[number])
                out[here] = self._outward(number, ids)
        return out

    def _outward(self, number: int, ids: Ids) -> Ids:
        """The ids among all lanes of those in a part."""
        lanes = self._lanes[number][ids >> LANE_SHIFT]
        out: Ids = ids - self._inward[lanes]
        return out

    def ids(self) -> Ids:
        """See `Index`."""
        parts = [self._outward(n, part.ids()) for n, part in enumerate(self._parts)]
        return np.sort(np.concatenate(parts))

    def _split(self, ids: Ids) -> Iterator[tuple[int, Ids, Ids]]:
        """Of each part with any of these ids: its number, which they are, and their ids there."""
        lanes = ids >> LANE_SHIFT
        numbers = self._part_of[lanes]
        for number in range(len(self._parts)):
            here = (numbers == number).nonzero()[0]
            if here.size:
                yield number, here, ids[here] + self._inward[lanes[here]]

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """See `Index`."""
        out = np.ones(ids.shape, np.bool_)
        known = ((ids >= 0) & (ids >> LANE_SHIFT < self.n_lanes)).nonzero()[0]
        for number, here, local in self._split(ids[known]):
            out[known[here]] = self._parts[number].invalid(local)
        return out

    # ------------------------------------------------------------ neighbours in episodes

    def steps(self, ids: Ids, ahead: int, *, back: bool) -> Steps:  # noqa: ARG002 (always asked for)
        """See `Index`."""
        joined = _Joined(ids)
        for number, here, local in self._split(ids):
            part = self._parts[number].steps(local, ahead, back=True)
            joined.put(here, part, int(self._starts[number]))
            joined.put_ends(here, part)
        return joined.steps(one_step=ahead == 1)

    def span(self, ids: Ids) -> Span:
        """See `Index`."""
        joined, oldest = _Joined(ids), np.empty_like(ids)
        for number, here, local in self._split(ids):
            part = self._parts[number].span(local)
            joined.put(here, part.steps, int(self._starts[number]))
            oldest[here] = part.oldest
        return Span(joined.steps(one_step=False), joined.back, oldest, joined.left)

    # ------------------------------------------------------------ episodes

    def episodes(self, lane: int) -> LaneEpisodes:
        """See `Index`."""
        part, local = self._of(lane)
        found, inward = part.episodes(local), self._inward[lane]
        return dataclasses.replace(found, firsts=lambda places: found.firsts(places) - inward)

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:
        """See `Index`."""
        part, local = self._of(lane)
        firsts, steps = part.ended(local, numbers)
        return firsts - self._inward[lane], steps


class _Joined:
    """`Steps` of several parts, put together."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._stride, self._lag, self._starts = (np.empty_like(ids) for _ in range(3))
        self.back, self.left = np.empty_like(ids), np.ones_like(ids)
        self._until: Ids | None = None
        self._running: npt.NDArray[np.bool_] | None = None

    def put(self, here: Ids, part: Steps, shift: int) -> None:
        """Put those of one part; `shift` goes to the places of its starts."""
        self._stride[here], self._lag[here] = part.stride, part.lag
        self.back[here] = part.back  # type: ignore[assignment]
        if part.left is not None:
            self.left[here] = part.left
        if part.starts is None:  # an episode's first frame is that of its first row
            self._starts[here] = self._ids[here] - self.back[here]
        else:
            self._starts[here] = part.starts + shift

    def put_ends(self, here: Ids, part: Steps) -> None:
        """Put what those of one part know of the ends of their episodes."""
        if self._until is None:
            self._until = np.zeros_like(self._ids)
        self._until[here] = part.until  # type: ignore[assignment]
        if part.running is not None:
            if self._running is None:
                self._running = np.zeros(self._ids.shape, np.bool_)
            self._running[here] = part.running

    def steps(self, *, one_step: bool) -> Steps:
        """All of them."""
        left = None if one_step else self.left
        ends = self._until, self._running
        return Steps(self._ids, self._stride, self._lag, self._starts, self.back, left, *ends)
