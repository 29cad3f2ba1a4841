"""`VectorWriter`: a lane of many environments that step together.

Invariant: a step is there for all environments or for none: it is one row of the log of ticks, and
exists from the moment `committed` passes it. Everything that can fail happens before that.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.appender import Appender
from mmreplay.writing.background import Background
from mmreplay.writing.row_values import checked_dtype
from mmreplay.writing.session import Session, refuse_copy
from mmreplay.writing.stacked_input import Overlap
from mmreplay.writing.vector_values import VectorValues

__all__ = ["VectorWriter"]

Mask = npt.NDArray[np.bool_]


class VectorWriter:
    """Appends steps of a vector environment to one lane, all environments at once.

    Made by `mmreplay.create` with ``lanes=``. One thread at a time may call it; readers, in this
    process or others, need not care. A context manager: leaving it closes the lane. Its length is
    the number of environments.

    Attributes:
        path: the lane's directory.
        files: the lane's files, for the rest of the package.
    """

    __getstate__ = refuse_copy

    def __init__(
        self,
        path: AnyPath,
        *,
        background: Background,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Open for writing: reopen what was closed, recover what was not.

        Args:
            path: an existing vector lane.
            background: the threads to use.
            changes: attributes to change, such as the capacity.

        Raises:
            As `LockedLane`.
        """
        self.path = Path(str(path))
        self._advice: str | None = None  # at the first masked reset
        self._background = background
        self._border = self._rows_stop = 0
        self._session = Session(path, background, changes or {}, "vector", self._stop)
        self.files = self._session.files
        try:
            self._attach()
            self._session.begin()
        except BaseException:
            self.files.release()
            raise

    def _attach(self) -> None:
        """Map the newest rows; all episodes are over."""
        starts, ticks = self.files.logs
        n: int = self.files.metadata["width"]
        self._n = n
        self._starts = Appender(self.files, starts, self._background)
        self._ticks = Appender(self.files, ticks, self._background)
        self._values = VectorValues(self.schema, n)
        self._everyone = np.arange(n)
        self._overlaps: dict[int, Overlap] = {}
        schema = self.schema
        self._sole = None if schema.is_dict else schema.frames[FRAME]
        # Of a dict none has this shape: its arrays are looked at one by one.
        self._frames_shape = None if self._sole is None else (n, *self._sole.shape)
        self._frames_dtype = None if self._sole is None else checked_dtype(self._sole.dtype)
        self._has_extras = bool(schema.extras)
        self._actions_shape = (n, *schema.action.shape)
        self._actions_dtype = checked_dtype(schema.action.dtype)
        self._rewards_dtype = checked_dtype(schema.reward_dtype)
        self._shape = (n,)
        self._words = ticks.words
        self._head = ticks.head
        self._n_transitions = self._n_before = self._last_count()
        # By environment, the number of the episode that runs, or -1.
        self._current = np.full(n, -1, np.int64)
        self._all_running = False
        self._settle()

    def _last_count(self) -> int:
        """Transitions committed so far; raises CorruptStoreError for more than the ticks hold."""
        count = int(self._ticks.read("count", self._head - 1)) if self._head else 0
        most = self._head * self._n
        if not 0 <= count <= most:
            raise CorruptStoreError(
                f"{self._ticks.log.path}: count: expected at most {most:,} transitions, found "
                f"{count:,}; run `mmreplay verify`"
            )
        return count

    def __len__(self) -> int:
        """Environments."""
        return self._n

    @property
    def schema(self) -> Schema:
        """What a step of one environment holds."""
        return self.files.schema

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay as they stand on disk."""
        return self.files.metadata

    @property
    def n_steps(self) -> int:
        """Transitions committed by this writer since it was opened."""
        return self._n_transitions - self._n_before

    @property
    def rows(self) -> int:
        """Ticks committed: one for each step."""
        return self._head

    @property
    def base(self) -> int:
        """The oldest tick kept: evicted ones may be there yet, as context of the oldest stacks."""
        return self._ticks.log.base

    @property
    def running(self) -> Mask:
        """(N,) bool: the environments of which an episode runs."""
        return (self._current >= 0) & (not self._session.closed)

    def reset(self, frames: Any, mask: npt.ArrayLike | None = None) -> None:
        """Begin an episode in every environment, or in those where `mask` is True.

        An episode of theirs that runs ends here as truncated.

        Args:
            frames: (N, *frame), or a list with the `LazyFrames` of each environment; or a dict of
                these.
            mask: (N,) bool.

        Raises:
            SchemaError: frames or a mask that do not fit, or LazyFrames from mid-episode.
            DiskFullError: no room; nothing was changed.
            FailedStoreError, ClosedError: writing is over.
        """
        self._session.guard()
        chosen = None if mask is None else self._values.flags("mask", mask)
        if chosen is not None and self._advice is not None:
            warnings.warn(self._advice, stacklevel=2)
            self._advice = None
        which = self._everyone if chosen is None else chosen.nonzero()[0]
        newest = functools.partial(self._newest_frames, which=which, begins=True)
        values = self._values.frames(frames, newest)
        if not which.size:
            return
        first = self._append_starts(values, which)
        # Mostly no episode of theirs runs, and the newest tick stays as it is.
        is_settled = self._border > 0 and _TRUE not in (self._current[which] >= 0).tobytes()
        # Interrupted from here on, the next call has to go through `_settle`, which tidies up.
        self._border = 0
        self._current[which] = np.arange(first, first + which.size)
        if not is_settled:
            self._settle()
        self._cache_border()

    def step(  # noqa: C901, PLR0912 (one function: it is called millions of times)
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
            extras: (N, ...) each.

        Raises:
            SchemaError: an episode does not run where it must, or runs where it must not; or a
                value does not fit its field.
            DiskFullError: no room; nothing was changed, the same call works once there is.
            FailedStoreError, ClosedError: writing is over.
        """
        t = self._head
        if t >= self._border:
            self._prepare()
        frame_rows, action_rows, reward_rows, flag_rows, end_rows, numbers, counts, at = self._rows
        i = t - at
        chosen: Mask | None = None
        if mask is not None or not self._all_running:
            chosen = self._chosen(mask)
        if (
            type(frames) is np.ndarray
            and frames.dtype is self._frames_dtype
            and frames.shape == self._frames_shape
        ):
            frame_rows[i] = frames
        else:
            self._put_frames(t, frames, chosen)
        if (
            type(actions) is not np.ndarray
            or actions.dtype is not self._actions_dtype
            or actions.shape != self._actions_shape
        ):
            actions = self._values.actions(actions)
        action_rows[i] = actions
        if (
            type(rewards) is not np.ndarray
            or rewards.dtype is not self._rewards_dtype
            or rewards.shape != self._shape
        ):
            rewards = self._values.rewards(rewards)
        reward_rows[i] = rewards
        if (
            type(terminated) is not np.ndarray
            or terminated.dtype is not _BOOL
            or terminated.shape != self._shape
        ):
            terminated = self._values.flags("terminated", terminated, chosen)
        if (
            type(truncated) is not np.ndarray
            or truncated.dtype is not _BOOL
            or truncated.shape != self._shape
        ):
            truncated = self._values.flags("truncated", truncated, chosen)
        ends = end_rows[i]
        _either(terminated, truncated, ends)
        if life_lost is not None:
            terminated = terminated | self._values.flags("life_lost", life_lost, chosen)
        _not(terminated, flag_rows[i])
        if extras or self._has_extras:
            self._put_extras(t, extras, chosen)
        if chosen is None:
            count = self._n
            numbers[i] = self._current
        else:
            count, numbers[i] = self._leave_out(t, ~chosen)
            if not count:
                return
        count += counts[i - 1] if i else self._count_before
        counts[i] = count
        # Far quicker than `any` of numpy for the few bytes that there are.
        any_ended = _TRUE in ends.tobytes()
        if any_ended:
            self._border = 0  # interrupted after the commit, the next call finds out who ended
        if _publish is not None:
            _publish()
        self._head = self._words[COMMITTED] = t + 1
        self._n_transitions = count
        if any_ended:
            self._current[ends] = -1
            self._cache_border()

    # ------------------------------------------------------------ episodes

    def _end_episodes(self, mask: npt.ArrayLike) -> None:
        """End the running episodes of some environments with the newest step, as truncated."""
        self._session.guard()
        chosen = self._values.flags("mask", mask)
        self._border = 0
        self._current[chosen] = -1
        self._settle()
        self._cache_border()

    def _settle(self) -> None:
        """Make the newest tick and what this writer knows of the episodes fit each other.

        Also after a call that was interrupted anywhere: an episode of that tick which runs no more
        ends with it, and one that ended with it runs no more.
        """
        if self._head:
            newest = self._head - 1
            episodes = self._ticks.chunks.stored_row("episode", newest)
            ends = self._ticks.chunks.stored_row("ends", newest)
            goes_on = episodes == self._current
            self._current[goes_on & (ends != 0)] = -1
            ends[(episodes >= 0) & ~goes_on] = 1

    def _chosen(self, mask: npt.ArrayLike | None) -> Mask | None:
        """The environments that step; None for all of them."""
        running = self._current >= 0
        chosen = np.ones(self._n, bool) if mask is None else self._values.flags("mask", mask)
        odd = chosen != running
        if _TRUE in odd.tobytes():
            number = int(odd.argmax())
            if chosen[number]:
                raise SchemaError(
                    f"{self.path}: step() at tick {self._head:,}, but no episode is running in "
                    f"environment {number}; call reset(frames, mask) first, or leave it out "
                    f"(mask=). Where the environment resets itself (autoreset), let "
                    f"mmreplay.RecordExperience(env, buffer) write what happens"
                )
            raise SchemaError(
                f"{self.path}: step() at tick {self._head:,}: environment {number} is left out, "
                f"but its episode is running, and has no gaps; give its step, or reset it first"
            )
        return None if self._all_running else chosen

    def _leave_out(self, t: int, absent: Mask) -> tuple[int, Ids]:
        """Zero the cells of tick t that are absent; the others' number, and the row of episodes.

        So that a draw needs no search, the absent cells below that number name the present ones
        from there on, in order.
        """
        gone = absent.nonzero()[0]
        i = t - self._rows[-1]
        for rows in self._cells:
            rows[i][gone] = 0
        n = self._n - gone.size
        episodes = self._current.copy()  # -1 where none runs
        low = gone[: gone.searchsorted(n)]
        if low.size:
            episodes[low] = -1 - n - (~absent[n:]).nonzero()[0]
        return n, episodes

    # ------------------------------------------------------------ rows

    def _append_starts(self, values: Mapping[str, Array], which: Ids) -> int:
        """Commit a start for each of some environments; the number of the first.

        If there is no room for all, those that were committed already count for nothing.
        """
        out, done = self._starts.log.head, 0
        while done < which.size:
            s = out + done
            if s >= self._starts.border:
                with self._session.failing():
                    self._starts.make_room(s)
            stop = min(out + which.size, self._starts.border)
            part = which[done : done + stop - s]
            new = {path: frames[part] for path, frames in values.items()}
            for path, value in (new | {"env": part, "tick": self._head}).items():
                rows, start = self._starts.place(path, s)
                rows[s - start : stop - start] = value
            if _publish is not None:
                _publish()
            self._starts.log.words[COMMITTED] = stop
            done += part.size
        return out

    def _put_frames(self, t: int, frames: Any, chosen: Mask | None) -> None:
        which = self._everyone if chosen is None else np.flatnonzero(chosen)
        newest = functools.partial(self._newest_frames, which=which, begins=False)
        for path, value in self._values.frames(frames, newest).items():
            rows, start = self._ticks.place(path, t)
            rows[t - start] = value

    def _put_extras(self, t: int, extras: Mapping[str, Any], chosen: Mask | None) -> None:
        for path, value in self._values.extras(extras, chosen).items():
            rows, start = self._ticks.place(path, t)
            rows[t - start] = value

    def _newest_frames(
        self, stacks: Any, path: str, field: Field, which: Ids, *, begins: bool
    ) -> Array:
        """(N, *frame): the newest frames of `LazyFrames`, as far as they are asked for."""
        out = np.zeros((self._n, *field.shape), field.dtype)
        for e in which.tolist():
            name, frame = f"{path} of environment {e}", stacks[e]
            if isinstance(frame, LazyFrames):
                overlap = self._overlaps.setdefault(e, Overlap("tick"))
                if begins:
                    frame = overlap.first(frame, field, path, name, self._head - 1)
                else:
                    frame = overlap.following(
                        frame, field, path, name, self._head, functools.partial(self._last, e)
                    )
            out[e] = field.coerce(frame, name)
        return out

    def _last(self, e: int, path: str, _: int) -> Array:
        """The newest frame of an environment's running episode."""
        number, newest = int(self._current[e]), self._head - 1
        if newest >= 0 and self._ticks.chunks.stored_row("episode", newest)[e] == number:
            frame: Array = self._ticks.chunks.stored_row(path, newest)[e, ...]
            return frame
        return self._starts.read(path, number)

    def _prepare(self) -> None:
        """Do what may fail in the next step."""
        self._session.guard()
        self._settle()
        if self._head >= self._rows_stop:
            with self._session.failing():
                self._ticks.make_room(self._head)
            self._cache_columns()
        self._cache_border()

    def _cache_columns(self) -> None:
        """Put what a step needs into one attribute: the columns from the next row on."""
        t = self._head
        frames: Any = None if self._sole is None else self._from("frames", t)
        counts = self._ticks.chunks.columns["count"]
        self._count_before = int(self._ticks.chunks.stored_row("count", t - 1)) if t else 0
        self._rows = (
            frames,
            self._from("actions", t),
            self._from("rewards", t),
            self._from("non_terminals", t).view(np.bool_),
            self._from("ends", t).view(np.bool_),
            self._from("episode", t),
            counts.new.items[t - counts.new.start :],
            t,
        )
        # What is zero where an environment is left out.
        names = self._ticks.log.specs.keys() - {"episode", "count"}
        self._cells = [self._from(path, t) for path in names]
        self._rows_stop = self._ticks.border

    def _from(self, path: str, t: int) -> Array:
        """The rows of a column from tick t on, as far as they lie one after the other."""
        rows, start = self._ticks.place(path, t)
        return rows[t - start :]

    def _cache_border(self) -> None:
        self._all_running = _TRUE not in (self._current < 0).tobytes()
        self._border = self._rows_stop
        if self._session.is_over:  # set by another thread in the meantime
            self._border = 0

    # ------------------------------------------------------------ flushing and closing

    def flush(self) -> None:
        """Make all steps durable; see `Writer.flush`."""
        self._session.flush()

    def close(self) -> None:
        """Make the lane plain zarr groups and let go of it; see `Writer.close`."""
        self._session.close(self._finish)

    def _finish(self) -> None:
        if self._ticks.chunks.columns:
            self._settle()
        for appender in (self._ticks, self._starts):
            appender.finish()
        self._background.finish_tasks()  # the checksums that are still being made
        for appender in (self._ticks, self._starts):
            appender.chunks.columns.clear()

    def _stop(self) -> None:
        """Let the next call ask first whether writing is over."""
        self._border = 0

    def _release_unclosed(self) -> None:
        """Let go of the lane as it is; the next opening recovers it, if it is not closed."""
        self._session.release_unclosed()

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and environments."""
        return f"<mmreplay.VectorWriter {self.path} lanes={self._n}>"


_BOOL = np.dtype(np.bool_)
_TRUE = b"\1"
_either, _not = np.logical_or, np.logical_not
_publish = platform.barrier
