"""`Dataset` and `ReplayBuffer`: a store, a sampler and the settings of a batch, in one object.

Invariant: a buffer adds nothing to what its store holds; a batch is what the store gives for the
ids that the sampler drew.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.columns import Ids
from mmreplay.episodes import Index
from mmreplay.errors import (
    CorruptStoreError,
    EmptyBufferError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.gather import Batch, Settings
from mmreplay.lanes import FLUSH_S, VectorWriter, create
from mmreplay.samplers import epoch_ids, uniform_ids
from mmreplay.schema import Field
from mmreplay.store import Store, Trajectory

__all__ = ["Dataset", "ReplayBuffer", "load"]

Seed = int | Sequence[int] | np.random.SeedSequence | None


class Dataset:
    """Stores loaded for training, read-only; made by `mmreplay.load`. A context manager.

    Attributes:
        store: the `Store` it reads.
        settings: how transitions are rebuilt.
        generator: draws the samples.
    """

    def __init__(self, store: Store, settings: Settings, seed: Seed) -> None:
        """Sample from `store`."""
        self.store = store
        self.settings = settings
        self._gatherer = store.gatherer(settings)
        self.generator = np.random.default_rng(seed)
        self._epoch_seed = int(np.random.default_rng(seed).integers(1 << 62))
        self._epoch = 0
        _DATASETS.add(self)

    def leave_parent(self, lineage: tuple[int, ...]) -> None:
        """In a forked child: draw from a stream of its own, not once more what the parent draws."""
        bits = np.random.SeedSequence(self._epoch_seed, spawn_key=lineage)
        self.generator = np.random.default_rng(bits)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.store)

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw transitions uniformly, with replacement.

        Args:
            batch_size: B.
            out: a batch that this object returned for the same B; overwritten and returned.

        Raises:
            EmptyBufferError: there is no transition yet.
        """
        # Once, however often the store has to read again.
        draws = self.generator.random(_checked_size(batch_size))

        def draw(index: Index) -> Ids:
            try:
                return uniform_ids(index, draws)
            except EmptyBufferError as error:
                raise EmptyBufferError(f"{self.store.path}: {error}") from None

        return self.store.sample(draw, self._gatherer, out)

    def batches(
        self,
        batch_size: int,
        epochs: int | None = 1,
        *,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """Every transition once an epoch.

        Each call goes on with the next epoch's order, so that a loop over calls shuffles anew.

        Args:
            batch_size: B; an epoch's last batch may be smaller.
            epochs: how many; None for no end.
            shuffle: False keeps the order of the ids.
            rank: this process's number, of `world_size`.
            world_size: processes that share each epoch; each transition goes to one of them.
            drop_last: leave out batches that not every rank can fill, so that all ranks get the
                same number of batches of the same size.

        Raises:
            SchemaError: a value out of its range.
            EmptyBufferError: there is no transition.
        """
        size = _checked_size(batch_size)
        if world_size < 1 or not 0 <= rank < world_size:
            raise SchemaError(
                f"rank and world_size: expected 0 <= rank < world_size, found {rank}, {world_size}"
            )
        if epochs is not None and epochs < 0:
            raise SchemaError(f"epochs: expected 0 or more, or None; found {epochs}")
        if not len(self.store):
            raise EmptyBufferError(
                f"{self.store.path}: there is no transition yet; record a reset and a step first"
            )
        return self._batches(size, epochs, shuffle, rank, world_size, drop_last)

    def _batches(
        self,
        size: int,
        epochs: int | None,
        shuffle: bool,
        rank: int,
        world_size: int,
        drop_last: bool,
    ) -> Iterator[Batch]:
        done = 0
        while epochs is None or done < epochs:
            total = len(self.store)
            ids = epoch_ids(
                self.store.index,
                seed=self._epoch_seed,
                epoch=self._epoch,
                shuffle=shuffle,
                rank=rank,
                world_size=world_size,
            )
            self._epoch += 1
            done += 1
            if drop_last:
                ids = ids[: total // world_size // size * size]
            for start in range(0, len(ids), size):
                yield self.store.batch(ids[start : start + size], self._gatherer)

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

        Raises:
            InvalidIdError: an id that is no valid transition, named.
        """
        given = {"n_step": n_step, "gamma": gamma, "padding": padding, "stack_axis": stack_axis}
        changes: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        if stack is not ...:  # None means something here
            changes["stack"] = stack
        gatherer = self._gatherer
        if changes:
            gatherer = self.store.gatherer(dataclasses.replace(self.settings, **changes))
        return self.store.batch(ids, gatherer, out)

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode; see `Store.trajectory`."""
        return self.store.trajectory(number)

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
        """Return the dataset itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and transitions."""
        return f"<mmreplay.Dataset {self.store.path} transitions={len(self)}>"


def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    stack: int | None = 4,
    n_step: int = 1,
    gamma: float = 0.99,
    seed: Seed = 0,
    *,
    padding: str | None = None,
    stack_axis: int = 0,
) -> Dataset:
    """Open stores for training, read-only.

    Args:
        path: one store, a list of stores, or a glob pattern; lanes are numbered on through all.
        stack: frames an observation; None for one frame without an axis of its own.
        n_step: most steps of a return.
        gamma: discount a step.
        seed: of the sampling.
        padding: ``reset`` or ``zero``; None takes the first store's.
        stack_axis: 0 puts the frames in front, -1 last.

    Raises:
        StoreNotFoundError: nothing there, or nothing that the pattern matches.
        SchemaError: stores whose rows differ, or a setting out of its range.
    """
    store = Store(_matching(path), padding=padding)
    return Dataset(store, Settings(stack, n_step, gamma, store.padding, stack_axis), seed)


def _matching(path: Any) -> list[Path]:
    if not isinstance(path, (str, os.PathLike)):
        if not isinstance(path, Iterable):
            raise SchemaError(f"load: expected a path, a list of them or a pattern, found {path!r}")
        found = [one for each in path for one in _matching(each)]
        if not found:
            raise StoreNotFoundError("load: expected one path or more, found an empty list")
        return found
    text = os.fspath(path)
    if not Path(text).exists() and glob.has_magic(text):
        names = sorted(glob.glob(text))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        if not names:
            raise StoreNotFoundError(f"{text}: nothing matches this pattern")
        return [Path(name) for name in names]
    return [Path(text)]


def _checked_size(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise SchemaError(f"batch_size: expected 1 or more, found {size!r}")
    return int(size)


def _saver(data: Dataset) -> Callable[[], str | None]:
    """What gives the random state to be saved; holds no buffer alive that was dropped unclosed."""
    there = weakref.ref(data)

    def state() -> str | None:
        found = there()
        if found is None:
            return None
        bits = found.generator.bit_generator
        with bits.lock:  # a string, as its numbers of 128 bits are more than many readers take
            return json.dumps(bits.state)

    return state


def _restore(generator: np.random.Generator, saved: str, path: Path) -> None:
    try:
        generator.bit_generator.state = json.loads(saved)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise CorruptStoreError(
            f"{path}: the saved random state cannot be read: {error}; run `mmreplay verify`"
        ) from error


class ReplayBuffer:
    """A live replay buffer: created, or resumed where it stopped, with its random state.

    One thread steps; the same or others sample. A context manager: leaving it closes the store,
    which is then an offline dataset.

    Args:
        path: the store's directory; its parent must exist.
        capacity: most transitions to keep; None keeps everything. May change with each opening.
        stack, n_step, gamma, padding, stack_axis: how transitions are rebuilt; see `load`.
        seed: of the sampling; counts only at creation, then the stored generator goes on.
        frame, action, codec, extras, reward_dtype, env, metadata: as for `create`; left out, or
            matching, when the store exists.
        lanes: that many lanes, for a vector environment.
        flush_s: seconds between flushes by the clock; 0 for none.

    Raises:
        SchemaError, LockedError, DiskFullError, FormatError, CorruptStoreError: as `create`.

    Attributes:
        store: the same data, read-only.
        writer: the `Writer` or `VectorWriter`.
        reset: ``reset(frame)`` begins an episode: `Writer.reset`, or `VectorWriter.reset`.
        step: ``step(action, reward, next_frame, terminated, truncated)`` appends a step:
            `Writer.step`, or `VectorWriter.step`.
    """

    reset: Callable[..., None]
    step: Callable[..., None]

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        stack: int | None = 4,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: Seed = 0,
        *,
        frame: Field | Mapping[str, Field] | None = None,
        action: Field | None = None,
        codec: str | Mapping[str, Any] | None = None,
        extras: Mapping[str, Field] | None = None,
        reward_dtype: npt.DTypeLike | None = None,
        env: Any = None,
        lanes: int | None = None,
        padding: str | None = None,
        stack_axis: int = 0,
        metadata: Mapping[str, Any] | None = None,
        flush_s: float = FLUSH_S,
    ) -> None:
        """See the class."""
        settings = Settings(stack, n_step, gamma, padding or "reset", stack_axis)
        settings.check_evicting(evicts=capacity is not None)
        self.writer = create(
            path,
            frame,
            action,
            capacity,
            extras,
            reward_dtype,
            codec,
            env=env,
            lanes=lanes,
            padding=padding,
            metadata=metadata,
            append=True,
            flush_s=flush_s,
        )
        try:
            self._open(Path(path), settings, padding, seed)
        except BaseException:
            self.writer.close()
            raise

    def _open(self, path: Path, settings: Settings, padding: str | None, seed: Seed) -> None:
        writer = self.writer
        self._lanes = writer.writers if isinstance(writer, VectorWriter) else (writer,)
        store = Store([path], padding=padding)
        self.store = store
        self._data = Dataset(store, dataclasses.replace(settings, padding=store.padding), seed)
        saved = self._lanes[0].stored_generator()
        if saved is not None:
            _restore(self._data.generator, saved, path)
        self._lanes[0].save_generator(_saver(self._data))
        # The writer's own methods: one call less in what is called millions of times.
        self.reset = writer.reset
        self.step = writer.step

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw transitions uniformly; see `Dataset.sample`."""
        return self._data.sample(batch_size, out)

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
    ) -> Batch:
        """The transitions with these ids; see `Dataset.transitions`."""
        return self._data.transitions(
            ids,
            out,
            stack=stack,
            n_step=n_step,
            gamma=gamma,
            padding=padding,
            stack_axis=stack_axis,
        )

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode; see `Store.trajectory`."""
        return self.store.trajectory(number)

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        """Whole retained episodes; see `Store.episodes`."""
        return self.store.episodes

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending."""
        return self.store.ids

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt."""
        return self._data.settings

    @property
    def generator(self) -> np.random.Generator:
        """Draws the samples; its state is saved at flush and close."""
        return self._data.generator

    @property
    def capacity(self) -> int | None:
        """Most transitions kept, over all lanes."""
        shares = [lane.metadata["capacity"] for lane in self._lanes]
        return None if None in shares else sum(shares)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.store)

    def flush(self) -> None:
        """Make all rows, and the random state, durable."""
        self.writer.flush()

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        try:
            self.writer.close()
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        """Return the buffer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and rows."""
        return f"<mmreplay.ReplayBuffer {self.writer.path}>"


_DATASETS: weakref.WeakSet[Dataset] = weakref.WeakSet()
# The n-th child of a process has the n-th stream below its own, on every run.
_forks = 0
_lineage: tuple[int, ...] = ()


def _count_fork() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


def _leave_parent() -> None:
    global _forks, _lineage
    _lineage, _forks = (*_lineage, _forks), 0
    for dataset in list(_DATASETS):
        dataset.leave_parent(_lineage)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork, after_in_child=_leave_parent)
