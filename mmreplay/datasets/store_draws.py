"""Draws from a store: `Draw`, `StoreDraws`, and the seeds and errors that all draws share.

Invariants:
- The random numbers of a draw are taken from the generator once, before the store is read, however
  often the read is repeated.
- Nothing here refers to the dataset: a cycle would keep the maps of the store alive.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch, SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.datasets.subsets import check_lanes
from mmreplay.episode_index import Index, Transitions
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.kept_frames import KeptFrames
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.located import LateRebuilder
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.trajectories import TrajectorySampler
from mmreplay.sampling.transitions import distinct_ids, grouped_ids, uniform_ids
from mmreplay.sampling.windows import PortionSampler, Windows, WindowSampler

T = TypeVar("T")
Read = TypeVar("Read")

_KINDS = 8  # kinds of windows whose sums are kept


@dataclasses.dataclass(slots=True, eq=False)  # not frozen: that takes longer for each batch
class Draw(Generic[Read]):
    """One batch, for which all random numbers are drawn.

    Attributes:
        choose: the ids, from the index as it is when it is called; the same numbers give the same
            ids of the same index.
        gatherer: rebuilds them.
        finish: called with the batch once it is given, in the thread that gets it.
        kept: keeps the frames that are decoded for it; None if nothing does.
    """

    choose: Callable[[Index], Ids]
    gatherer: LateRebuilder[Any, Read]
    finish: Callable[[Read], None] | None = None
    kept: KeptFrames | None = None


def draw_seed(generator: np.random.Generator) -> int:
    """A seed for a draw that takes an unknown number of random numbers."""
    return int(generator.integers(1 << 62))


def own_generator(source: Any) -> np.random.Generator:
    """A generator for one batch of something around datasets, seeded with their random states.

    It takes no number from their generators, repeats with their seeds, continues after a resume,
    and differs from batch to batch.
    """
    return np.random.default_rng(_seeds(source))


def _seeds(source: Any) -> list[int]:
    inner = getattr(source, "data", None)
    if inner is None:
        bits = source.generator.bit_generator
        with bits.lock:
            return [*_numbers(bits.state)]
    parts = inner if isinstance(inner, tuple) else (inner,)
    return [len(parts), *(seed for part in parts for seed in _seeds(part))]


def _numbers(state: Mapping[str, Any]) -> Iterator[int]:
    """The numbers in the state of any bit generator, those of arrays one by one."""
    for value in state.values():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, np.ndarray):
            yield from value.tolist()
        elif not isinstance(value, str):  # the name of the kind
            yield int(value)


def check_groups(size: int, group: int, *, replace: bool) -> None:
    """Refuse a size that is not a multiple of `group`, and groups without replacement."""
    if size % group or not replace:
        raise SchemaError(
            f"group: expected groups of which {size:,} transitions are a whole number, drawn with "
            f"replacement; found group={group:,}, replace={replace}"
        )


def draw_groups(
    generator: np.random.Generator, live: LiveLanes, size: int, group: int, *, replace: bool
) -> Callable[[Transitions], Ids]:
    """Draw groups of `group` transitions of a chunk; SchemaError as `check_groups`."""
    check_groups(size, group, replace=replace)
    seed = draw_seed(generator)

    def draw(index: Transitions) -> Ids:
        return grouped_ids(index, live.frame_chunks.at_least(group), size // group, group, seed)

    return draw


def not_evicted(ids: Ids) -> Callable[[Index], Ids]:
    """Those of the ids that no capacity has evicted since they were listed."""

    def valid(index: Index) -> Ids:
        return np.asarray(ids[~index.invalid(ids)])

    return valid


def state_of_bits(state: Mapping[str, Any], generator: np.random.Generator) -> Any:
    """The random state of a `state_dict`; SchemaError if it is of another kind of generator."""
    trial = copy.deepcopy(generator).bit_generator
    try:
        trial.state = state["generator"]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        found = f"another: {error!s:.200}"
        if isinstance(error, KeyError) and "generator" not in state:
            found = f"a dict of {', '.join(map(str, state)) or 'nothing'}"
        raise SchemaError(
            f"state: expected what state_dict() returned of a dataset with a "
            f"{type(trial).__name__} generator, found {found:.200}"
        ) from error
    return trial.state


def errors_with_path(path: Path, draw: Callable[[Index], T]) -> Callable[[Index], T]:
    """The same draw, whose errors begin with the store's path."""

    def draw_or_raise(index: Index) -> T:
        try:
            return draw(index)
        except (EmptyBufferError, SchemaError) as error:
            raise type(error)(f"{path}: {error}") from None

    return draw_or_raise


class StoreDraws:
    """The draws of one store, or of what is selected of it, by one set of settings.

    A draw of `ahead.ReadAhead` takes its numbers from the generator that it is given, once.
    """

    def __init__(self, store: Store, settings: Settings, selection: Selection | None) -> None:
        self._store, self._selection = store, selection
        self._where = f"{store.path}: "
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
        """A draw from the index of the store, as long as it is the store that was selected from."""
        selection, live = self._selection, self._store.live
        if selection is None:
            return errors_with_path(self._store.path, draw)

        def draw_selected(index: Index) -> T:
            check_lanes(selection, live)
            try:
                return draw(index)
            except EmptyBufferError:
                if selection.now(index).n_transitions:
                    raise
                raise EmptyBufferError(self.why_empty) from None

        return errors_with_path(self._store.path, draw_selected)

    def _choose_transitions(self, draw: Callable[[Transitions], T]) -> Callable[[Index], T]:
        """What draws from the transitions that can be sampled."""
        selection = self._selection
        if selection is None:
            return self._choose(draw)
        return self._choose(lambda index: draw(selection.now(index)))

    @property
    def why_empty(self) -> str:
        """The message for when there is nothing to sample."""
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
            choose = functools.partial(uniform_ids, draws=generator.random(size))
            if self._selection is None:
                choose.keywords["where"] = self._where
                return Draw(choose, self.gatherer)
        else:
            seed = draw_seed(generator)
            choose = functools.partial(distinct_ids, size=size, seed=seed)
        return Draw(self._choose_transitions(choose), self.gatherer)

    def every_transition(self) -> Callable[[Index], Ids]:
        """All of them, ascending."""
        return self._choose_transitions(lambda transitions: transitions.ids())

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
