"""`Dataset`: a store, a sampler and the settings of a batch, in one object.

Invariant: a dataset adds nothing to what its store holds; a batch is what the store gives for the
ids that the sampler drew.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import is_reproducible, whole_number, whole_number_or_none
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch, SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.datasets.draws import draw_seed, errors_with_path
from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory, Trajectory
from mmreplay.sampling.epoch import epoch_ids
from mmreplay.sampling.trajectories import TrajectorySampler
from mmreplay.sampling.uniform import uniform_ids
from mmreplay.sampling.windows import PortionSampler, Windows, WindowSampler
from mmreplay.sampling.without_replacement import distinct_ids
from mmreplay.system import forks

_KINDS = 8  # kinds of windows whose sums are kept

_NOT_PICKLED = (
    "_gatherer", "_trajectories", "_window_sampler", "_portion_sampler", "_sequence_gatherer"
)  # fmt: skip
"""Made again from the store and the settings."""

Seed = int | Sequence[int] | np.random.SeedSequence | None


class Dataset:
    """Stores loaded for training, read-only; made by `mmreplay.load`. A context manager.

    A pickle of it, for a process that is spawned, holds paths, settings and random state: who loads
    that opens the stores again, and draws what this object would have drawn next.

    Attributes:
        store: the `Store` it reads.
        settings: how transitions are rebuilt.
        generator: draws the samples.
    """

    def __init__(self, store: Store, settings: Settings, seed: Seed) -> None:
        self._read_from(store, settings)
        self.generator = np.random.default_rng(seed)
        # A generator, say, may differ in each process, and nothing tells.
        self._unshared_seed = None if is_reproducible(seed) else type(seed).__name__
        self._epoch_seed = int(np.random.default_rng(seed).integers(1 << 62))
        self._epoch = 0

    def _read_from(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self._gatherer = store.live.gatherer(settings)
        self._begin_sums()
        _DATASETS.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: all but what can be made again from the store and the settings."""
        state = {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}
        with self.generator.bit_generator.lock:
            return {**state, "generator": copy.deepcopy(self.generator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from there, with the stores opened again."""
        self.__dict__.update(state)
        self._read_from(self.store, self.settings)

    def _begin_sums(self) -> None:
        """Samplers and gatherers of sequences, none of which knows the store's episodes yet."""
        self._trajectories = TrajectorySampler()
        # None of these knows this object: a cycle would keep the store's maps alive.
        self._window_sampler = functools.lru_cache(_KINDS)(WindowSampler)
        self._portion_sampler = functools.lru_cache(_KINDS)(PortionSampler)
        self._sequence_gatherer = functools.lru_cache(_KINDS)(
            functools.partial(SequenceGatherer, self.store.schema, self.settings)
        )

    def after_fork_in_child(self) -> None:
        """In a forked child: draw from a stream of its own, not once more what the parent draws."""
        bits = np.random.SeedSequence(self._epoch_seed, spawn_key=forks.lineage())
        self.generator = np.random.default_rng(bits)
        self._begin_sums()  # a thread may have been in those of the parent

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.store)

    def sample(self, batch_size: int, out: Batch | None = None, *, replace: bool = True) -> Batch:
        """Draw transitions uniformly.

        Args:
            batch_size: B.
            out: a batch that this object returned for the same B; overwritten and returned.
            replace: whether a transition may come twice in a batch.

        Raises:
            EmptyBufferError: there is no transition yet.
            SchemaError: without replacement, and there are fewer than `batch_size`.
        """
        size = whole_number("batch_size", batch_size)
        # Once, however often the store has to read again.
        if replace:
            draws = self.generator.random(size)
            draw = errors_with_path(self.store.path, lambda index: uniform_ids(index, draws))
        else:
            seed = draw_seed(self.generator)
            draw = errors_with_path(self.store.path, lambda index: distinct_ids(index, size, seed))
        return self.store.live.gather(draw, self._gatherer, out)

    def sample_times(
        self, batch_size: int, out: Batch | None = None
    ) -> tuple[Batch, dict[str, float]]:
        """Draw transitions uniformly, and time the parts of that.

        Args:
            batch_size: B.
            out: as of `sample`.

        Returns:
            the batch, and seconds by part: ``index``, to draw and to find the rows; ``io``, until
            their pages had come, from the disk or into the page tables; ``decode``, of compressed
            chunks; ``copy``, of rows into the batch; ``other``, returns and all else.

        Raises:
            As `sample`.
        """
        draws = self.generator.random(whole_number("batch_size", batch_size))
        draw = errors_with_path(self.store.path, lambda index: uniform_ids(index, draws))
        return self.store.live.gather_timed(draw, self._gatherer, out)

    def batches(
        self,
        batch_size: int,
        epochs: int | None = 1,
        *,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """Every transition once an epoch.

        Each call goes on with the next epoch's order, so that a loop over calls shuffles again. The
        order follows from the seed and the epoch's number: ranks must be in the same epoch, so
        each calls this equally often, or says which one with `epoch`.

        Args:
            batch_size: B; an epoch's last batch may be smaller.
            epochs: how many; None for no end.
            shuffle: False keeps the order of the ids.
            rank: this process's number, of `world_size`.
            world_size: processes that share each epoch; each transition goes to one of them. If
                they shuffle, they must have been given the same seed.
            drop_last: leave out batches that not every rank can fill, so that all ranks get the
                same number of batches of the same size.
            epoch: the number of the first epoch, 0 or more; None goes on after the last one that
                this object began.

        Raises:
            SchemaError: a value out of its range; several ranks whose seed is no
                whole number, nor a sequence of them.
            EmptyBufferError: there is no transition.
        """
        size = whole_number("batch_size", batch_size)
        world_size = whole_number("world_size", world_size)
        rank = whole_number("rank", rank, 0, world_size - 1)
        if world_size > 1 and shuffle and self._unshared_seed is not None:
            raise SchemaError(
                f"seed: expected one that all {world_size:,} ranks share, a whole number or a "
                f"sequence of them; found {self._unshared_seed}, with which each rank may shuffle "
                f"in its own way; give every rank the same, such as seed=0"
            )
        epochs = whole_number_or_none("epochs", epochs, 0)
        epoch = whole_number_or_none("epoch", epoch, 0)
        if not len(self.store):
            raise EmptyBufferError(
                f"{self.store.path}: there is no transition yet; record a reset and a step first"
            )
        return self._batches(size, epochs, shuffle, rank, world_size, drop_last, epoch)

    def _batches(
        self,
        size: int,
        epochs: int | None,
        shuffle: bool,
        rank: int,
        world_size: int,
        drop_last: bool,
        first: int | None,
    ) -> Iterator[Batch]:
        done = 0
        while epochs is None or done < epochs:
            number = self._epoch if first is None else first + done
            self._epoch = number + 1
            done += 1
            # Listed once: another thread may take new rows between two looks at the index.
            every = self.store.ids
            total = len(every)
            ids = epoch_ids(
                every,
                seed=self._epoch_seed,
                epoch=number,
                shuffle=shuffle,
                rank=rank,
                world_size=world_size,
            )
            if drop_last:
                ids = ids[: total // world_size // size * size]
            for start in range(0, len(ids), size):
                kept = _not_evicted(ids[start : start + size])
                batch = self.store.live.gather(kept, self._gatherer)
                if len(batch):
                    yield batch

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
        given = {
            "n_step": n_step,
            "gamma": gamma,
            "padding": padding,
            "stack_axis": stack_axis,
            "clip_reward": clip_reward,
        }
        changes: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        if stack is not ...:  # None means something here
            changes["stack"] = stack
        gatherer = self._gatherer
        if changes:
            gatherer = self.store.live.gatherer(dataclasses.replace(self.settings, **changes))
        return self.store.live.gather_ids(ids, gatherer, out)

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode; see `Store.trajectory`."""
        return self.store.trajectory(number)

    # ------------------------------------------------------------ sequences

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        boundary: str = "drop",
        stride: int = 1,
        out: SequenceBatch | None = None,
    ) -> SequenceBatch:
        """Draw windows of consecutive steps uniformly, with replacement.

        A window lies in one episode, and each one counts once; see docs/semantics.md.

        Args:
            batch_size: B.
            length: steps to learn from.
            burn_in: steps before them, for the state of a recurrent network (Kapturowski et al.
                2019, section 3).
            boundary: ``drop`` takes only windows whose steps are all there; ``pad`` begins at any
                step, with zeros and a False mask for what is missing; ``shift`` is ``drop``, and
                also takes the window that ends with the episode, padded if the episode is shorter.
            stride: steps from one window to the next, from the episode's oldest step on.
            out: a batch that this object returned for the same B and lengths; overwritten and
                returned.

        Raises:
            EmptyBufferError: no episode has such a window.
            SchemaError: a value out of its range.
        """
        windows = Windows(length, burn_in, boundary, stride)
        size = whole_number("batch_size", batch_size)
        draws = self.generator.random(size)
        sampler = self._window_sampler(windows)
        draw = errors_with_path(self.store.path, lambda index: sampler.draw(index, draws))
        gatherer = self._sequence_gatherer(windows.length, windows.burn_in)
        return self.store.live.gather(draw, gatherer, out)

    def sequence_batches(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        boundary: str = "drop",
        stride: int = 1,
        epochs: int | None = 1,
        *,
        shuffle: bool = True,
    ) -> Iterator[SequenceBatch]:
        """Every window once an epoch; an epoch's last batch may be smaller.

        Args:
            batch_size: B.
            length: as of `sample_sequences`, and so are those that follow.
            burn_in: steps before them.
            boundary: ``drop``, ``pad`` or ``shift``.
            stride: steps from one window to the next.
            epochs: how many; None for no end.
            shuffle: False keeps the order of the ids.

        Raises:
            EmptyBufferError: no episode has such a window.
            SchemaError: a value out of its range.
        """
        size = whole_number("batch_size", batch_size)
        windows = Windows(length, burn_in, boundary, stride)
        epochs = whole_number_or_none("epochs", epochs, 0)
        self.store.live.look(errors_with_path(self.store.path, self._window_sampler(windows).total))
        return self._sequence_batches(size, windows, epochs, shuffle)

    def _sequence_batches(
        self, size: int, windows: Windows, epochs: int | None, shuffle: bool
    ) -> Iterator[SequenceBatch]:
        gatherer = self._sequence_gatherer(windows.length, windows.burn_in)
        every = errors_with_path(self.store.path, self._window_sampler(windows).every)
        done = 0
        while epochs is None or done < epochs:
            ids = self.store.live.look(every)
            if shuffle:
                ids = np.random.default_rng([self._epoch_seed, self._epoch]).permutation(ids)
            self._epoch += 1
            done += 1
            for start in range(0, len(ids), size):
                yield self.store.live.gather_ids(ids[start : start + size], gatherer)

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
        windows = Windows(length)
        sampler = self._portion_sampler(windows)
        draws = self.generator.random((2, size))
        draw = errors_with_path(self.store.path, lambda index: sampler.draw(index, draws))
        return self.store.live.gather(
            draw, self._sequence_gatherer(windows.length, windows.burn_in)
        )

    def sample_trajectories(self, n: int, *, replace: bool = True) -> list[LazyTrajectory]:
        """Draw whole episodes uniformly; their columns are read when they are first asked for.

        Args:
            n: how many.
            replace: whether an episode may come twice.

        Raises:
            EmptyBufferError: there is no whole episode.
            SchemaError: without replacement, and there are fewer than `n`.
        """
        size = whole_number("n", n)
        sampler = self._trajectories
        if replace:
            draws = self.generator.random(size)
            draw = errors_with_path(self.store.path, lambda index: sampler.draw(index, draws))
        else:
            seed = draw_seed(self.generator)
            draw = errors_with_path(
                self.store.path, lambda index: sampler.draw_distinct(index, size, seed)
            )
        return self.store.live.lazy_trajectories(draw)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The directories of the stores, in the order of their lanes."""
        return self.store.paths

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending."""
        return self.store.ids

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        """Whole retained episodes; see `Store.episodes`."""
        return self.store.episodes

    def refresh(self) -> Self:
        """Take the newest rows, and lanes, of live stores; see `Store.refresh`."""
        self.store.refresh()
        return self

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mmreplay.Dataset {self.store.path} transitions={len(self)}>"


def _not_evicted(ids: Ids) -> Callable[[Index], Ids]:
    """Those of the ids that no capacity has evicted since they were listed."""

    def valid(index: Index) -> Ids:
        return np.asarray(ids[~index.invalid(ids)])

    return valid


_DATASETS: weakref.WeakSet[Dataset] = weakref.WeakSet()
forks.after_fork_in_child(_DATASETS, lambda dataset: dataset.after_fork_in_child())
