"""What datasets, buffers and their wrappers share: how batches are requested.

Invariant: the arguments of a request are checked and documented here only.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmreplay.arguments import true_or_false, whole_number, whole_number_or_none
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.ids import Ids
from mmreplay.sampling.draws import Windows


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

        A window lies in one episode, and each counts once; see docs/semantics.md.

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
        return self._sample_windows(whole_number("batch_size", batch_size), windows, out)

    @abc.abstractmethod
    def _sample_windows(
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
