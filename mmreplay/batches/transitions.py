"""Transitions: ids and columns in, a `Batch` out.

Invariant: a batch holds copies, and what it holds follows from the ids, the settings and the
stored rows alone. docs/semantics.md says what a stack, a return and a discount are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from mmreplay.batches.batch import Batch, Column
from mmreplay.batches.gatherer import BatchGatherer
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index
from mmreplay.ids import Array, Ids
from mmreplay.lazy_frames import joined_shape, parted
from mmreplay.schema import FRAME, Schema


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TransitionSpans:
    """Transitions, and how far their stacks and returns may reach in their episodes.

    Attributes:
        ids: (B,) the transitions.
        begin: (B,) first row of the episode; None if no row before the transition is read.
        steps: (B,) most steps that the return may have; None if all have 1.
    """

    ids: Ids
    begin: Ids | None
    steps: Ids | None


class TransitionGatherer(BatchGatherer[Batch]):
    """Rebuilds transitions of one store by one set of settings."""

    def __init__(self, schema: Schema, settings: Settings) -> None:
        super().__init__(schema, settings)
        k = self._k
        self._one_step = settings.n_step == 1
        # For one step, observation and next observation are views of the same (B, k + 1) frames;
        # for more, of (B, 2k), so that a compressed chunk is decoded once for both.
        self._length = k + 1 if self._one_step else 2 * k
        self._back = np.arange(1 - k, 2 if self._one_step else 1)

    def locate(self, index: Index, ids: Ids) -> TransitionSpans:
        """Take what is needed from the index, so that `fetch` does without it."""
        if self._k == 1 and self._one_step:
            return TransitionSpans(ids, None, None)
        position = index.locate(ids)
        begin = index.begin(position) if self._k > 1 else None
        if self._one_step:
            return TransitionSpans(ids, begin, None)
        # The last row of an episode, or of a lane, is no transition.
        left = index.end(position, ids) - 1 - ids
        return TransitionSpans(ids, begin, np.minimum(left, self.settings.n_step))

    def fetch(
        self, columns: Mapping[str, Column], spans: TransitionSpans, out: Batch | None = None
    ) -> Batch:
        """Read transitions, from `spans` of `locate` and the columns as they were then.

        Raises SchemaError if `out` does not fit; EvictedError, CorruptStoreError as the columns.
        """
        ids = spans.ids
        batch = self._batch(columns, out, ids.size)
        if spans.steps is None:
            self._returns.rewards(columns, ids, batch.reward)
            np.not_equal(columns["non_terminals"].take(ids), 0, out=batch.non_terminal)
            np.multiply(batch.non_terminal, self.settings.gamma, out=batch.discount)
            window = ids[:, None] + self._back
        else:
            following = self._returns.fill(
                columns, ids, spans.steps, batch.reward, batch.discount, batch.non_terminal
            )
            ends = np.stack((ids, following), axis=1)
            window = (ends[:, :, None] + self._back).reshape(ids.size, self._length)
        self._frames(columns, window, spans.begin, batch)
        columns["actions"].take(ids, batch.action)
        batch.id[:] = ids
        batch.weight.fill(1)
        for name, path in self._extra_paths.items():
            columns[path].take(ids, batch.extras[name])
        return batch

    def _frames(
        self, columns: Mapping[str, Column], window: Ids, begin: Ids | None, batch: Batch
    ) -> None:
        """Fill the observations, with one gather of each frame column."""
        padded = None
        if begin is not None:
            first = begin[:, None]
            if self.settings.padding == "zero":
                padded = window < first
            np.maximum(window, first, out=window)
        for name, path in self._frame_paths.items():
            column = columns[path]
            seen, following = self._of(batch, name)
            if self._copies:
                frames = np.empty((*window.shape, *column.row_shape), column.dtype)
            else:
                frames = seen.base  # type: ignore[assignment]
            column.take(window, frames)
            if padded is not None:
                frames[padded] = 0
            if self._copies:
                parted(seen, self._k, column.row_shape)[...] = frames[:, : self._k]
                parted(following, self._k, column.row_shape)[...] = frames[:, -self._k :]

    # ------------------------------------------------------------ the arrays of a batch

    def _allocate(self, columns: Mapping[str, Column], size: int) -> Batch:
        """Arrays for a batch of `size`, not filled."""
        seen: dict[str, Array] = {}
        following: dict[str, Array] = {}
        for name, path in self._frame_paths.items():
            seen[name], following[name] = self._allocate_frames(size, columns[path])
        actions, rewards = columns["actions"], columns["rewards"].dtype
        is_dict = self._is_dict
        return Batch(
            seen if is_dict else seen[FRAME],
            following if is_dict else following[FRAME],
            np.empty((size, *actions.row_shape), actions.dtype),
            np.empty(size, rewards),
            np.empty(size, rewards),
            np.empty(size, np.bool_),
            np.empty(size, np.int64),
            np.empty(size, np.float32),
            {
                name: np.empty((size, *columns[path].row_shape), columns[path].dtype)
                for name, path in self._extra_paths.items()
            },
        )

    def _allocate_frames(self, size: int, column: Column) -> tuple[Array, Array]:
        shape, k = column.row_shape, self._k
        if self._copies:
            last = (size, *joined_shape(k, shape))
            return np.empty(last, column.dtype), np.empty(last, column.dtype)
        frames = np.empty((size, self._length, *shape), column.dtype)
        if self.settings.stack is None:
            return frames[:, 0], frames[:, 1]
        return frames[:, :k], frames[:, -k:]
