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
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.crossing import CrossingGatherer
from mmreplay.batches.sequences import SequenceBatch, SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import FieldWindows, WindowBatch, WindowGatherer, paths_of
from mmreplay.datasets.subsets import check_lanes
from mmreplay.episode_index import Index, Transitions
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.frame_chunks import KeptFrames
from mmreplay.reading.lookup import LateRebuilder
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory
from mmreplay.sampling.draws import (
    PortionSampler,
    TrajectorySampler,
    Windows,
    WindowSampler,
    check_not_empty,
    distinct_ids,
    grouped_ids,
    uniform_ids,
)
from mmreplay.sampling.selection import Selection

T = TypeVar("T")
Read = TypeVar("Read")
Flags = npt.NDArray[np.bool_]

_KINDS = 8  # kinds of windows whose sums are kept
_ALL_EVICTED = "all selected transitions have been evicted; select again"


@dataclasses.dataclass(slots=True, eq=False)  # not frozen: that takes longer for each batch
class Draw(Generic[Read]):
    """One batch whose random numbers are drawn."""

    choose: Callable[..., Ids]  # of an index and `numbers`; the same give the same ids
    gatherer: LateRebuilder[Read]
    finish: Callable[[Read], None] | None = None  # called in the thread that gets the batch
    kept: KeptFrames | None = None  # keeps the frames that are decoded for it
    numbers: tuple[Any, ...] = ()


def draw_seed(generator: np.random.Generator) -> int:
    """A seed for a draw that takes an unknown number of random numbers."""
    return int(generator.integers(1 << 62))


def own_generator(source: Any) -> np.random.Generator:
    """A generator for one batch of a wrapper, seeded with the random states of its datasets."""
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
        elif not isinstance(value, str):  # the name of the generator
            yield int(value)


def check_groups(size: int, group: int, *, replace: bool) -> None:
    """Refuse a size that is not a multiple of `group`, and groups without replacement."""
    if size % group or not replace:
        raise SchemaError(
            f"group: expected a divisor of {size:,} transitions, drawn with replacement; found "
            f"group={group:,}, replace={replace}"
        )


def _without(gone: Callable[[Index, Ids], Flags]) -> Callable[[Ids], Callable[[Index], Ids]]:
    return lambda ids: lambda index: np.asarray(ids[~gone(index, ids)])


def state_of_bits(state: Mapping[str, Any], generator: np.random.Generator) -> Any:
    """The random state of a `state_dict`; SchemaError if it is of another kind of generator."""
    trial = copy.deepcopy(generator).bit_generator
    try:
        trial.state = state["generator"]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise SchemaError(
            f"state: expected what state_dict() returns for a dataset with a "
            f"{type(trial).__name__} generator, found something else: {error!s:.200}"
        ) from error
    return trial.state


def around(fields: FieldWindows) -> Windows:
    """The windows of steps that have all of these columns' windows in their episodes."""
    return Windows(1, fields.lead, beyond=fields.beyond)


