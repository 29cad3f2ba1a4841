"""`Dataset`: a store, a sampler and the settings of a batch, in one object.

Invariant: a batch is what the store returns for the ids that were drawn.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import is_reproducible, true_or_false, whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import AnyBatch, FieldWindows, WindowBatch
from mmreplay.datasets import subsets
from mmreplay.datasets.epochs import EpochArguments, Epochs, Part, Request
from mmreplay.datasets.read_ahead import Begin, Read, ReadAhead
from mmreplay.datasets.source import Source, Windowed, WindowSource
from mmreplay.datasets.statistics import Statistics, statistics_of
from mmreplay.datasets.store_draws import Draw, StoreDraws, around, state_of_bits
from mmreplay.datasets.updates import Updates
from mmreplay.errors import ClosedError, MmreplayError
from mmreplay.ids import Ids
from mmreplay.reading.episode_table import arrow_table
from mmreplay.reading.lookup import LateRebuilder
from mmreplay.reading.store import Store, listed
from mmreplay.reading.trajectories import LazyTrajectory, Trajectory
from mmreplay.sampling.draws import Windows
from mmreplay.sampling.selection import Selection
from mmreplay.schema import Schema
from mmreplay.system import forks

Seed = int | Sequence[int] | np.random.SeedSequence | None


class SampleLimiter(Protocol):
    """Says when samples may be drawn, and counts them; see `mmreplay.distributed`."""

    def wait(self, n: int) -> None:
        """Return when `n` more may be drawn."""

    def sample(self, n: int) -> None:
        """Count samples that were drawn."""


class Dataset(WindowSource["Dataset"]):
    """Stores loaded for training, read-only; made by `mmreplay.load`. A context manager.

    A pickle of it, for a spawned process, holds paths, settings and random state: unpickling opens
    the stores again, and draws what this object would have drawn next.

    Attributes:
        store: the `Store` it reads.
        settings: how transitions are rebuilt.
        generator: draws the samples.
    """

    store: Store
    settings: Settings
    generator: np.random.Generator
    limiter: SampleLimiter | None = None

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
        self.updates = Updates(store.live)
        _DATASETS.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """Everything except what the store and the settings determine."""
        state = {k: v for k, v in self.__dict__.items() if k not in {"draws", "updates"}}
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

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        return self.store.schema

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self.draws.look(lambda transitions: transitions.n_transitions)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        return self._next(size, self.begin_sample, (size, replace, group), out)

    def _next(self, size: int, begin: Begin[Read], given: Any, out: Read | None = None) -> Read:
        limiter = self.limiter
        if limiter is not None:
            limiter.wait(size)
        batch = self.read_ahead.next(self.store.live, self.generator, begin, given, out)
        if limiter is not None:
            limiter.sample(size)
        return batch

    def begin_sample(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        """Draw the random numbers of a batch of `sample`."""
        return self.draws.transitions(generator, size, replace, group)

    def _batches(self, given: EpochArguments, windows: Windows | None) -> Iterator[Any]:
        draws = self.draws
        gatherer = draws.gatherer if windows is None else draws.sequence_gatherer(windows)
        return self.read_batches(given, lambda _: gatherer, windows)

    def read_batches(
        self,
        given: EpochArguments,
        gatherer_of: Callable[[list[int]], LateRebuilder[AnyBatch]],
        windows: Windows | None = None,
        frames: tuple[int, int] | None = None,
        *,
        read_ahead: ReadAhead | None = None,
    ) -> Iterator[AnyBatch]:
        """See `batches` and `sequence_batches`; `gatherer_of` takes a seed per batch.

        `read_ahead` instead of the dataset's own.
        """
        live, selection = self.store.live, self._selection
        read_ahead = read_ahead or self.read_ahead
        digest = None if selection is None else selection.digest
        listed, valid = self.draws.every(windows), self.draws.valid(windows)
        request = Request(given, self.settings, digest, windows, frames, live, listed, valid)
        self._epochs.check(request)
        self.draws.check_any(windows)

        def read_each(parts: Iterable[Part]) -> Iterator[AnyBatch]:
            each = (Draw(choose, gatherer_of(seed), kept=kept) for choose, kept, seed in parts)
            return read_ahead.each(live, each)

        return self._epochs.read(request, read_each)

    def state_dict(self) -> dict[str, Any]:
        bits = self.generator.bit_generator
        with bits.lock:
            return {"generator": copy.deepcopy(bits.state), **self._epochs.state()}

    def _restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        bits, restore = state_of_bits(state, self.generator), self._epochs.restoring(state)

        def both() -> None:
            restore()
            self.generator.bit_generator.state = bits

        return both

    def _transitions(self, ids: npt.ArrayLike, out: Batch | None, changes: dict[str, Any]) -> Batch:
        live, gatherer = self.store.live, self.draws.gatherer
        if changes:
            gatherer = live.gatherer(dataclasses.replace(self.settings, **changes))
        return live.gather(live.valid_ids(ids), gatherer, out)

    def update(self, ids: npt.ArrayLike, /, **columns: npt.ArrayLike) -> None:
        self.updates.update(ids, columns)

    @property
    def n_late_updates(self) -> int:
        return self.updates.n_late

    def flush(self) -> None:
        self.updates.flush()

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode, by its index in `episodes`; see `Store.trajectory`."""
        return self.store.numbered_trajectory(number, lambda: self.episodes)

    def _sample_sequences(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        return self._next(size, self.draws.sequences, (windows, size), out)

    def field_windows(self, windows: Windowed, boundary: str) -> FieldWindows:
        """See `WindowSource`."""
        fields = FieldWindows.of(windows, boundary, self.draws.names)
        fields.check_evicting(evicts=self.store.live.evicts)
        return fields

    def _sample_windows(
        self, size: int, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        return self._next(size, self.begin_windows, (size, fields), out)

    def begin_windows(
        self, generator: np.random.Generator, size: int, fields: FieldWindows
    ) -> Draw[WindowBatch]:
        """Draw the random numbers of a batch of `sample_windows`."""
        if fields.boundary == "drop":
            return self.draws.fitting(generator, fields, size)
        draw: Draw[Any] = self.begin_sample(generator, size, replace=True, group=None)
        return dataclasses.replace(draw, gatherer=self.draws.field_gatherer(fields))

    def _windows(
        self, ids: npt.ArrayLike, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        live = self.store.live
        return live.gather(live.valid_ids(ids), self.draws.field_gatherer(fields), out)

    def _window_batches(self, given: EpochArguments, fields: FieldWindows) -> Iterator[WindowBatch]:
        gatherer = self.draws.field_gatherer(fields)
        windows = around(fields) if fields.boundary == "drop" else None
        return self.read_batches(given, lambda _: gatherer, windows, fields.frames)

    def _sample_portions(self, size: int, windows: Windows) -> SequenceBatch:
        return self._next(size, self.draws.portions, (windows, size))

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

    def statistics(
        self,
        fields: Sequence[str] | None = None,
        quantiles: Sequence[float] = (0.01, 0.99),
        *,
        seed: int = 0,
    ) -> dict[str, Statistics]:
        """Mean, deviation, bounds and quantiles of what these transitions hold, by field.

        Of the values before each step, as stored: no final observations, stacks or returns. Columns
        that are not requested are not read, and a piece of the others at a time. Of images, which
        are fields of two axes or more and 1,024 numbers or more, at most 1,000 are read.

        Args:
            fields: ``observation``, or of dict observations ``observation.KEY``; ``action``,
                ``reward``, and extras by name. None for all.
            quantiles: which ones, in [0, 1].
            seed: of the samples.

        Raises:
            EmptyBufferError: there is no transition.
            SchemaError: no such field, a value out of its range, or another store at the path.
        """
        return statistics_of(self.store.live, self.draws, self._selection, fields, quantiles, seed)

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.store.paths

    @property
    def ids(self) -> Ids:
        return self.draws.look(lambda transitions: transitions.ids())

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        return subsets.episode_table(self.store, self._selection)

    def episodes_table(self) -> Any:
        """`episodes` as a `pyarrow.Table`; see `Store.episodes_table`."""
        return arrow_table(self.episodes)

    def _select(
        self, episodes: subsets.EpisodeChoice | None, ids: subsets.IdChoice | None
    ) -> Dataset:
        return self._selected(
            subsets.chosen(self.store, self._selection, episodes, ids, lambda: self.ids)
        )

    def _split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        one, other = subsets.parts(self.store, self._selection, fraction, seed)
        return self._selected(one), self._selected(other)

    def _selected(self, selection: Selection) -> Dataset:
        seed = [self._epochs.seed, selection.digest]
        out = Dataset(self.store, self.settings, seed, self.prefetch, selection)
        out._epochs.unshared_seed = self._epochs.unshared_seed
        out.updates = self.updates
        return out

    def refresh(self) -> Self:
        self.store.refresh()
        self.read_ahead.drop()
        return self

    def close(self) -> None:
        if self._selection is None:
            self.updates.close()
            self.store.close()
        self.read_ahead.close()  # afterwards, so that no other thread begins to read ahead again

    def __repr__(self) -> str:
        capacity = getattr(self, "capacity", None)
        what = "" if capacity is None else f" capacity={capacity}"
        given, usual = dataclasses.asdict(self.settings), dataclasses.asdict(Settings())
        what += "".join(f" {key}={one!r}" for key, one in given.items() if one != usual[key])
        what += "" if self._selection is None else " selected"
        try:
            n = f"transitions={len(self)}"
        except MmreplayError as error:
            n = "closed" if isinstance(error, ClosedError) else "unreadable"
        return f"<mmreplay.{type(self).__name__} {listed(self.store.paths)} {n}{what}>"


Source.of_datasets = frozenset({"store", *(name for name in dir(Dataset) if name[0] != "_")})
_DATASETS: weakref.WeakSet[Dataset] = weakref.WeakSet()
forks.after_fork_in_child(_DATASETS, lambda dataset: dataset.after_fork_in_child())
