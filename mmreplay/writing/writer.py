"""The writer of a lane of one environment: `reset` and `step`.

Invariant: a step is readable, by this process and any other, from the moment `committed` passes it
and not before; everything that can fail happens before that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.runs import Steps
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.schema import FRAME
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.writing.lane_writer import LaneWriter, Mask
from mmreplay.writing.row_values import RowValues, check_flags, checked_dtype


class Writer(LaneWriter):
    """Appends steps to one lane. The calls mirror those of a Gymnasium environment.

    Made by `mmreplay.create`. One thread at a time may call it; readers, in this process or
    others, need not care. A context manager: leaving it closes the lane.

    Attributes:
        path: the lane's directory.
        files: the lane's files, for the rest of the package.
    """

    def _attach(self) -> None:
        self._running = False
        self._opened_at = self._head
        self._begin = self._head  # the first step of the episode that runs
        self._values = RowValues(self.schema, self._rows.stored)
        self._rows_stop = 0  # of those whose places are known
        self._sole = None if self.schema.is_dict else self.schema.frames[FRAME]
        if self._sole is not None:
            self._shape, self._dtype = self._sole.shape, checked_dtype(self._sole.dtype)
        items = self._rows.columns["actions"].new.items
        self._scalar_action = (
            isinstance(items, memoryview) and self.schema.action.dtype != np.float32
        )
        self._has_extras = bool(self.schema.extra_fields)

    @property
    def n_steps(self) -> int:
        """Transitions committed by this writer since it was opened."""
        return self.rows - self._opened_at

    @property
    def running(self) -> bool:
        """Whether an episode is running, so that the next call may be `step`."""
        if self._is_over:
            return self._running and not self._closed
        self._settle()
        return self._running

    def reset(self, frame: object, mask: None = None, **fields: Any) -> None:
        """Begin an episode; one that is running ends here as truncated.

        Args:
            frame: the first observation, (*frame shape) of the frame's dtype, or a dict of them.
                Of `LazyFrames` the newest frame is stored.
            mask: None; of a `VectorWriter` which environments.
            fields: declared fields of the episode that begins; 0 or "" where nothing is given.

        Raises:
            SchemaError: a frame of another shape or dtype, LazyFrames from mid-episode, or no such
                field.
            DiskFullError: no room; nothing was changed.
            FailedStoreError, ClosedError: writing is over.
        """
        self._guard()
        self._settle()
        n = self._head
        frames = self._values.frames(frame, n, begins=True)
        which = self._environments(mask)
        values = self._episodes.checked(fields, which)
        self._border, self._is_settled = 0, False
        self._end_all()
        self._put(n, frames)
        self._episodes.reset(which, values)
        self._begin = n
        self._running = self._is_settled = True  # the next step prepares itself

    def step(
        self,
        action: Any,
        reward: Any,
        next_frame: Any,
        terminated: object = False,
        truncated: object = False,
        *,
        life_lost: object = False,
        **extras: Any,
    ) -> None:
        """Append one step of the running episode.

        Args:
            action: what was done in the newest frame, (*action shape).
            reward: what it gave.
            next_frame: the observation after it, (*frame shape), or a dict. Of `LazyFrames` the
                newest frame is stored, after a look at whether they go on from the one before.
            terminated: the episode ended in a terminal state; wins over `truncated`.
            truncated: the episode was cut off; `next_frame` is its final observation.
            life_lost: returns and bootstrapping stop here, but the episode goes on.
            extras: the values of all declared extra columns; derived ones may be left out, and
                are 0 then.

        Raises:
            SchemaError: no episode is running, or a value does not fit its field.
            DiskFullError: no room; nothing was changed, the same call works once there is.
            FailedStoreError, ClosedError: writing is over.
        """
        t = self._head
        if t >= self._border:
            self._prepare()
            t = self._head
        # Row t + 1 of frames, which is unused until this step is committed.
        if self._sole is None:
            self._put(t + 1, self._values.frames(next_frame, t + 1, begins=False))
        else:
            if (
                type(next_frame) is not np.ndarray
                or next_frame.shape != self._shape
                or next_frame.dtype != self._dtype
            ):
                next_frame = self._values.frames(next_frame, t + 1, begins=False)["frames"]
            self._frame_rows[t - self._frame_start] = next_frame
        if not self._scalar_action:
            action = self._values.action(action)
        j = t - self._start
        try:
            self._actions[j] = action
        except (TypeError, ValueError, OverflowError):
            self._actions[j] = self._values.action(action)
        try:
            flag = 0 if terminated or life_lost else 1
            over = 1 if terminated or truncated else 0
            if over or not flag:
                check_flags(terminated, truncated, life_lost)
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"flags terminated, truncated, life_lost: expected bools, found "
                f"{terminated!r:.80}, {truncated!r:.80} and {life_lost!r:.80}; convert them"
            ) from error
        try:
            self._rewards[j] = reward
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"reward: expected a number, found {reward!r:.80}; convert it, an array of one "
                f"number with .item()"
            ) from error
        if extras or self._has_extras:
            self._put_extras(t, self._values.extras(extras))
        begin = self._begin
        self._flags[j] = flag
        self._resets[j] = t == begin
        self._over[j] = over
        self._numbers[j] = t + 1 - begin
        if over:
            self._end_with(t)
            return
        if _publish is not None:
            _publish()
        self._head = self._words[COMMITTED] = t + 1

    def end_episodes(self) -> None:
        """End the running episode with the newest step, as truncated."""
        self._guard()
        self._settle()
        self._border, self._is_settled = 0, False
        self._end_all()
        self._is_settled = True  # the next step prepares itself

    def _end_with(self, t: int) -> None:
        rows = self._rows
        frames = {path: rows.stored(path, t + 1)[None] for path in self.schema.frame_paths.values()}
        self._commit_last(t, np.array([t]), np.array([self._begin]), frames)
        self._running, self._is_settled = False, True

    def _extend(self, steps: Steps) -> None:
        """Append many steps of an episode, as `reset` and `step` would, read from another store."""
        frames = {path: steps.observation[key] for key, path in self.schema.frame_paths.items()}
        if steps.begins:
            first = {key: rows[:1][0] for key, rows in steps.observation.items()}
            self.reset(first if self._sole is None else first[FRAME], **steps.episode)
        values = {"actions": steps.action, "rewards": steps.reward}
        values |= {path: steps.extras[name] for name, path in self.schema.extra_paths.items()}
        values["non_terminals"] = (~steps.terminal).astype(np.uint8)
        done, rows = 0, self._rows
        while done < len(steps):
            self._prepare()
            t = self._head
            stop = min(done + self._border - t, len(steps))
            k, is_last = stop - done, stop == len(steps) and steps.ends
            numbers = np.arange(t + 1, t + 1 + k) - self._begin
            for path, one in frames.items():
                rows.put(path, t + 1, one, done + 1, stop + 1)
            for path, column in values.items():
                rows.put(path, t, column, done, stop)
            ends = np.arange(1, k + 1) == k * is_last
            for path, made in {"step": numbers, "resets": numbers == 1, "ends": ends}.items():
                rows.put(path, t, made, 0, k)
            done = stop
            if is_last:
                self._end_with(t + k - 1)
            else:
                if _publish is not None:
                    _publish()
                self._head = self._words[COMMITTED] = t + k

    def _forget_ended(self, over: Mask) -> None:
        if over[0] and self._begin < self._head:
            self._running = False

    def _end_all(self) -> None:
        """End the running episode with the newest step, as truncated, if it has one."""
        if self._running and self._begin < self._head:
            with self._failing():
                self._ends.end_newest(_ONE)
        self._running = False

    def _environments(self, mask: npt.ArrayLike | None) -> Ids:
        if mask is not None:
            raise SchemaError(
                f"{self.path}: mask: expected None, as this lane is of one environment; found "
                f"{mask!r:.80}"
            )
        return _ALONE

    def _prepare(self) -> None:
        self._guard()
        self._settle()
        if not self._running:
            raise SchemaError(
                f"{self.path}: step() at step {self._head:,}, but no episode is running"
                f"{': it has ended' if self._head else ''}; call reset(frame) first"
            )
        with self._failing():
            if self._head >= self._rows_stop:
                self._rows.make_room(self._head)
                self._cache_for_step()
            if self._begin == self._head:
                self._episodes.store(self._head, _ALONE)
        self._border = self._rows_stop
        if self._is_over:  # set by another thread in the meantime
            self._border = 0

    def _cache_for_step(self) -> None:
        """Put what a step needs into attributes of its own: it is called millions of times."""
        t, rows, columns = self._head, self._rows, self._rows.columns
        window = columns["actions"].window(t)
        self._start = window.start
        self._actions = window.items
        self._rewards, self._flags, self._resets, self._over, self._numbers = (
            columns[path].window(t).items
            for path in ("rewards", "non_terminals", "resets", "ends", "step")
        )
        if self._sole is not None:
            self._frame_rows, start = rows.place("frames", t + 1)
            self._frame_start = start - 1
        self._rows_stop = rows.border

    def __repr__(self) -> str:
        return f"<mmreplay.Writer {self.path} steps={self._head}{' closed' * self._closed}>"


_ONE, _ALONE = np.ones(1, np.bool_), np.zeros(1, np.int64)
_publish = platform.barrier