class StoreDraws:
    """The draws of one store, or of a selection of it, with one set of settings."""

    def __init__(self, store: Store, settings: Settings, selection: Selection | None) -> None:
        self._store, self._selection = store, selection
        self.gatherer = store.live.gatherer(settings)
        self._uniform = self.choose(uniform_ids, selected=True)
        self._distinct = self.choose(distinct_ids, selected=True)
        self._trajectories = TrajectorySampler(selection)
        kept = functools.lru_cache(_KINDS)
        self._window_sampler = kept(functools.partial(WindowSampler, selection=selection))
        self._portion_sampler = kept(functools.partial(PortionSampler, selection=selection))
        self.names = paths_of(store.schema)  # that windows may have
        of = store.schema, settings
        self._sequence_gatherer = kept(functools.partial(SequenceGatherer, *of))
        self._crossing_gatherer = kept(functools.partial(CrossingGatherer, *of))
        self.field_gatherer = kept(functools.partial(WindowGatherer, store.schema))

    def choose(self, draw: Callable[..., T], *, selected: bool = False) -> Callable[..., T]:
        """A draw from the index of the store, or from what is `selected` of its transitions.

        It takes an index, and the random numbers. Its errors begin with the path of the store.
        """
        selection, live = self._selection, self._store.live

        def choose(index: Index, *numbers: Any) -> T:
            if selection is not None:
                check_lanes(selection, live)
            try:
                if selection is None or not selected:
                    return draw(index, *numbers)
                return draw(selection.now(index), *numbers)
            except SchemaError as error:
                raise SchemaError(f"{live.path}: {error}") from None
            except EmptyBufferError as error:
                is_over = selection is not None and not selection.now(index).n_transitions
                raise EmptyBufferError(
                    f"{live.path}: {_ALL_EVICTED if is_over else error}"
                ) from None

        return choose

    def look(self, read: Callable[[Transitions], T]) -> T:
        """What `read` finds in the transitions that can be sampled now."""
        return self._store.live.look(self.choose(read, selected=True))

    def transitions(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        """Transitions, uniformly; see `Dataset.sample`."""
        if group is None and replace:
            return Draw(self._uniform, self.gatherer, numbers=(generator.random(size),))
        if group is None:
            return Draw(self._distinct, self.gatherer, numbers=(size, draw_seed(generator)))
        check_groups(size, group, replace=replace)
        live, n_groups, seed = self._store.live, size // group, draw_seed(generator)

        def choose(index: Transitions) -> Ids:
            return grouped_ids(index, live.frame_chunks.at_least(group), n_groups, group, seed)

        return Draw(self.choose(choose, selected=True), self.gatherer)

    def sequences(
        self, generator: np.random.Generator, windows: Windows, size: int
    ) -> Draw[SequenceBatch]:
        """Windows, uniformly; see `Dataset.sample_sequences`."""
        return self._windows(self._window_sampler(windows), generator.random(size))

    def fitting(
        self, generator: np.random.Generator, fields: FieldWindows, size: int
    ) -> Draw[WindowBatch]:
        """Steps with all of their windows, uniformly; see `Source.sample_windows`."""
        draw: Draw[Any] = self.sequences(generator, around(fields), size)
        return dataclasses.replace(draw, gatherer=self.field_gatherer(fields))

    def portions(
        self, generator: np.random.Generator, windows: Windows, size: int
    ) -> Draw[SequenceBatch]:
        """Windows of episodes by their length; see `Dataset.sample_portions`."""
        return self._windows(self._portion_sampler(windows), generator.random((2, size)))

    def _windows(
        self, sampler: WindowSampler | PortionSampler, draws: npt.NDArray[np.float64]
    ) -> Draw[SequenceBatch]:
        gatherer = self.sequence_gatherer(sampler.windows)
        return Draw(self.choose(sampler.draw), gatherer, numbers=(draws,))

    def sequence_gatherer(self, windows: Windows) -> LateRebuilder[SequenceBatch]:
        """Rebuilds such windows."""
        if windows.boundary == "cross":
            return self._crossing_gatherer(windows.length, windows.burn_in)
        return self._sequence_gatherer(windows.length, windows.burn_in)

    def check_any(self, windows: Windows | None) -> None:
        """Raise EmptyBufferError if there is no such window, or no transition."""
        if windows is not None:
            self._store.live.look(self.choose(self._window_sampler(windows).total))
        else:
            self.look(check_not_empty)

    def every(self, windows: Windows | None) -> Callable[[Index], Ids]:
        """All windows, or transitions, ascending."""
        if windows is not None:
            return self.choose(self._window_sampler(windows).every)
        return self.choose(lambda transitions: transitions.ids(), selected=True)

    def valid(self, windows: Windows | None) -> Callable[[Ids], Callable[[Index], Ids]]:
        """Those of the ids from `every` that can still be read, or an error if one is gone."""
        if windows is None or windows.beyond is not None:
            return _without(Index.invalid)
        if windows.boundary == "cross":  # which may begin where an environment was left out
            return _without(Index.outside)
        return self._store.live.valid_ids

    def trajectories(
        self, generator: np.random.Generator, size: int, *, replace: bool
    ) -> list[LazyTrajectory]:
        """Whole episodes, uniformly; see `Dataset.sample_trajectories`."""
        draw, draw_distinct = self._trajectories.draw, self._trajectories.draw_distinct
        choose: Callable[[Index], Ids]
        if replace:
            choose = functools.partial(draw, draws=generator.random(size))
        else:
            choose = functools.partial(draw_distinct, size=size, seed=draw_seed(generator))
        return self._store.live.lazy_trajectories(self.choose(choose))
