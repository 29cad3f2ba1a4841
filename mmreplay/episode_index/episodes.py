"""The episodes of a lane: those that are over, by number, and the few that are not whole yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Ids

EPISODE_DTYPE = np.dtype(
    [
        ("id", "int64"),
        ("length", "int64"),
        ("return", "float64"),
        ("terminated", "bool"),
        ("truncated", "bool"),
    ]
)
"""One row an episode: id of its first row, steps, sum of rewards, how it ended."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneEpisodes:
    """The episodes of one lane of which steps can be sampled, as they are now.

    Those that are over have numbers, in the order in which they ended, counted on since the lane
    was loaded; what they are never changes. Those that still run, or of which the oldest steps
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
