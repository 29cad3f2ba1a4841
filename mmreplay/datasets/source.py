"""What datasets, buffers and their wrappers share: how batches are requested.

Invariant: the arguments of a request are checked and documented here only.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import true_or_false, whole_number, whole_number_or_none
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import FieldWindows, WindowBatch
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.sampling.draws import Windows

Windowed = Mapping[str, npt.ArrayLike] | FieldWindows
"""Offsets by name, as users give them, or as another source has checked them."""


class Source(abc.ABC):
    """Samples batches."""

    if TYPE_CHECKING:  # attributes of some classes, properties of others

        @property
        def settings(self) -> Settings:
            """How transitions are rebuilt."""

        @property
        def generator(self) -> np.random.Generator:
            """Draws the samples."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Transitions that can be sampled."""

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
    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        """See `sample`."""

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
                evicts rows; ``drop`` of data that samples by priority; data that gives no windows,
                as `Hindsight` and `Mixture` do not.
        """
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
        order = shuffle, shuffle_rows, rank, world_size
        given = EpochArguments(batch_size, epochs, *order, drop_last, epoch)
        return self._window_batches(given, self.field_windows(windows, boundary))

    def field_windows(self, windows: Windowed, boundary: str) -> FieldWindows:  # noqa: ARG002
        """The windows that were asked for, checked; SchemaError if this data gives none."""
        raise SchemaError(
            f"{type(self).__name__} gives no windows of columns, which are as they were stored; "
            f"sample them from the dataset or buffer inside it"
        )

    def _sample_windows(
        self, size: int, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        """See `sample_windows`."""
        raise NotImplementedError

    def _windows(
        self, ids: npt.ArrayLike, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        """See `windows`."""
        raise NotImplementedError

    def _window_batches(self, given: EpochArguments, fields: FieldWindows) -> Iterator[WindowBatch]:
        """See `window_batches`."""
        raise NotImplementedError


class EpochSource(Source):
    """Has epochs, too."""

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
        continues the epoch of that state, after the batches that were returned. The goals of
        `Hindsight` follow from the epoch and the position in it, as the order does.

        Args:
            batch_size: B; an epoch's last batch may be smaller.
            epochs: how many; None for no end. The rest of a continued epoch counts as one.
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
                that this object began.

        Raises:
            SchemaError: a value out of its range; several ranks whose seed is neither a whole
                number nor a sequence of them; a loaded state that was saved with other arguments,
                or, with the first batch, of another store, or some of whose transitions are gone;
                with a later batch, another store at the path.
            EmptyBufferError: there is no transition.
        """
        order = shuffle, shuffle_rows, rank, world_size
        return self._batches(EpochArguments(batch_size, epochs, *order, drop_last, epoch))

    @abc.abstractmethod
    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        """See `batches`."""


class WindowSource(EpochSource):
    """Has windows, too."""

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
    ) -> SequenceBatch:
        """See `sample_sequences`."""


class Around(Source):
    """Wraps one source, and has its settings, random state, ids and `update_priorities`."""

    def __init__(self, data: Any) -> None:
        self.data = data
        if hasattr(data, "update_priorities"):
            self.update_priorities = data.update_priorities

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the data's."""
        settings: Settings = self.data.settings
        return settings

    @property
    def generator(self) -> np.random.Generator:
        """Draws the samples: the data's."""
        generator: np.random.Generator = self.data.generator
        return generator

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending; AttributeError if the data has none."""
        return np.asarray(self.data.ids, np.int64)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.data)
