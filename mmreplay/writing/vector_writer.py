"""The writer of a lane of many environments that step together.

Invariant: a step is there for all environments or for none: it is one row, and exists from the
moment `committed` passes it. Everything that can fail happens before that.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.schema import FRAME, Field
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.writing.appender import Appender
from mmreplay.writing.lane_writer import LaneWriter, Mask
from mmreplay.writing.row_values import Overlap, VectorValues, checked_dtype

_NEVER = -1
"""The first step of the episode of an environment of which none runs."""


class VectorWriter(LaneWriter):
    """Appends steps of a vector environment to one lane, all environments at once.

    Made by `mmreplay.create` with ``lanes=``. One thread at a time may call it; readers, in this
    process or others, need not care. A context manager: leaving it closes the lane. Its length is
    the number of environments.

    Attributes:
        path: the lane's directory.
        n_steps: transitions committed by this writer since it was opened.
        files: the lane's files, for the rest of the package.
    """

    def _attach(self) -> None:
        self.n_steps = 0
        n = self._n = self.files.n
        schema = self.schema
        self._values = VectorValues(schema, n)
        self._everyone = np.arange(n)
        self._overlaps: dict[int, Overlap] = {}
        self._paths = tuple(schema.frame_paths.values())
        self._sole = None if schema.is_dict else schema.frames[FRAME]
        self._has_extras = bool(schema.extra_fields)
        # What a step looks at each time. A dict never has the dtype of frames: its arrays are
        # looked at one by one.
        frame, action = self._sole or Field((), "bool"), schema.action
        self._expected = (
            None if self._sole is None else checked_dtype(frame.dtype),
            (n, *frame.shape),
            checked_dtype(action.dtype),
            (n, *action.shape),
            checked_dtype(schema.reward_dtype),
            (n,),
        )
        self._kept = bytes(n), np.ones(n, np.bool_), np.zeros((), np.int64)
        self._rows_stop = 0
        # By environment, the first step of the episode that runs.
        self._begins = np.full(n, _NEVER, np.int64)
        self._all_running = False
        self._any_fresh = False  # whether some episode's next step is its first one

    def __len__(self) -> int:
        """Environments."""
        return self._n

    @property
    def running(self) -> Mask:
        """(N,) bool: the environments of which an episode runs."""
        if not self._is_over:
            self._settle()
        running: Mask = self._begins != _NEVER
        return running & (not self._closed)

    def reset(self, frames: Any, mask: npt.ArrayLike | None = None, **fields: Any) -> None:
        """Begin an episode in every environment, or in those where `mask` is True.

        An episode of theirs that runs ends here as truncated.

        Args:
            frames: (N, *frame), or a list with the `LazyFrames` of each environment; or a dict of
                these.
            mask: (N,) bool.
            fields: declared fields of the episodes that begin, one value for all of them or
                (N, ...); 0 or "" where nothing is given.

        Raises:
            SchemaError: frames, a mask or fields that do not fit, or LazyFrames from mid-episode.
            DiskFullError: no room; nothing was changed.
            FailedStoreError, ClosedError: writing is over.
        """
        self._guard()
        which = self._environments(mask)
        if mask is not None and self._advice is not None:
            warnings.warn(self._advice, stacklevel=2)
            self._advice = None
        newest = functools.partial(self._newest_frames, which=which, begins=True)
        values = self._values.frames(frames, newest)
        of_episodes = self._episodes.checked(fields, which)
        if not which.size:
            return
        self._settle()
        head = self._head
        self._border, self._is_settled = 0, False
        self._end(which)
        for path, value in values.items():
            rows = self._rows.stored(path, head)
            if mask is None:
                rows[...] = value
            else:
                rows[which] = value[which]
        self._episodes.reset(which, of_episodes)
        self._any_fresh = True
        self._begins[which] = head
        self._is_settled = True  # the next step prepares itself

    def step(  # noqa: C901, PLR0912, PLR0915 (one function: it is called millions of times)
        self,
        actions: Any,
        rewards: Any,
        frames: Any,
        terminated: Any,
        truncated: Any,
        *,
        life_lost: npt.ArrayLike | None = None,
        mask: npt.ArrayLike | None = None,
        **extras: Any,
    ) -> None:
        """Append one step of every environment, or of those where `mask` is True.

        Args:
            actions: (N, *action).
            rewards: (N,).
            frames: (N, *frame), or a list with the `LazyFrames` of each environment; or a dict of
                these: the observations after the step, the final ones where an episode ended.
            terminated: (N,) bool.
            truncated: (N,) bool.
            life_lost: (N,) bool.
            mask: (N,) bool; may leave out only environments of which no episode runs.
            extras: (N, ...) each; derived ones may be left out, and are 0 then.

        Raises:
            SchemaError: an episode does not run where it must, or runs where it must not; or a
                value does not fit its field.
            DiskFullError: no room; nothing was changed, the same call works once there is.
            FailedStoreError, ClosedError: writing is over.
        """
        t = self._head
        if t >= self._border:
            self._prepare()
            t = self._head
        frame_rows, action_rows, reward_rows, flag_rows, reset_rows, end_rows, numbers, at = (
            self._places
        )
        frame_dtype, frame_shape, action_dtype, action_shape, reward_dtype, shape = self._expected
        none, everyone, following = self._kept
        i = t - at
        chosen: Mask | None = None
        if mask is not None or not self._all_running:
            chosen = self._chosen(mask)
        # Row t + 1 of frames, which is unused until this step is committed.
        if (
            type(frames) is np.ndarray
            and frames.dtype is frame_dtype
            and frames.shape == frame_shape
        ):
            frame_rows[i] = frames
        else:
            which = self._everyone if chosen is None else np.flatnonzero(chosen)
            newest = functools.partial(self._newest_frames, which=which, begins=False)
            self._put(t + 1, self._values.frames(frames, newest))
        if (
            type(actions) is not np.ndarray
            or actions.dtype is not action_dtype
            or actions.shape != action_shape
        ):
            actions = self._values.actions(actions)
        action_rows[i] = actions
        if (
            type(rewards) is not np.ndarray
            or rewards.dtype is not reward_dtype
            or rewards.shape != shape
        ):
            rewards = self._values.rewards(rewards)
        reward_rows[i] = rewards
        if (
            type(terminated) is not np.ndarray
            or terminated.dtype is not _BOOL
            or terminated.shape != shape
        ):
            terminated = self._values.flags("terminated", terminated, chosen)
        if (
            type(truncated) is not np.ndarray
            or truncated.dtype is not _BOOL
            or truncated.shape != shape
        ):
            truncated = self._values.flags("truncated", truncated, chosen)
        # Comparing a few bytes is much faster than `any` of numpy.
        is_over = terminated.tobytes() != none or truncated.tobytes() != none
        if is_over or life_lost is not None:
            _either(terminated, truncated, end_rows[i])
            if life_lost is not None:
                terminated = terminated | self._values.flags("life_lost", life_lost, chosen)
            _not(terminated, flag_rows[i])
        else:
            end_rows[i], flag_rows[i] = terminated, everyone
        if extras or self._has_extras:
            self._put_extras(t, self._values.extras(extras, chosen))
        following[()] = t + 1  # numpy takes far longer for a number
        _subtract(following, self._begins, numbers[i])
        if self._any_fresh:
            _equal(self._begins, t, reset_rows[i])  # else they are 0 from the beginning
        count = self._n
        if chosen is not None:
            count = self._leave_out(t, ~chosen)
            if not count:
                return
        if is_over and _TRUE in end_rows[i].tobytes():
            self._end_with(t, end_rows[i], count)
        else:
            if _publish is not None:
                _publish()
            self._head = self._words[COMMITTED] = t + 1
            self.n_steps += count
        self._any_fresh = False

    def _end_with(self, t: int, ends: Mask, count: int) -> None:
        environments = ends.nonzero()[0]
        ids = t * self._n + environments
        firsts = self._begins[environments] * self._n + environments
        frames = {path: self._rows.stored(path, t + 1)[environments] for path in self._paths}
        self._commit_last(t, ids, firsts, frames)
        self.n_steps += count
        self._begins[environments] = _NEVER
        self._is_settled = True
        self._cache_border()

    def end_episodes(self, mask: npt.ArrayLike | None = None) -> None:
        """End running episodes, of all or of some environments, with the newest step."""
        self._guard()
        which = self._environments(mask)
        self._settle()
        self._border, self._is_settled = 0, False
        self._end(which)
        self._is_settled = True  # the next step prepares itself

    def _end(self, which: Ids) -> None:
        """End running episodes that have a step; others are forgotten."""
        running = np.zeros(self._n, np.bool_)
        begins = self._begins[which]
        running[which] = (begins != _NEVER) & (begins < self._head)
        if _TRUE in running.tobytes():
            with self._failing():
                self._ends.end_newest(running)
        self._begins[which] = _NEVER

    def _forget_ended(self, over: Mask) -> None:
        self._begins[over & (self._begins < self._head)] = _NEVER
        self._any_fresh = bool((self._begins == self._head).any())

    def _chosen(self, mask: npt.ArrayLike | None) -> Mask | None:
        """The environments that step; None for all of them."""
        running = self._begins != _NEVER
        chosen = np.ones(self._n, bool) if mask is None else self._values.flags("mask", mask)
        odd = chosen != running
        if _TRUE in odd.tobytes():
            number = int(odd.argmax())
            if chosen[number]:
                raise SchemaError(
                    f"{self.path}: step() at step {self._head:,}, but no episode is running in "
                    f"environment {number}; call reset(frames, mask) first, or leave it out "
                    f"(mask=). Where the environment resets itself (autoreset), let "
                    f"mmreplay.RecordExperience(env, buffer) write what happens"
                )
            raise SchemaError(
                f"{self.path}: step() at step {self._head:,}: environment {number} is left out, "
                f"but its episode is running and cannot skip a step; pass one, or reset it first"
            )
        return None if self._all_running else chosen

    def _leave_out(self, t: int, absent: Mask) -> int:
        """Zero the row of environments that are left out; returns the number of the others."""
        gone = absent.nonzero()[0]
        for path in (*self._rows.columns, *self._rows.log.tails):
            self._rows.stored(path, t)[gone] = 0
        return self._n - gone.size

    def _newest_frames(
        self, stacks: Any, path: str, field: Field, which: Ids, *, begins: bool
    ) -> Array:
        """(N, *frame): the newest frames of `LazyFrames`, for environments `which`."""
        out = np.zeros((self._n, *field.shape), field.dtype)
        row = self._words[COMMITTED] + (not begins)
        for e in which.tolist():
            name = f"{path} of environment {e}"
            if e not in self._overlaps:
                self._overlaps[e] = Overlap(functools.partial(_stored_frame, self._rows, e))
            out[e] = self._overlaps[e].frame(stacks[e], field, path, name, row, begins=begins)
        return out

    def _prepare(self) -> None:
        self._guard()
        self._settle()
        if self._head >= self._rows_stop:
            with self._failing():
                self._rows.make_room(self._head)
            self._cache_columns()
        if self._any_fresh:
            with self._failing():
                self._episodes.store(self._head, (self._begins == self._head).nonzero()[0])
        self._cache_border()

    def _environments(self, mask: npt.ArrayLike | None) -> Ids:
        return self._everyone if mask is None else self._values.flags("mask", mask).nonzero()[0]

    def _cache_columns(self) -> None:
        """Put what a step needs into one attribute: the columns from the next row on."""
        t = self._head
        frames: Any = None if self._sole is None else self._from("frames", t + 1)
        self._places = (
            frames,
            self._from("actions", t),
            self._from("rewards", t),
            self._from("non_terminals", t).view(np.bool_),
            self._from("resets", t).view(np.bool_),
            self._from("ends", t).view(np.bool_),
            self._from("step", t),
            t,
        )
        self._rows_stop = self._rows.border

    def _from(self, path: str, row: int) -> Array:
        """The rows of a column from one on, as far as they are contiguous."""
        rows, start = self._rows.place(path, row)
        return rows[row - start :]

    def _cache_border(self) -> None:
        self._all_running = _TRUE not in (self._begins == _NEVER).tobytes()
        self._border = self._rows_stop
        if self._is_over:  # set by another thread in the meantime
            self._border = 0

    def _end_all(self) -> None:
        self._end(self._everyone)

    def __repr__(self) -> str:
        return f"<mmreplay.VectorWriter {self.path} lanes={self._n}>"


def _stored_frame(rows: Appender, e: int, path: str, row: int) -> Array:
    frame: Array = rows.stored(path, row)[e, ...]
    return frame


_BOOL = np.dtype(np.bool_)
_TRUE = 1  # as a byte
_either, _not, _subtract, _equal = np.logical_or, np.logical_not, np.subtract, np.equal
_publish = platform.barrier
