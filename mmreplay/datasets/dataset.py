"""`Dataset`: a store, a sampler and the settings of a batch, in one object.

Invariant: a dataset adds nothing to what its store holds; a batch is what the store gives for the
ids that the sampler drew.
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
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.datasets import subsets
from mmreplay.datasets.epochs import EpochArguments, Epochs, Part
from mmreplay.datasets.read_ahead import ReadAhead
from mmreplay.datasets.source import WindowSource
from mmreplay.datasets.store_draws import Draw, StoreDraws, not_evicted, state_of_bits
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import Ids
from mmreplay.reading.located import LateRebuilder
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory, Trajectory
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.windows import Windows
from mmreplay.system import forks

Seed = int | Sequence[int] | np.random.SeedSequence | None


class Dataset(WindowSource):
    """Stores loaded for training, read-only; made by `mmreplay.load`. A context manager.

    A pickle of it, for a process that is spawned, holds paths, settings and random state: who loads
    that opens the stores again, and draws what this object would have drawn next.

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
        digest = None if selection is None else selection.digest
        self._epochs = Epochs(epoch_seed, unshared_seed, digest)

    def _read_from(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.draws = StoreDraws(store, settings, self._selection)
        _DATASETS.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: all but what can be made again from the store and the settings."""
        state = {name: value for name, value in self.__dict__.items() if name != "draws"}
        with self.generator.bit_generator.lock:
            return {**state, "generator": copy.deepcopy(self.generator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from there, with the stores opened again."""
        self.__dict__.update(state)
        self._read_from(self.store, self.settings)

    def after_fork_in_child(self) -> None:
        """In a forked child: draw from a stream of its own, not once more what the parent draws."""
        bits = np.random.SeedSequence(self._epochs.seed, spawn_key=forks.lineage())
        self.generator = np.random.default_rng(bits)
        self._read_from(self.store, self.settings)  # a thread may have been in the samplers
        self.read_ahead.forget()

    @property
    def prefetch(self) -> int:
        """Most batches that are read ahead; see `load`."""
        return self.read_ahead.n

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self.draws.look(lambda transitions: transitions.n_transitions)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        live, generator = self.store.live, self.generator
        if self.read_ahead.n:
            return self.read_ahead.next(
                live, generator, self.begin_sample, (size, replace, group), out
            )
        draw = self.begin_sample(generator, size, replace, group)
        batch = live.gather(draw.choose, draw.gatherer, out)
        if draw.finish is not None:
            draw.finish(batch)
        return batch

    def begin_sample(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        """Draw the numbers of a batch of `sample`: once, however often the store is read again."""
        return self.draws.transitions(generator, size, replace, group)

    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        gatherer = self.draws.gatherer
        return self.read_batches(given, lambda _: gatherer)

    def read_batches(
        self, given: EpochArguments, gatherer_of: Callable[[Any], LateRebuilder[Any, Batch]]
    ) -> Iterator[Batch]:
        """See `batches`; each is rebuilt by what `gatherer_of` makes of a seed of its own."""
        self._epochs.check(given, self.settings, None)
        if not len(self):
            raise EmptyBufferError(f"{self.store.path}: {self.draws.why_empty}")
        live, every = self.store.live, self.draws.every_transition()

        def read_each(parts: Iterable[Part]) -> Iterator[Batch]:
            draws = (Draw(choose, gatherer_of(seed), kept=kept) for choose, kept, seed in parts)
            return self.read_ahead.each(live, draws)

        return self._epochs.read(given, self.settings, None, live, every, not_evicted, read_each)

    def state_dict(self) -> dict[str, Any]:
        """Where this object's batches are: random state, seed, epoch and position; no ids.

        Taken between two batches, it is the state after the one that was given last.
        """
        bits = self.generator.bit_generator
        with bits.lock:
            return {"generator": copy.deepcopy(bits.state), **self._epochs.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, of this object or of one of the same store.

        Draws continue with the next one. `batches`, or `sequence_batches`, called with the same
        arguments, continues in the middle of the epoch, also if the store was moved or copied;
        `batches` also if rows have come since.

        Raises:
            SchemaError: something that `state_dict` did not return.
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
        """The transitions with these ids, by this object's settings but for those given here.

        Args:
            ids: (B,) integers.
            out: a batch to fill again.
            stack: as for `load`, and so are those that follow.
            n_step: most steps of a return.
            gamma: discount a step.
            padding: ``reset`` or ``zero``.
            stack_axis: 0 or -1.
            clip_reward: (low, high).

        Raises:
            InvalidIdError: an id that is no valid transition, named.
        """
        given = {"n_step": n_step, "gamma": gamma, "padding": padding, "stack_axis": stack_axis}
        changes: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        if clip_reward is not None:
            changes["clip_reward"] = clip_reward
        if stack is not ...:  # None means something here
            changes["stack"] = stack
        gatherer = self.draws.gatherer
        if changes:
            gatherer = self.store.live.gatherer(dataclasses.replace(self.settings, **changes))
        return self.store.live.gather(self.store.live.valid_ids(ids), gatherer, out)

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode, by its place in `episodes`; see `Store.trajectory`."""
        return self.store.numbered_trajectory(number, lambda: self.episodes)

    # ------------------------------------------------------------ sequences

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
        """Every window once an epoch; an epoch's last batch may be smaller.

        Args:
            batch_size: B.
            length: as of `sample_sequences`, and so are those that follow.
            burn_in: steps before them.
            boundary: ``drop``, ``pad`` or ``shift``.
            stride: steps from one window to the next.
            epochs: as of `batches`, and so are those that follow.
            shuffle: True, False or ``full``.
            shuffle_rows: rows of a pool.
            rank: this process's number.
            world_size: processes that share each epoch.
            drop_last: leave out batches that not every rank can fill.
            epoch: the number of the first epoch.

        Raises:
            EmptyBufferError: no episode has such a window.
            SchemaError: as of `batches`.
        """
        given = EpochArguments(
            batch_size, epochs, shuffle, shuffle_rows, rank, world_size, drop_last, epoch
        )
        windows = Windows(length, burn_in, boundary, stride)
        self._epochs.check(given, self.settings, windows)
        live, gatherer = self.store.live, self.draws.sequence_gatherer(windows)
        every, valid = self.draws.every_window(windows), live.valid_ids

        def read_each(parts: Iterable[Part]) -> Iterator[SequenceBatch]:
            draws = (Draw(choose, gatherer, kept=kept) for choose, kept, _ in parts)
            return self.read_ahead.each(live, draws)

        return self._epochs.read(given, self.settings, windows, live, every, valid, read_each)

    def sample_portions(self, batch_size: int, length: int) -> SequenceBatch:
        """Draw windows of whole episodes: an episode by its length, then a window in it.

        Each step of an episode of `length` steps or more is as likely to be in the episode that
        is drawn as any other; the windows of one episode are equally likely.

        Args:
            batch_size: B.
            length: T.

        Raises:
            EmptyBufferError: no whole episode has as many steps.
            SchemaError: a value out of its range.
        """
        size = whole_number("batch_size", batch_size)
        return self.read_ahead.next(
            self.store.live, self.generator, self.draws.portions, (Windows(length), size)
        )

    def sample_trajectories(self, n: int, *, replace: bool = True) -> list[LazyTrajectory]:
        """Draw whole episodes uniformly; their columns are read when they are first asked for.

        Args:
            n: how many.
            replace: whether an episode may come twice.

        Raises:
            EmptyBufferError: there is no whole episode.
            SchemaError: without replacement, and there are fewer than `n`; `replace` is no bool.
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

        Of a selection those of which all steps are selected.
        """
        return subsets.episode_table(self.store, self._selection)

    # ------------------------------------------------------------ subsets

    def select(
        self,
        *,
        episodes: subsets.EpisodeChoice | None = None,
        ids: subsets.IdChoice | None = None,
    ) -> Dataset:
        """Some of the transitions, as a dataset of its own; what comes later is not in it.

        It reads the same store, by the same settings, and does not close it. Its random state
        follows from this object's seed and from what is selected. It samples uniformly, also if
        this object samples by priority.

        Args:
            episodes: (n,) bool over `episodes`, numbers in it, or a function of it that gives
                either. A running episode is selected with the steps that it has.
            ids: ids, (n,) bool over `ids`, or a function of these that gives either. With both,
                the transitions that are in both.

        Raises:
            EmptyBufferError: nothing is selected.
            InvalidIdError: an id that cannot be sampled here, named.
            SchemaError: no such episode, a mask of another length, or neither argument.
        """
        return self._selected(subsets.chosen(self.store, self._selection, episodes, ids))

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two datasets, as of `select`, that have each episode in one of them.

        Args:
            fraction: of the episodes that are in the first, in (0, 1), rounded; each has one.
            seed: decides which; the same episodes and seed give the same parts.

        Raises:
            SchemaError: a fraction out of its range, or less than two episodes.
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
        """Take the newest rows, and lanes, of live stores; see `Store.refresh`.

        Batches that were read ahead are forgotten, so that the next one is of what is there now.
        """
        self.store.refresh()
        self.read_ahead.drop()
        return self

    def close(self) -> None:
        """Close the store, unless it is that of the dataset that this was selected of."""
        if self._selection is None:
            self.store.close()
        self.read_ahead.close()  # after it, so that no other thread begins to read ahead once more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        what = "" if self._selection is None else " selected"
        return f"<mmreplay.Dataset {self.store.path} transitions={len(self)}{what}>"


_DATASETS: weakref.WeakSet[Dataset] = weakref.WeakSet()
forks.after_fork_in_child(_DATASETS, lambda dataset: dataset.after_fork_in_child())
