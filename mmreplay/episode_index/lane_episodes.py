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
    """The episodes of one lane of which steps can be sampled, as they are now.

    Those that are over have numbers, their rows in the log of finals, in the order in which they
    ended; what they are never changes. Those that still run, or of which the oldest steps
    cannot be sampled any more, are listed one by one.

    Attributes:
        stride: from the id of a step to that of the next one of its episode.
        known: the smallest number of which anything is known.
        start, stop: numbers of the episodes that are over and count.
        cut: (n,) numbers among these, ascending, of episodes that are in the list as well: they do
            not count here.
        firsts: of places in the list, (n,), the ids of the oldest steps that can be sampled: few
            are asked for. To be called before the index changes.
        steps: (m,) how many steps there are from it on; 0 where no episode stands.
        whole: gives (m,) bool, whether these are all steps that the episode has had. Called like
            `firsts`.
        place: the one in the list, of no step, that all those of [start, stop) stand in place of.
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
    """The episodes in rows [first, head) of a lane, with its own ids, without the lane in them.

    `newest` and `oldest` are the `step` of the entries of rows head - 1 and first; empty if there
    are no rows. The list holds the episodes that are over, then one per environment: the one that
    runs, or one of 0 steps. After them come those that are cut. None if one of those is missing.
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
