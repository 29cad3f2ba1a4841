"""What datasets, buffers and their wrappers share: their methods, and which of them a class lacks.

Invariants:
- The arguments of a request are checked and documented here only.
- A wrapper has a public method or property of `Dataset`, or refuses it by name.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import true_or_false, whole_number, whole_number_or_none
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import FieldWindows, WindowBatch
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.subsets import EpisodeChoice, IdChoice
from mmreplay.errors import UnsupportedError
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from mmreplay.sampling.draws import Windows
from mmreplay.schema import Schema

Part = TypeVar("Part")

Windowed = Mapping[str, npt.ArrayLike] | FieldWindows
"""Offsets by name, as users give them, or as another source has checked them."""


class Source(abc.ABC):
    """Samples batches. A context manager."""

    of_datasets: ClassVar[frozenset[str]] = frozenset()
    """The public methods and properties of `Dataset`, which sets this."""
    _lacks: ClassVar[str] = ""
    """Why a wrapper does not have all of these, and what to use instead."""

    if TYPE_CHECKING:  # attributes of some classes, properties of others

        @property
        def settings(self) -> Settings:
            """How transitions are rebuilt."""

        @property
        def generator(self) -> np.random.Generator:
            """Draws the samples."""

        @property
        def schema(self) -> Schema:
            """What a row of a batch holds."""

    else:  # so that a type checker reports what a class does not have

        def __getattr__(self, name: str) -> NoReturn:
            self.check_has(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def check_has(self, *names: str) -> None:
        """Raise UnsupportedError if this object, or what it wraps, lacks one of these."""
        for name in names:
            if self._lacks and name in self.of_datasets and not hasattr(type(self), name):
                raise UnsupportedError(f"{type(self).__name__}.{name}: {self._lacks}")
        data = vars(self).get("data")
        if isinstance(data, Source):
            data.check_has(*names)

    @property
    @abc.abstractmethod
    def paths(self) -> tuple[Path, ...]:
        """The directories of the stores, in the order of their lanes."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def sample(
        self,
        batch_size: int,
        out: Batch | None = None,
        *,
        replace: bool = True,
        group: int | None = None,
    ) -> Batch:
        """Draw transitions: by priority from a `PrioritizedReplayBuffer`, else uniformly.

        Args:
            batch_size: B; of a `Mixture`, of all sources together.
            out: a batch that this object returned for the same B; overwritten and returned.
            replace: whether a transition may occur twice in a batch.
            group: m draws groups of m transitions, one after the other, each group from one
                decoded chunk of consecutive steps: several times as fast, and correlated. Each
                transition is still equally likely. A `Mixture` splits the batch between groups.

        Raises:
            EmptyBufferError: there is no transition yet.
            SchemaError: without replacement, and there are fewer transitions than are drawn, or
                groups are drawn; `batch_size` is not a multiple of `group`; `replace` is not a
                bool; without replacement, or groups, of data that samples by priority.
        """
        # The usual arguments need no check.
        is_usual = type(batch_size) is int and batch_size > 0 and replace is True and group is None
        if not is_usual:
            batch_size = whole_number("batch_size", batch_size)
            group = whole_number_or_none("group", group)
            replace = true_or_false("replace", replace)
        return self._sample(batch_size, out, replace, group)

    @abc.abstractmethod
    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch: ...

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position of this object's batches: random state, seed, epoch and position, as JSON.

        Taken between two batches, it is the state after the last one that was returned. A wrapper
        has that of its data, a `Mixture` those of its sources, and its weights.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called on this object, or on another one like it.

        `batches` or `sequence_batches` with the same arguments then returns what that call had not
        returned, also if the store was moved or copied; `batches` also if rows were added.

        Raises:
            SchemaError: a value that `state_dict` did not return; nothing was changed.
        """
        self._restoring(state)()

    @abc.abstractmethod
    def _restoring(self, state: Mapping[str, Any]) -> Callable[[], None]: ...

    @abc.abstractmethod
    def refresh(self) -> Self:
        """Take the newest rows and lanes of live stores; see `Store.refresh`.

        Batches that were read ahead are discarded, so the next one shows these rows.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the stores, and let others update their columns; a selection leaves them open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EpochSource(Source, Generic[Part]):
    """Has ids, episodes, epochs, and subsets, of type `Part`."""

    @property
    @abc.abstractmethod
    def ids(self) -> Ids:
        """Every valid transition id, ascending."""

    @property
    @abc.abstractmethod
    def episodes(self) -> npt.NDArray[np.void]:
        """Whole retained episodes: see `Store.episodes`; and ``env``, counted over all lanes.

        In a selection, the episodes whose steps are all selected.
        """

    if TYPE_CHECKING:  # an attribute of some classes, a property of others

        @property
        def store(self) -> Store:
            """The store that is read."""

    def batches(
        self,
        batch_size: int,
        epochs: int | None = 1,
        *,
        shuffle: bool | Literal["full"] = True,
        shuffle_rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """Every transition once per epoch.

        Each call continues with the next epoch's order, so a loop over calls shuffles again. The
        order follows from the seed and the epoch's number: ranks must be in the same epoch, so
        each calls this equally often, or names the epoch. The first call after `load_state_dict`
        continues the call of that state, after the batches that were returned. The goals of
        `Hindsight` follow from the epoch and the position in it, as the order does.

        Args:
            batch_size: B; an epoch's last batch may be smaller.
            epochs: how many; None for no end. A continued call counts those that it had completed.
            shuffle: True takes stretches of consecutive steps in random order, and shuffles those
                that fit into a pool, so compressed frames are decoded about once per epoch.
                ``full`` puts every transition anywhere, and decodes a chunk for almost each of
                them. False keeps the order of the ids.
            shuffle_rows: rows of such a pool; None for 192 MiB of frames, at least 1,024 and at
                most 1,048,576 rows. About a third more than a pool is kept in memory, decoded.
            rank: this process's number, of `world_size`.
            world_size: processes that share each epoch; each transition goes to one of them. If
                they shuffle, they need the same seed.
            drop_last: leave out batches that not every rank can fill, so that all ranks get the
                same number of batches of the same size.
            epoch: the number of the first epoch, 0 or more; None continues after the last one
                that this object began. That of a loaded state is continued, and counts as one.

        Raises:
            SchemaError: a value out of its range; several ranks whose seed is neither a whole
                number nor a sequence of them; a loaded state that was saved with other arguments,
                or, with the first batch, of another store, or some of whose transitions are gone;
                with a later batch, another store at the path.
            EmptyBufferError: there is no transition.
        """
        order = shuffle, shuffle_rows, rank, world_size
        return self._batches(EpochArguments(batch_size, epochs, *order, drop_last, epoch), None)

    @abc.abstractmethod
    def _batches(self, given: EpochArguments, windows: Windows | None) -> Iterator[Any]: ...

    def select(self, *, episodes: EpisodeChoice | None = None, ids: IdChoice | None = None) -> Part:
        """Some of the transitions, as another dataset; rows added later are not in it.

        It reads the same store with the same settings, and does not close it. Its random state
        follows from this object's seed and from the selection. It samples uniformly, also if
        this object samples by priority. A wrapper gives itself around a selection of its data.

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
        return self._select(episodes, ids)

    @abc.abstractmethod
    def _select(self, episodes: EpisodeChoice | None, ids: IdChoice | None) -> Part: ...

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Part, Part]:
        """Two datasets, as from `select`, with each episode in one of them.

        Args:
            fraction: of the episodes that are in the first, in (0, 1), rounded; each has at least
                one.
            seed: determines which; the same episodes and seed give the same parts.

        Raises:
            SchemaError: a fraction out of its range, or fewer than two episodes.
        """
        return self._split(fraction, whole_number("seed", seed, 0))

    @abc.abstractmethod
    def _split(self, fraction: float, seed: int) -> tuple[Part, Part]: ...

    @abc.abstractmethod
    def update(self, ids: npt.ArrayLike, /, **columns: npt.ArrayLike) -> None:
        """Store other values of derived columns, in a buffer or with ``load(update=[...])``.

        Args:
            ids: integers of any shape. -1 is skipped; of an id that occurs twice, the last value
                counts; values of evicted transitions are only counted, in `n_late_updates`.
            columns: (*ids.shape, *field shape) by the name of the column; seen by readers at once.

        Raises:
            SchemaError: values that do not fit, or a column that is not open for updates.
            InvalidIdError: an id that never was a transition. Nothing was changed, as above.
            LockedError: another process updates the column, which a buffer locks on first use.
        """

    @property
    @abc.abstractmethod
    def n_late_updates(self) -> int:
        """Values that `update` was given after their transition had been evicted."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Make updated values durable, and all steps of a buffer."""


class WindowSource(EpochSource[Part]):
    """Has transitions by id and windows, too."""

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
        return self._transitions(ids, out, changes)

    @abc.abstractmethod
    def _transitions(
        self, ids: npt.ArrayLike, out: Batch | None, changes: dict[str, Any]
    ) -> Batch: ...

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

        A window lies in one episode, except with ``cross``, and each counts once; see
        docs/semantics.md.

        Args:
            batch_size: B.
            length: steps to learn from.
            burn_in: steps before them, for the state of a recurrent network (Kapturowski et al.
                2019, section 3).
            boundary: ``drop`` takes only windows whose steps are all there; ``pad`` begins at any
                step, with zeros and a False mask for what is missing; ``shift`` is ``drop``, and
                also takes the window that ends with the episode, padded if the episode is shorter;
                ``cross`` takes consecutive rows of an environment across its episodes, with a False
                mask where it was left out.
            stride: steps from one window to the next, from the episode's oldest step on; of
                ``cross`` rows, from the oldest row on.
            out: a batch that this object returned for the same B and lengths; overwritten and
                returned.

        Raises:
            EmptyBufferError: no episode has such a window.
            SchemaError: a value out of its range.
        """
        windows = Windows(length, burn_in, boundary, stride)
        return self._sample_sequences(whole_number("batch_size", batch_size), windows, out)

    @abc.abstractmethod
    def _sample_sequences(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch: ...

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
        return self._batches(given, Windows(length, burn_in, boundary, stride))

    def sample_portions(self, batch_size: int, length: int) -> SequenceBatch:
        """Draw B windows of T = `length` steps: an episode by its length, then a window in it.

        Only whole episodes of T steps or more are drawn; the windows of one are equally likely.

        Raises:
            EmptyBufferError: no whole episode has as many steps.
            SchemaError: a value out of its range.
        """
        return self._sample_portions(whole_number("batch_size", batch_size), Windows(length))

    @abc.abstractmethod
    def _sample_portions(self, size: int, windows: Windows) -> SequenceBatch: ...

    def sample_windows(
        self,
        batch_size: int,
        windows: Windowed,
        boundary: str = "pad",
        out: WindowBatch | None = None,
    ) -> WindowBatch:
        """Draw steps as `sample` does, and read each column at its own offsets from them.

        Only what is named is read, as it is stored: without stacks, returns or clipping.

        Args:
            batch_size: B.
            windows: by name, a number or an array of numbers of steps from the drawn one, in any
                order. Names are ``observation``, ``observation.KEY`` of dict observations,
                ``action``, ``reward``, ``non_terminal`` and the extras'. Offset 0 of an observation
                is the one before the drawn step; 1 after an episode's last step is its final one.
            boundary: ``pad`` draws any step; beyond its episode the first or last value is
                repeated, rewards are 0, and the mask is False. ``drop`` draws only steps around
                which all of it is there.
            out: a batch that this object returned for the same B and windows; overwritten and
                returned.

        Raises:
            EmptyBufferError: there is no transition, or with ``drop`` no such step.
            SchemaError: a name or value that is not as above; an offset below -64 where a capacity
                evicts rows; ``drop`` of data that samples by priority.
        """
        self.check_has("sample_windows")
        fields = self.field_windows(windows, boundary)
        return self._sample_windows(whole_number("batch_size", batch_size), fields, out)

    def windows(
        self, ids: npt.ArrayLike, windows: Windowed, out: WindowBatch | None = None
    ) -> WindowBatch:
        """The windows around given steps, (B,) ids, in their order; padded as by `sample_windows`.

        Raises:
            InvalidIdError: an id that is not a valid transition, named.
            SchemaError: as for `sample_windows`.
        """
        self.check_has("windows")
        return self._windows(ids, self.field_windows(windows, "pad"), out)

    def window_batches(
        self,
        batch_size: int,
        windows: Windowed,
        boundary: str = "pad",
        epochs: int | None = 1,
        *,
        shuffle: bool | Literal["full"] = True,
        shuffle_rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int | None = None,
    ) -> Iterator[WindowBatch]:
        """Every step that `sample_windows` may draw once per epoch; all weights are 1.

        The arguments up to `boundary` are those of `sample_windows`, the others those of `batches`.

        Raises:
            EmptyBufferError: as for `sample_windows`.
            SchemaError: as for `sample_windows` and `batches`.
        """
        self.check_has("window_batches")
        order = shuffle, shuffle_rows, rank, world_size
        given = EpochArguments(batch_size, epochs, *order, drop_last, epoch)
        return self._window_batches(given, self.field_windows(windows, boundary))

    @abc.abstractmethod
    def field_windows(self, windows: Windowed, boundary: str) -> FieldWindows:
        """The windows that were asked for, checked."""

    @abc.abstractmethod
    def _sample_windows(
        self, size: int, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch: ...

    @abc.abstractmethod
    def _windows(
        self, ids: npt.ArrayLike, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch: ...

    @abc.abstractmethod
    def _window_batches(
        self, given: EpochArguments, fields: FieldWindows
    ) -> Iterator[WindowBatch]: ...
