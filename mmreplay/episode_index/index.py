"""`Index`: what gatherers and samplers see of a store's transitions and episodes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index.episodes import LaneEpisodes
from mmreplay.episode_index.steps import Span, Steps
from mmreplay.ids import Ids


class Transitions(Protocol):
    """Some transitions, by rank and by id: all of a store, or those that were selected of it."""

    @property
    def n_transitions(self) -> int:
        """How many of them can be sampled."""

    def at(self, ranks: Ids) -> Ids:
        """The ids of the transitions with these ranks, 0 <= rank < n_transitions, in any order."""

    def ids(self) -> Ids:
        """Every id of them, ascending: int64 (n_transitions,)."""

    def invalid(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are none of them: (B,)."""


class Index(Transitions, Protocol):
    """The transitions of all lanes, by rank and by id, and the episodes that they are steps of.

    Whoever asks holds the lock of the store, so that nobody changes it meanwhile. Bounds of a lane
    are those of the lower part of ids: rows, or cells.
    """

    @property
    def version(self) -> int:
        """Another number after every change."""

    @property
    def n_lanes(self) -> int:
        """Lanes, also those of no row."""

    def n_transitions_of(self, n_lanes: int) -> int:
        """Transitions of the first so many lanes that can be sampled."""

    def window(self, lane: int) -> tuple[int, int, int]:
        """(base, first, head) of a lane: below base all is gone, below first not sampled."""

    def extent(self, lane: int) -> tuple[int, int]:
        """(start, stop): all transitions of a lane that can be sampled lie in there."""

    def present(self, lane: int, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Which of [start, stop), all of it in the extent of the lane, are transitions."""

    def steps(self, ids: Ids, ahead: int, *, back: bool) -> Steps:
        """These transitions, with up to `ahead` of the steps that are left from each one on.

        `back` says whether frames before the steps' own are asked for.
        """

    def span(self, ids: Ids) -> Span:
        """These transitions, with all of their episodes."""

    def episodes(self, lane: int) -> LaneEpisodes:
        """The episodes of a lane of which steps can be sampled."""

    def ended(self, lane: int, numbers: Ids) -> tuple[Ids, Ids]:
        """The id of the first step, and the steps, of episodes that are over: (n,) each."""
