"""The episodes of a lane: those that are over, by number, and the few that are not whole yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.finals import LaneFinals
from mmreplay.ids import Ids

_NONE = np.empty(0, np.int64)
_FEW = 64

EPISODE_DTYPE = np.dtype(
    [
        ("id", "int64"),
        ("length", "int64"),
        ("return", "float64"),
        ("terminated", "bool"),
        ("truncated", "bool"),
    ]
)
"""One row an episode: id of its first step, steps, sum of rewards, how it ended."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneEpisodes:
    """The episodes of one lane with steps that can be sampled, as they are now.

    Finished ones have numbers, their rows in the log of finals. Those that run, or whose oldest
    steps cannot be sampled any more, are listed one by one.

    Attributes:
        stride: from the id of a step to that of the next one of its episode.
        known: the smallest number that is still known.
        start, stop: the numbers of finished episodes.
        cut: (n,) those among them, ascending, that are in the list, and count only there.
        firsts: (n,) indices in the list to ids of the oldest steps that can be sampled. Call it,
            and `whole`, before the index changes.
        steps: (m,) number of steps from there on; 0 for entries without an episode.
        whole: gives (m,) bool, whether these are all steps of the episode.
        place: index of the dummy entry that stands for all finished episodes.
    """

    stride: int
    known: int
    start: int
    stop: int
    cut: Ids
    firsts: Callable[[Ids], Ids]
    steps: Ids
    whole: Callable[[], npt.NDArray[np.bool_]]
    place: int


def lane_episodes(
    finals: LaneFinals, window: tuple[int, int], newest: Ids, oldest: Ids
) -> LaneEpisodes | None:
    """The episodes in rows [first, head) of a lane, with ids as in lane 0; None if one is missing.

    `newest` and `oldest` are the `step` of the entries of rows head - 1 and first. The list holds
    the dummy entry, one entry per environment, of 0 steps if none runs, then those that are cut.
    """
    first, head = window
    n = finals.n
    start = finals.from_row(first)
    counts, runs = newest.copy(), newest > head - first
    cut = _NONE
    if newest.size:
        over = finals.newest()
        counts[over] = 0
        runs[over] = False
        np.minimum(counts, head - first, out=counts)
        wanted = int(np.count_nonzero(oldest > 1) - np.count_nonzero(runs))
        if wanted:
            cut = _cut(finals.firsts[start - finals.base :], first * n, wanted)
            if cut.size != wanted:
                return None
    lasts = finals.ids[cut + (start - finals.base)]
    n_listed = 1 + newest.size
    steps = np.zeros(n_listed + cut.size, np.int64)
    steps[1:n_listed] = counts
    steps[n_listed:] = lasts // n - (first - 1)

    def firsts(places: Ids) -> Ids:
        runs = (places >= 1) & (places < n_listed)
        begins = np.where(runs, head - steps[places], first) * n
        some, cuts = runs.nonzero()[0], (places >= n_listed).nonzero()[0]
        begins[some] += places[some] - 1
        begins[cuts] += lasts[places[cuts] - n_listed] % n
        return begins

    def whole() -> npt.NDArray[np.bool_]:
        out = np.ones(steps.size, np.bool_)
        np.logical_not(runs, out=out[1:n_listed])
        out[n_listed:] = False
        return out

    return LaneEpisodes(n, finals.base, start, finals.stop, cut + start, firsts, steps, whole, 0)


def _cut(firsts: Ids, first: int, wanted: int) -> Ids:
    """The indices of the `wanted` episodes that began before an entry; near the front as a rule."""
    found, size, low = _NONE, max(2 * wanted, _FEW), 0
    while low < firsts.size and found.size < wanted:
        here = (firsts[low : low + size] < first).nonzero()[0] + low
        found = np.concatenate((found, here))
        low, size = low + size, 2 * size
    return found[:wanted]
