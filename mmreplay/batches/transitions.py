"""Transitions: ids and columns in, a `Batch` out.

Invariant: a batch holds copies, and follows from the ids, the settings and the stored rows alone.
docs/semantics.md defines stacks, returns and discounts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mmreplay.batches.batch import Batch, Column
from mmreplay.batches.gatherer import BatchGatherer
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index, Steps
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import Array, Ids
from mmreplay.lazy_frames import joined_shape, parted
from mmreplay.schema import Schema


class TransitionGatherer(BatchGatherer[Batch]):
    """Rebuilds transitions of one store with one set of settings."""

    def __init__(self, schema: Schema, settings: Settings) -> None:
        super().__init__(schema, settings)
        k = self._k
        self._one_step = settings.n_step == 1
        self._gamma = np.array(settings.gamma, schema.reward_dtype)  # numpy takes it as it is
        # Observation and next observation are views of the same frames: (B, k + 1) for one step,
        # (B, 2k) for more, so that a compressed chunk is decoded once for both.
        self._length = k + 1 if self._one_step else 2 * k
        self._back = np.arange(1 - k, 1)
        both = self._back, self._back + settings.n_step
        self._window = np.arange(1 - k, 2) if self._one_step else np.concatenate(both)
        self._tiled = self._window[None]  # of each transition of a batch

    def locate(self, index: Index, ids: Ids) -> Steps:
        """Look up all that `fetch` needs from the index."""
        return index.steps(ids, self.settings.n_step, back=self._k > 1)

    def renewed(self, index: Index, steps: Steps) -> Steps:
        """The same steps in an index that has followed its lanes since."""
        return index.renewed(steps)

    def oldest(self, steps: Steps) -> Ids:
        """The ids of the oldest steps of a batch: int64 (B,)."""
        return steps.ids

    def fetch(self, columns: Mapping[str, Column], steps: Steps, out: Batch | None = None) -> Batch:
        """Read transitions, from `steps` of `locate` and the columns as they were then.

        Raises SchemaError if `out` does not fit; EvictedError, CorruptStoreError as the columns.
        """
        ids, size = steps.ids, steps.ids.size
        batch = self._allocate(columns, size) if out is None else self._fitting(columns, out, size)
        m: int | Ids = 1
        if self._one_step:
            self._rewards(columns, ids, batch.reward)
            flags = columns["non_terminals"].take(ids)
            batch.non_terminal[:] = flags
            batch.discount[:] = batch.non_terminal
            np.multiply(batch.discount, self._gamma, batch.discount)
        else:
            ahead = steps.ahead(self._steps_ahead)
            flags = batch.non_terminal
            m = self._returns(columns, ahead, steps.left, batch.reward, batch.discount, flags)
        if isinstance(m, int):
            window = self._tiled
            if len(window) != size:
                window = self._tiled = np.tile(self._window, (size, 1))
        else:
            window = np.empty((size, self._length), np.int64)
            window[:, : self._k] = self._back
            np.add(m[:, None], self._back, out=window[:, self._k :])
        if type(steps.until) is int:
            batch.terminated.fill(False)
            batch.truncated.fill(False)
        else:
            # Of one dtype, or numpy would cast one of them first.
            is_over = steps.until if self._one_step else steps.until == m
            np.greater(is_over, flags, batch.terminated)
            np.logical_and(is_over, flags, batch.truncated)
            if steps.runs.size:
                batch.terminated[steps.runs] = batch.truncated[steps.runs] = False
        self._frames(columns, steps, window, batch)
        columns["actions"].take(ids, batch.action)
        batch.id[:] = ids
        batch.weight.fill(1)
        for name, path in self._extra_paths.items():
            columns[path].take(ids, batch.extras[name])
        return batch

    def _frames(
        self, columns: Mapping[str, Column], steps: Steps, window: Ids, batch: Batch
    ) -> None:
        """Fill the observations, with one gather of each frame column."""
        places = steps.frames(window)
        padded = None
        if self.settings.padding == "zero" and self._k > 1:
            padded = steps.missing(window)
        for name, path in self._frame_paths.items():
            column = columns[path]
            seen, following = self._of(batch, name)
            if self._stacks[name] is None and self._k > 1:  # the newest frame of either stack
                column.take(places.take((self._k - 1, -1), axis=1), seen.base)
                continue
            if name in self._copies:
                frames = np.empty((*places.shape, *column.row_shape), column.dtype)
            else:
                frames = seen.base  # type: ignore[assignment]
            try:
                column.take(places, frames)
            except IndexError as error:  # in a store that someone forged
                raise CorruptStoreError(
                    f"{path}: `step` leads to rows that are not there"
                ) from error
            if padded is not None:
                frames[padded] = 0
            if name in self._copies:
                parted(seen, self._k, column.row_shape)[...] = frames[:, : self._k]
                parted(following, self._k, column.row_shape)[...] = frames[:, -self._k :]

    # ------------------------------------------------------------ the arrays of a batch

    def _allocate(self, columns: Mapping[str, Column], size: int) -> Batch:
        """Arrays for a batch of `size`, not filled."""
        seen, following = self._observations(columns, size)
        actions, rewards = columns["actions"], columns["rewards"].dtype
        return Batch(
            seen,
            following,
            np.empty((size, *actions.row_shape), actions.dtype),
            np.empty(size, rewards),
            np.empty(size, rewards),
            np.empty(size, np.bool_),
            np.empty(size, np.int64),
            np.empty(size, np.float32),
            self._extras(columns, size) if self._extra_paths else {},
            np.empty(size, np.bool_),
            np.empty(size, np.bool_),
        )

    def _allocate_frames(self, size: int, column: Column, name: str) -> tuple[Array, Array]:
        shape, k = column.row_shape, self._k
        if name in self._copies:
            last = (size, *joined_shape(k, shape))
            return np.empty(last, column.dtype), np.empty(last, column.dtype)
        is_stack = self._stacks[name] is not None
        frames = np.empty((size, self._length if is_stack else 2, *shape), column.dtype)
        if not is_stack:
            return frames[:, 0], frames[:, 1]
        return frames[:, :k], frames[:, -k:]
