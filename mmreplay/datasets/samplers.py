"""`Samplers`: what a dataset draws, and what it lists for an epoch.

Invariant: nothing here knows the dataset, nor who reads ahead for it: a cycle would keep the maps
of the store alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch, SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.datasets.draws import Draw, draw_groups, draw_seed, errors_with_path, every_id
from mmreplay.datasets.subsets import check_lanes
from mmreplay.episode_index import Index, Transitions
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.trajectories import TrajectorySampler
from mmreplay.sampling.uniform import uniform_ids
from mmreplay.sampling.windows import PortionSampler, Windows, WindowSampler
from mmreplay.sampling.without_replacement import distinct_ids

T = TypeVar("T")

_KINDS = 8  # kinds of windows whose sums are kept


class Samplers:
    """The draws of one store, or of what is selected of it, by one set of settings.

    A draw of `ahead.Ahead` takes its numbers from the generator that it is given, once.
    """

    def __init__(self, store: Store, settings: Settings, selection: Selection | None) -> None:
        self._store, self._selection = store, selection
        self.gatherer = store.live.gatherer(settings)
        self._trajectories = TrajectorySampler(selection)
        self._window_sampler = functools.lru_cache(_KINDS)(
            functools.partial(WindowSampler, selection=selection)
        )
        self._portion_sampler = functools.lru_cache(_KINDS)(
            functools.partial(PortionSampler, selection=selection)
        )
        self._sequence_gatherer = functools.lru_cache(_KINDS)(
            functools.partial(SequenceGatherer, store.schema, settings)
        )

    def _choose(self, draw: Callable[[Index], T]) -> Callable[[Index], T]:
        """What draws from the index of the store, as long as it is the one that was selected of."""
        selection, live, path = self._selection, self._store.live, self._store.path
        if selection is None:
            return errors_with_path(path, draw)

        def draw_selected(index: Index) -> T:
            try:
                return draw(index)
            except EmptyBufferError:
                if selection.now(index).n_transitions:
                    raise
                raise EmptyBufferError(self.why_empty) from None

        draw_or_raise = errors_with_path(path, draw_selected)

        def draw_checked(index: Index) -> T:
            check_lanes(selection, live)
            return draw_or_raise(index)

        return draw_checked

    def _choose_transitions(self, draw: Callable[[Transitions], T]) -> Callable[[Index], T]:
        """What draws from the transitions that can be sampled."""
        selection = self._selection
        if selection is None:
            return self._choose(draw)
        return self._choose(lambda index: draw(selection.now(index)))

    @property
    def why_empty(self) -> str:
        """Why there is no transition, where there is none: a selection had some."""
        if self._selection is None:
            return "there is no transition yet; record a reset and a step first"
        return "all transitions that were selected have been evicted since; select again"

    def look(self, read: Callable[[Transitions], T]) -> T:
        """What is found in the transitions that can be sampled by now."""
        return self._store.live.look(self._choose_transitions(read))

    # ------------------------------------------------------------ transitions

    def transitions(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        """Transitions, uniformly; see `Dataset.sample`."""
        if group is not None:
            choose = draw_groups(generator, self._store.live, size, group, replace=replace)
        elif replace:
            draws = generator.random(size)
            choose = functools.partial(uniform_ids, draws=draws)
        else:
            seed = draw_seed(generator)
            choose = functools.partial(distinct_ids, size=size, seed=seed)
        return Draw(self._choose_transitions(choose), self.gatherer)

    def every_transition(self) -> Callable[[Index], Ids]:
        """All of them, ascending."""
        return self._choose_transitions(every_id)

    # ------------------------------------------------------------ sequences

    def sequences(
        self, generator: np.random.Generator, windows: Windows, size: int
    ) -> Draw[SequenceBatch]:
        """Windows, uniformly; see `Dataset.sample_sequences`."""
        draws = generator.random(size)
        sampler = self._window_sampler(windows)
        choose = self._choose(lambda index: sampler.draw(index, draws))
        return Draw(choose, self.sequence_gatherer(windows))

    def portions(
        self, generator: np.random.Generator, windows: Windows, size: int
    ) -> Draw[SequenceBatch]:
        """Windows of episodes by their length; see `Dataset.sample_portions`."""
        draws = generator.random((2, size))
        sampler = self._portion_sampler(windows)
        choose = self._choose(lambda index: sampler.draw(index, draws))
        return Draw(choose, self.sequence_gatherer(windows))

    def sequence_gatherer(self, windows: Windows) -> SequenceGatherer:
        """What rebuilds such windows."""
        return self._sequence_gatherer(windows.length, windows.burn_in)

    def every_window(self, windows: Windows) -> Callable[[Index], Ids]:
        """All of one kind, ascending.

        Raises EmptyBufferError, also here, if there is none.
        """
        sampler = self._window_sampler(windows)
        self._store.live.look(self._choose(sampler.total))
        return self._choose(sampler.every)

    # ------------------------------------------------------------ trajectories

    def trajectories(
        self, generator: np.random.Generator, size: int, *, replace: bool
    ) -> list[LazyTrajectory]:
        """Whole episodes, uniformly; see `Dataset.sample_trajectories`."""
        sampler = self._trajectories
        choose: Callable[[Index], Ids]
        if replace:
            draws = generator.random(size)
            choose = functools.partial(sampler.draw, draws=draws)
        else:
            seed = draw_seed(generator)
            choose = functools.partial(sampler.draw_distinct, size=size, seed=seed)
        return self._store.live.lazy_trajectories(self._choose(choose))
