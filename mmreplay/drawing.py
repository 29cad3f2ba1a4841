"""Sequences and trajectories of a store, drawn by a generator.

Invariant: all numbers that a draw needs are taken from the generator once, before the store is
read, however often that has to be done again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mmreplay.columns import Ids
from mmreplay.episodes import Index
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.gather import Settings
from mmreplay.samplers import PortionSampler, TrajectorySampler, Windows, WindowSampler
from mmreplay.sequences import SequenceBatch, SequenceGatherer
from mmreplay.store import Store
from mmreplay.trajectories import LazyTrajectory

__all__ = ["Sequences", "draw_seed", "naming"]

_KINDS = 8  # of windows, whose sums are kept


def draw_seed(generator: np.random.Generator) -> int:
    """For a draw that needs more numbers than are known before."""
    return int(generator.integers(1 << 62))


def naming(path: Path, draw: Callable[[Index], Ids]) -> Callable[[Index], Ids]:
    """The same draw, whose errors say which store it is."""

    def named(index: Index) -> Ids:
        try:
            return draw(index)
        except (EmptyBufferError, SchemaError) as error:
            raise type(error)(f"{path}: {error}") from None

    return named


class Sequences:
    """What a `Dataset` draws that has a time axis; its methods are documented there.

    Args:
        store: to read.
        settings: how steps are rebuilt.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        """Nothing is summed up yet."""
        self._store = store
        self._trajectories = TrajectorySampler()
        # None of these knows this object: a cycle would keep the store's maps alive.
        self._window_sampler = functools.lru_cache(_KINDS)(WindowSampler)
        self._portion_sampler = functools.lru_cache(_KINDS)(PortionSampler)
        self._gatherer = functools.lru_cache(_KINDS)(
            functools.partial(SequenceGatherer, store.schema, settings)
        )

    def sample(
        self,
        generator: np.random.Generator,
        size: int,
        windows: Windows,
        out: SequenceBatch | None,
    ) -> SequenceBatch:
        """See `Dataset.sample_sequences`."""
        draws = generator.random(size)
        sampler = self._window_sampler(windows)
        draw = naming(self._store.path, lambda index: sampler.draw(index, draws))
        return self._store.sample(draw, self._gatherer(windows.length, windows.burn_in), out)

    def check(self, windows: Windows) -> None:
        """Raise EmptyBufferError if there is no such window."""
        sampler = self._window_sampler(windows)

        def none(index: Index) -> Ids:
            sampler.total(index)
            return np.empty(0, np.int64)

        self._store.look(naming(self._store.path, none))

    def every(self, windows: Windows) -> Ids:
        """The id of each window's first step after the burn-in, ascending: int64 (n,)."""
        return self._store.look(naming(self._store.path, self._window_sampler(windows).every))

    def at(self, ids: Ids, windows: Windows) -> SequenceBatch:
        """The windows whose first steps after the burn-in are these."""
        return self._store.batch(ids, self._gatherer(windows.length, windows.burn_in))

    def portions(
        self, generator: np.random.Generator, size: int, windows: Windows
    ) -> SequenceBatch:
        """See `Dataset.sample_portions`."""
        sampler = self._portion_sampler(windows)
        draws = generator.random((2, size))
        draw = naming(self._store.path, lambda index: sampler.draw(index, draws))
        return self._store.sample(draw, self._gatherer(windows.length, windows.burn_in))

    def trajectories(
        self, generator: np.random.Generator, size: int, *, replace: bool
    ) -> list[LazyTrajectory]:
        """See `Dataset.sample_trajectories`."""
        sampler = self._trajectories
        if replace:
            draws = generator.random(size)
            draw = naming(self._store.path, lambda index: sampler.draw(index, draws))
        else:
            seed = draw_seed(generator)
            draw = naming(self._store.path, lambda index: sampler.draw_distinct(index, size, seed))
        return self._store.lazy_trajectories(draw)
