"""Windows of steps with a time axis: ids and columns in, a `SequenceBatch` out.

Invariant: a step whose mask is True is what `transitions` returns for its id and settings; each
frame of a window is read once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Column, Observation, shapes_of
from mmreplay.batches.gatherer import BatchGatherer
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index, Span
from mmreplay.ids import Array, Ids
from mmreplay.lazy_frames import joined_shape, parted
from mmreplay.schema import Schema


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class SequenceBatch:
    """Windows of T = burn_in + length steps as arrays, batch and time in front.

    Where `mask` is False there is no step: everything is 0 there and the id -1, except frames that
    share the memory of a real step of the window. With ``boundary="cross"`` steps share none.

    Attributes:
        observation: (B, T, k, *frame) as stored, or a dict of these; no k axis for ``stack=None``;
            (B, T, *frame, k) for ``stack_axis=-1``.
        next_observation: the same after m steps. With ``stack_axis=0`` `observation`, and for
            ``n_step=1`` both, are views of one array of frames, read-only for k > 1.
        action: (B, T, *action) as stored.
        reward: (B, T) n-step returns in the rewards' dtype.
        discount: (B, T) gamma ** m * non_terminal, in the rewards' dtype.
        non_terminal: (B, T) bool.
        extras: the declared extra columns, (B, T, ...) each.
        mask: (B, T) bool, whether there is such a step.
        step: (B, T) int64, the step's number in its episode, counted from 0.
        first: (B, T) bool, whether it is the first one of its episode.
        id: (B, T) int64, lane << 40 | row * N + environment.
        weight: (B,) float32 importance weights; 1.
        burn_in: how many of the T steps come before those to learn from.
        terminated: (B, T) bool, whether the last of the m steps ended its episode as terminated.
        truncated: (B, T) bool, whether as truncated.
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    discount: Array
    non_terminal: npt.NDArray[np.bool_]
    extras: dict[str, Array]
    mask: npt.NDArray[np.bool_]
    step: Ids
    first: npt.NDArray[np.bool_]
    id: Ids
    weight: npt.NDArray[np.float32]
    burn_in: int
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.id)

    def __repr__(self) -> str:
        return shapes_of(self)


