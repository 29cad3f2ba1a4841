"""`Dataset`: a store, a sampler and the settings of a batch, in one object.

Invariant: a batch is what the store returns for the ids that were drawn.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import is_reproducible, true_or_false, whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import AnyBatch, SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.datasets import subsets
from mmreplay.datasets.epochs import EpochArguments, Epochs, Part, Request
from mmreplay.datasets.read_ahead import ReadAhead
from mmreplay.datasets.source import WindowSource
from mmreplay.datasets.store_draws import Draw, StoreDraws, not_evicted, state_of_bits
from mmreplay.errors import ClosedError, MmreplayError
from mmreplay.ids import Ids
from mmreplay.reading.lookup import LateRebuilder
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory, Trajectory
from mmreplay.sampling.draws import Windows
from mmreplay.sampling.selection import Selection
from mmreplay.system import forks

Seed = int | Sequence[int] | np.random.SeedSequence | None


class Dataset(WindowSource):
    """Stores loaded for training, read-only; made by `mmreplay.load`. A context manager.

    A pickle of it, for a spawned process, holds paths, settings and random state: unpickling opens
    the stores again, and draws what this object would have drawn next.

    Attributes:
        store: the `Store` it reads.
        settings: how transitions are rebuilt.
        generator: draws the samples.
    """

    settings: Settings
    generator: np.random.Generator

    def __init__(
        self,
        store: Store,
        settings: Settings,
        seed: Seed,
        prefetch: int = 0,
        selection: Selection | None = None,
    ) -> None:
        self.read_ahead, self._selection = ReadAhead(prefetch), selection
        self._read_from(store, settings)
        self.generator = np.random.default_rng(seed)
        unshared_seed = None if is_reproducible(seed) else type(seed).__name__  # may differ by rank
        epoch_seed = int(np.random.default_rng(seed).integers(1 << 62))
        self._epochs = Epochs(epoch_seed, unshared_seed)

    def _read_from(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.draws = StoreDraws(store, settings, self._selection)
        _DATASETS.add(self)

    def reading_with(self, settings: Settings) -> Self:
        """This object with other settings and without prefetch; all state is shared."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.read_ahead = ReadAhead(0)
        other._read_from(self.store, settings)  # noqa: SLF001 (of this class)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Everything except what the store and the settings determine."""
        state = {name: value for name, value in self.__dict__.items() if name != "draws"}
        with self.generator.bit_generator.lock:
            return {**state, "generator": copy.deepcopy(self.generator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the stores again."""
        self.__dict__.update(state)
        self._read_from(self.store, self.settings)

    def after_fork_in_child(self) -> None:
        """In a forked child: draw from another stream than the parent."""
        bits = np.random.SeedSequence(self._epochs.seed, spawn_key=forks.lineage())
        self.generator = np.random.default_rng(bits)
        self._read_from(self.store, self.settings)  # a thread may have been in the samplers
        self.read_ahead.forget()

    @property
    def prefetch(self) -> int:
        """The most batches that are read ahead; see `load`."""
        return self.read_ahead.n

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self.draws.look(lambda transitions: transitions.n_transitions)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        return self.read_ahead.next(
            self.store.live, self.generator, self.begin_sample, (size, replace, group), out
        )

    def begin_sample(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        """Draw the random numbers of a batch of `sample`."""
        return self.draws.transitions(generator, size, replace, group)

    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        gatherer = self.draws.gatherer
        return self.read_batches(given, lambda _: gatherer)

    def read_batches(
        self,
        given: EpochArguments,
        gatherer_of: Callable[[list[int]], LateRebuilder[AnyBatch]],
        windows: Windows | None = None,
    ) -> Iterator[AnyBatch]:
        """See `batches` and `sequence_batches`; `gatherer_of` takes a seed per batch."""
        live, selection = self.store.live, self._selection
        digest = None if selection is None else selection.digest
        valid = not_evicted if windows is None else live.valid_ids
        listed = self.draws.every(windows)
        request = Request(given, self.settings, digest, windows, live, listed, valid)
        self._epochs.check(request)
        self.draws.check_any(windows)

        def read_each(parts: Iterable[Part]) -> Iterator[AnyBatch]:
            each = (Draw(choose, gatherer_of(seed), kept=kept) for choose, kept, seed in parts)
            return self.read_ahead.each(live, each)

        return self._epochs.read(request, read_each)

    def state_dict(self) -> dict[str, Any]:
        """The position of this object's batches: random state, seed, epoch and position.

        Taken between two batches, it is the state after the last one that was returned.
        """
        bits = self.generator.bit_generator
        with bits.lock:
            return {"generator": copy.deepcopy(bits.state), **self._epochs.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called on this object or another one of the same store.

        `batches` or `sequence_batches` with the same arguments continues in the middle of the
        epoch, also if the store was moved or copied; `batches` also if rows were added.

        Raises:
            SchemaError: a value that `state_dict` did not return.
        """
        bits = state_of_bits(state, self.generator)
        self._epochs.load(state)
        self.generator.bit_generator.state = bits

    def transitions(
        self,
        ids: npt.ArrayLike,
        out: Batch | None = None,
        *,
        stack: int | EllipsisType | None = ...,
        n_step: int | None = None,
        gamma: float | None = None,
        padding: str | None = None,
        stack_axis: int | None = None,
        clip_reward: tuple[float, float] | None = None,
    ) -> Batch:
        """The transitions with these ids, (B,) integers, in `out` if given.

        `stack` and what follows are as for `load`; if left out, as in this object's settings.

        Raises:
            InvalidIdError: an id that is not a valid transition, named.
        """
        given = {"n_step": n_step, "gamma": gamma, "padding": padding, "stack_axis": stack_axis}
        changes: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        if clip_reward is not None:
            changes["clip_reward"] = clip_reward
        if stack is not ...:
            changes["stack"] = stack
        gatherer = self.draws.gatherer
        if changes:
            gatherer = self.store.live.gatherer(dataclasses.replace(self.settings, **changes))
        return self.store.live.gather(self.store.live.valid_ids(ids), gatherer, out)

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode, by its index in `episodes`; see `Store.trajectory`."""
        return self.store.numbered_trajectory(number, lambda: self.episodes)

    def _sample_windows(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        return self.read_ahead.next(
            self.store.live, self.generator, self.draws.sequences, (windows, size), out
        )

    def sequence_batches(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        boundary: str = "drop",
        stride: int = 1,
        epochs: int | None = 1,
        *,
        shuffle: bool | Literal["full"] = True,
        shuffle_rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int | None = None,
    ) -> Iterator[SequenceBatch]:
        """Every window once per epoch; an epoch's last batch may be smaller.

        The arguments up to `stride` are those of `sample_sequences`, the others those of `batches`.

        Raises:
            EmptyBufferError: no episode has such a window.
            SchemaError: as for `batches`.
        """
        order = shuffle, shuffle_rows, rank, world_size
        given = EpochArguments(batch_size, epochs, *order, drop_last, epoch)
        windows = Windows(length, burn_in, boundary, stride)
        gatherer = self.draws.sequence_gatherer(windows)
        return self.read_batches(given, lambda _: gatherer, windows)

    def sample_portions(self, batch_size: int, length: int) -> SequenceBatch:
        """Draw B windows of T = `length` steps: an episode by its length, then a window in it.

        Only whole episodes of T steps or more are drawn; the windows of one are equally likely.

        Raises:
            EmptyBufferError: no whole episode has as many steps.
            SchemaError: a value out of its range.
        """
        size = whole_number("batch_size", batch_size)
        return self.read_ahead.next(
            self.store.live, self.generator, self.draws.portions, (Windows(length), size)
        )

    def sample_trajectories(self, n: int, *, replace: bool = True) -> list[LazyTrajectory]:
        """Draw n whole episodes uniformly; each column is read on first use.

        With `replace` an episode may occur twice.

        Raises:
            EmptyBufferError: there is no whole episode.
            SchemaError: without replacement, and there are fewer than `n`; `replace` is not a bool.
        """
        size = whole_number("n", n)
        replace = true_or_false("replace", replace)
        return self.draws.trajectories(self.generator, size, replace=replace)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The directories of the stores, in the order of their lanes."""
        return self.store.paths

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending."""
        return self.draws.look(lambda transitions: transitions.ids())

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        """Whole retained episodes: see `Store.episodes`; and ``env``, counted over all lanes.

        In a selection, the episodes whose steps are all selected.
        """
        return subsets.episode_table(self.store, self._selection)

    def select(
        self, *, episodes: subsets.EpisodeChoice | None = None, ids: subsets.IdChoice | None = None
    ) -> Dataset:
        """Some of the transitions, as another dataset; rows added later are not in it.

        It reads the same store with the same settings, and does not close it. Its random state
        follows from this object's seed and from the selection. It samples uniformly, also if
        this object samples by priority.

        Args:
            episodes: (n,) bool over `episodes`, numbers in it, or a function of it that returns
                either. A running episode is selected with the steps that it has.
            ids: ids, (n,) bool over `ids`, or a function of them that returns either. With both
                arguments, the transitions that are in both.

        Raises:
            EmptyBufferError: nothing is selected.
            InvalidIdError: an id that cannot be sampled here, named.
            SchemaError: no such episode, a mask of another length, or neither argument.
        """
        return self._selected(
            subsets.chosen(self.store, self._selection, episodes, ids, lambda: self.ids)
        )

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two datasets, as from `select`, with each episode in one of them.

        Args:
            fraction: of the episodes that are in the first, in (0, 1), rounded; each has at least
                one.
            seed: determines which; the same episodes and seed give the same parts.

        Raises:
            SchemaError: a fraction out of its range, or fewer than two episodes.
        """
        seed = whole_number("seed", seed, 0)
        one, other = subsets.parts(self.store, self._selection, fraction, seed)
        return self._selected(one), self._selected(other)

    def _selected(self, selection: Selection) -> Dataset:
        seed = [self._epochs.seed, selection.digest]
        out = Dataset(self.store, self.settings, seed, self.prefetch, selection)
        out._epochs.unshared_seed = self._epochs.unshared_seed
        return out

    def refresh(self) -> Self:
        """Take the newest rows and lanes of live stores; see `Store.refresh`.

        Batches that were read ahead are discarded, so the next one shows these rows.
        """
        self.store.refresh()
        self.read_ahead.drop()
        return self

    def close(self) -> None:
        """Close the store; a selection leaves it open."""
        if self._selection is None:
            self.store.close()
        self.read_ahead.close()  # afterwards, so that no other thread begins to read ahead again

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        capacity = getattr(self, "capacity", None)
        what = "" if capacity is None else f" capacity={capacity}"
        what += "" if self._selection is None else " selected"
        try:
            n = f"transitions={len(self)}"
        except MmreplayError as error:
            n = "closed" if isinstance(error, ClosedError) else "unreadable"
        return f"<mmreplay.{type(self).__name__} {self.store.path} {n}{what}>"


_DATASETS: weakref.WeakSet[Dataset] = weakref.WeakSet()
forks.after_fork_in_child(_DATASETS, lambda dataset: dataset.after_fork_in_child())