class SequenceGatherer(BatchGatherer[SequenceBatch]):
    """Rebuilds windows of one store, one length and one set of settings."""

    def __init__(self, schema: Schema, settings: Settings, length: int, burn_in: int) -> None:
        super().__init__(schema, settings)
        self._burn_in, self._steps = burn_in, burn_in + length
        self._n = settings.n_step
        # Relative to the first step after the burn-in: the steps of the window, and the frames of
        # all its stacks and next observations.
        self._times = np.arange(self._steps) - burn_in
        self._ahead = np.arange(1 - self._k, self._steps + self._n) - burn_in

    def locate(self, index: Index, ids: Ids) -> Span:
        """Look up the windows whose first steps after the burn-in are these, (B,)."""
        return index.span(ids, int(self._ahead[-1]))

    def renewed(self, index: Index, span: Span) -> Span:
        """The same windows in an index that has followed its lanes since."""
        return dataclasses.replace(span, steps=index.renewed(span.steps))

    def oldest(self, span: Span) -> Ids:
        """The ids of the windows' oldest steps, with the burn-in: int64 (B,)."""
        return span.steps.at(-np.minimum(span.oldest, self._burn_in)[:, None])[:, 0]

    def fetch(
        self, columns: Mapping[str, Column], span: Span, out: SequenceBatch | None = None
    ) -> SequenceBatch:
        """Read windows, from the `span` of `locate` and the columns as they were then.

        Raises SchemaError if `out` does not fit; EvictedError, CorruptStoreError as the columns.
        """
        size = span.back.size
        batch = self._allocate(columns, size) if out is None else self._fitting(columns, out, size)
        back, oldest, left = (x[:, None] for x in (span.back, span.oldest, span.left))
        times = self._times
        np.greater_equal(times, -oldest, out=batch.mask)
        batch.mask[times >= left] = False
        padded = None if batch.mask.all() else ~batch.mask
        if padded is not None:
            times = np.clip(times, -oldest, left - 1)
        rows = span.steps.at(times)
        batch.id[:] = rows
        batch.weight.fill(1)
        np.add(times, back, out=batch.step)
        np.equal(times, -back, out=batch.first)
        ahead = self._fill_steps(columns, rows, left - times, span.steps.stride, batch)
        is_over = np.zeros((size, 1), np.bool_)
        is_over[span.steps.over] = True
        is_over[span.steps.runs] = False  # when they were drawn
        is_last = (left - times == (1 if ahead is None else ahead)) & is_over
        np.greater(is_last, batch.non_terminal, out=batch.terminated)
        np.logical_and(is_last, batch.non_terminal, out=batch.truncated)
        if padded is not None:  # zeros where there is no step
            batch.id[padded] = -1
            for array in (
                *(batch.action, batch.reward, batch.discount, batch.non_terminal),
                *(batch.step, batch.first, batch.terminated, batch.truncated),
                *batch.extras.values(),
            ):
                array[padded] = np.zeros((), array.dtype)
            if ahead is not None:
                ahead[padded] = 1
        self._fill_frames(columns, span, ahead, batch, whole=padded is None)
        return batch

    def _fill_steps(
        self,
        columns: Mapping[str, Column],
        rows: Ids,
        left: Ids,
        stride: int | Ids,
        batch: SequenceBatch,
    ) -> Ids | None:
        """Fill everything but the frames; returns m, (B, T), unless it is 1 for all."""
        ahead = None
        if self._n == 1:
            self._rewards(columns, rows, batch.reward)
            np.not_equal(columns["non_terminals"].take(rows), 0, out=batch.non_terminal)
            np.multiply(batch.non_terminal, self.settings.gamma, out=batch.discount)
        else:
            if isinstance(stride, np.ndarray):
                stride = stride.repeat(self._steps)
            most = np.minimum(left, self._n).reshape(-1)
            steps = rows.reshape(-1) + np.minimum(self._steps_ahead, most - 1) * stride
            flat = (x.reshape(-1) for x in (batch.reward, batch.discount, batch.non_terminal))
            ahead = np.reshape(self._returns(columns, steps, most, *flat), rows.shape)
        columns["actions"].take(rows, batch.action)
        for name, path in self._extra_paths.items():
            columns[path].take(rows, batch.extras[name])
        return ahead

    # ------------------------------------------------------------ frames

    def _fill_frames(
        self,
        columns: Mapping[str, Column],
        span: Span,
        ahead: Ids | None,
        batch: SequenceBatch,
        *,
        whole: bool,
    ) -> None:
        """Read each frame column once, from the first to the last frame of real steps."""
        windows: dict[int, tuple[Ids, npt.NDArray[np.bool_] | None]] = {}
        for name, path in self._frame_paths.items():
            k = self._stacks[name] or 1
            if k not in windows:
                windows[k] = self._window(span, k, whole=whole)
            window, blank = windows[k]
            column = columns[path]
            seen, following = self._of(batch, name)
            if name in self._copies:
                frames = np.empty((*window.shape, *column.row_shape), column.dtype)
            else:
                frames = seen.base  # type: ignore[assignment]
            column.take(window, frames)
            if blank is not None:
                frames[blank] = 0
            if name in self._copies:
                stacks, nexts = self._views(frames, k)
                shape = column.row_shape
                parted(seen, k, shape)[...] = stacks
                if ahead is None:
                    parted(following, k, shape)[...] = nexts
            if ahead is not None:
                self._take_ahead(frames, ahead, following, name)

    def _window(
        self, span: Span, k: int, *, whole: bool
    ) -> tuple[Ids, npt.NDArray[np.bool_] | None]:
        """The frames of the stacks of k, (B, n), and where they are zeros, if anywhere."""
        window, blank = self._ahead[self._k - k :], None
        if self.settings.padding == "zero":
            blank = span.steps.missing(window)
        if not whole or self._n > 1:
            low = np.maximum(-span.oldest, -self._burn_in) + (1 - k)
            low, high = low[:, None], span.left[:, None]
            outside = (window < low) | (window > high)
            blank = outside if blank is None else blank | outside
            window = np.minimum(np.maximum(window, low), high)
        if blank is not None and not blank.any():
            blank = None
        return span.steps.frames(window), blank

    def _take_ahead(self, frames: Array, ahead: Ids, following: Array, name: str) -> None:
        """The stack after m steps, for each step."""
        k = self._stacks[name] or 1
        size, length = frames.shape[:2]
        rows = np.arange(size)[:, None] * length + np.arange(self._steps) + ahead
        wanted = rows[:, :, None] + np.arange(k)
        flat = frames.reshape(size * length, *frames.shape[2:])
        if name in self._copies:
            stacks = parted(following, k, frames.shape[2:])
            stacks[...] = flat.take(wanted, axis=0)
            return
        if self._stacks[name] is None:
            wanted = rows
        flat.take(wanted, axis=0, out=following, mode="clip")

    def _views(self, frames: Array, k: int) -> tuple[Array, Array]:
        """(B, T, k, *frame) of every step, and the same one row later, over (B, n, *frame)."""
        of_row, of_frame = frames.strides[:2]
        shape = (len(frames), self._steps, k, *frames.shape[2:])
        strides = (of_row, of_frame, of_frame, *frames.strides[2:])
        pair = [
            np.ndarray(shape, frames.dtype, frames, offset, strides) for offset in (0, of_frame)
        ]
        if k > 1:  # writing to one step would change its neighbours
            for view in pair:
                view.flags.writeable = False
        return pair[0], pair[1]

    # ------------------------------------------------------------ the arrays of a batch

    def _allocate(self, columns: Mapping[str, Column], size: int) -> SequenceBatch:
        """Arrays for a batch of `size`, not filled."""
        seen, following = self._observations(columns, size)
        shape, rewards = (size, self._steps), columns["rewards"].dtype
        actions = columns["actions"]
        return SequenceBatch(
            seen,
            following,
            np.empty((*shape, *actions.row_shape), actions.dtype),
            np.empty(shape, rewards),
            np.empty(shape, rewards),
            np.empty(shape, np.bool_),
            self._extras(columns, *shape),
            np.empty(shape, np.bool_),
            np.empty(shape, np.int64),
            np.empty(shape, np.bool_),
            np.empty(shape, np.int64),
            np.ones(size, np.float32),
            self._burn_in,
            np.empty(shape, np.bool_),
            np.empty(shape, np.bool_),
        )

    def _allocate_frames(self, size: int, column: Column, name: str) -> tuple[Array, Array]:
        k = self._stacks[name] or 1
        n_frames = self._ahead.size - self._k + k
        frames = np.empty((size, n_frames, *column.row_shape), column.dtype)
        seen, following = self._views(frames, k)
        if name in self._copies:
            shape = (*seen.shape[:2], *joined_shape(k, frames.shape[2:]))
            seen, following = np.empty(shape, frames.dtype), np.empty(shape, frames.dtype)
        elif self._n > 1:
            following = np.empty(seen.shape, seen.dtype)
        if self._stacks[name] is None:
            return seen[:, :, 0], following[:, :, 0]
        return seen, following
