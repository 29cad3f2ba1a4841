"""The writer of one lane: `reset` and `step`.

Invariant: a row is readable, by this process and any other, from the moment `committed` passes it
and not before; everything that can fail happens before the first byte of a row is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from mmreplay.batches.runs import Steps
from mmreplay.errors import SchemaError
from mmreplay.format.layout import SCALARS, ArraySpec
from mmreplay.schema import FRAME, Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.background import Background
from mmreplay.writing.open_chunks import OpenChunks
from mmreplay.writing.row_values import RowValues, check_flags, checked_dtype
from mmreplay.writing.seal import Sealer
from mmreplay.writing.session import Session, refuse_copy

__all__ = ["Writer"]


class Writer:
    """Appends steps to one lane. The calls mirror those of a Gymnasium environment.

    Made by `mmreplay.create`. One thread at a time may call it; readers, in this process or
    others, need not care. A context manager: leaving it closes the lane.

    Attributes:
        path: the lane's directory.
        n_steps: transitions committed by this writer since it was opened.
        files, log: the lane's files, for the rest of the package.
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
            path: an existing lane.
            background: the threads to use.
            changes: attributes to change, such as the capacity.

        Raises:
            As `LockedLane`.
        """
        self.path = Path(str(path))
        self.n_steps = 0
        self._running = False
        self._background = background
        self._session = Session(path, background, changes or {}, "lane", self._stop)
        self.files, self.log = self._session.files, self._session.files.log
        try:
            self._attach()
            self._session.begin()
        except BaseException:
            self.files.release()
            raise

    def _attach(self) -> None:
        """Map the chunks of the newest rows, and look up what the next step must know."""
        log = self.log
        head = self._head = log.head
        self._starts = self.files.starts
        self._chunks = OpenChunks(self.files, log, self._background)
        self._values = RowValues(self.schema, self._chunks.stored_row)
        self._fitting_action = self._values.action
        self._words = log.words
        self._sole = None if self.schema.is_dict else self.schema.frames[FRAME]
        if self._sole is not None:
            self._shape, self._dtype = self._sole.shape, checked_dtype(self._sole.dtype)
        items = self._chunks.columns["actions"].new.items
        self._scalar_action = (
            isinstance(items, memoryview) and self.schema.action.dtype != np.float32
        )
        self._border = 0
        self._sealer = Sealer(log, self._background)
        self._newest_flag = self._flag_of_newest()
        if head:
            self._chunks.finish_row(head - 1, self._newest_flag)
            self._cache_for_step()

    def _flag_of_newest(self) -> int:
        """The newest row's non-terminal flag: that of the row before, 1 at an episode's start."""
        log, starts, newest = self.log, self._starts, self._head - 1
        if newest <= log.base or (starts and starts[-1] == newest):
            return 1
        flags = chunk_files.read_rows(log, log.specs["non_terminals"], newest - 1, newest)
        return int(flags[0])

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        return self.files.schema

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """Every array of rows by path."""
        return self.log.specs

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay as they stand on disk."""
        return self.files.metadata

    @property
    def rows(self) -> int:
        """Rows committed: one for each reset and one for each step."""
        return self._head

    @property
    def base(self) -> int:
        """The oldest row kept: evicted ones may be there yet, as context of the oldest stacks."""
        return self.log.base

    @property
    def running(self) -> bool:
        """Whether an episode is running, so that the next call may be `step`."""
        return self._running and not self._session.closed

    def reset(self, frame: object) -> None:
        """Begin an episode; one that is running ends here as truncated.

        Args:
            frame: the first observation, (*frame shape) of the frame's dtype, or a dict of them.
                Of `LazyFrames` the newest frame is stored.

        Raises:
            SchemaError: a frame of another shape or dtype, or LazyFrames from mid-episode.
            DiskFullError: no room; nothing was changed.
            FailedStoreError, ClosedError: writing is over.
        """
        n = self._head
        self._session.guard()
        frames = self._values.frames(self._newest_frames(frame, begins=True))
        self._prepare_reset()
        # Interrupted from here on, the next step has to go through `_prepare`, which tidies up.
        self._border = 0
        if n:
            self._chunks.finish_row(n - 1, self._newest_flag)
        self._chunks.put_frames(n, frames)
        for name in SCALARS:
            window = self._chunks.columns[name].new
            window.rows[n - window.start] = name in ("non_terminals", "resets")
        self._starts.append(n)
        self._commit(n)
        self._newest_flag = 1
        self._running = True
        self._cache_for_step()

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
                newest frame is stored, after a look at whether they go on from the newest row.
            terminated: the episode ended in a terminal state; wins over `truncated`.
            truncated: the episode was cut off; `next_frame` is its final observation.
            life_lost: returns and bootstrapping stop here, but the episode goes on.
            extras: the values of all declared extra columns.

        Raises:
            SchemaError: no episode is running, or a value does not fit its field.
            DiskFullError: no room; nothing was changed, the same call works once there is.
            FailedStoreError, ClosedError: writing is over.
        """
        n = self._head
        if n >= self._border:
            self._prepare()
        if self._sole is None:
            frames = self._values.frames(self._newest_frames(next_frame, begins=False))
            self._chunks.put_frames(n, frames)
        else:
            if (
                type(next_frame) is not np.ndarray
                or next_frame.shape != self._shape
                or next_frame.dtype != self._dtype
            ):
                next_frame = self._newest_frames(next_frame, begins=False)
                next_frame = self._sole.coerce(next_frame, FRAME)
            self._frame_rows[n - self._frame_start] = next_frame
        if not self._scalar_action:
            action = self._fitting_action(action)
        j = n - 1 - self._old_start
        try:
            self._old_actions[j] = action
        except (TypeError, ValueError, OverflowError):
            self._old_actions[j] = self._fitting_action(action)
        try:
            flag = 0 if terminated or life_lost else 1
            over = bool(terminated or truncated)
            if over or life_lost:
                check_flags(terminated, truncated, life_lost)
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"flags terminated, truncated, life_lost: expected bools, found "
                f"{terminated!r:.80}, {truncated!r:.80} and {life_lost!r:.80}; convert them"
            ) from error
        try:
            self._old_rewards[j] = reward
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"reward: expected a number, found {reward!r:.80}; convert it, an array of one "
                f"number with .item()"
            ) from error
        self._old_flags[j] = flag
        if extras or self.schema.extras:
            self._put_extras(n - 1, extras)
        k = n - self._new_start
        self._new_flags[k] = flag
        self._new_resets[k] = 0
        self._newest_flag = flag
        if _publish is not None:
            _publish()
        self._head = self._words[COMMITTED] = n + 1
        self.n_steps += 1
        if over:
            self._running = False
            self._border = 0

    def _extend(self, steps: Steps) -> None:
        """Append many steps of an episode, as `reset` and `step` would.

        Args:
            steps: with the shapes and dtypes of the schema, as they were read from a store. The
                first ones of an episode begin it here; one that is running ends as truncated.

        Raises:
            SchemaError: no episode is running that they could go on.
            DiskFullError, FailedStoreError, ClosedError: as of `step`; whoever interrupts this
                drops the lane, as some of the steps may be there.
        """
        frames = {path: steps.observation[key] for key, path in self.schema.frame_paths.items()}
        if steps.begins:
            first = {key: rows[0] for key, rows in steps.observation.items()}
            self.reset(first[FRAME] if self._sole is not None else first)
        flags = (~steps.terminal).astype(np.uint8)
        values = {"actions": steps.action, "rewards": steps.reward, "non_terminals": flags}
        values |= {path: steps.extras[name] for name, path in self.schema.extra_paths.items()}
        columns, done = self._chunks.columns, 0
        while done < len(steps):
            self._prepare()
            n = self._head
            k = min(len(steps) - done, self._border - n)
            for path, rows in frames.items():
                room, start = self._chunks.place(path, n)
                room[n - start : n - start + k] = rows[done + 1 : done + 1 + k]
            for path, rows in values.items():
                start = n - 1 - columns[path].old.start
                columns[path].old.rows[start : start + k] = rows[done : done + k]
            done += k
            # The newest row has no step yet, and the flag of the row before.
            self._newest_flag = int(flags[done - 1])
            resets, newest = columns["resets"].new, columns["non_terminals"].new
            resets.rows[n - resets.start : n - resets.start + k] = 0
            newest.rows[n + k - 1 - newest.start] = self._newest_flag
            self._commit(n + k - 1)
            self.n_steps += k
        if steps.ends:
            self._running = False
            self._border = 0

    def _prepare_reset(self) -> None:
        """Do what may fail in the next `reset`, as `_prepare` does for `step`.

        Raises:
            As `reset`.
        """
        self._session.guard()
        self._forget_interrupted()
        if self._head >= self._sealer.half_stop or not self._chunks.fit(self._head):
            self._make_room(self._head)

    def _prepare(self) -> None:
        """Do what may fail in the next `step`, so that one of many lanes is whole or not at all.

        Raises:
            As `step`.
        """
        n = self._head
        if n < self._border:
            return
        self._session.guard()
        self._forget_interrupted()
        if not self._running:
            raise SchemaError(
                f"{self.path}: step() at row {n:,}, but no episode is running"
                f"{': it has ended' if n else ''}; call reset(frame) first"
            )
        self._make_room(n)
        self._cache_for_step()

    def _newest_frames(self, frame: Any, *, begins: bool) -> Any:
        """As `RowValues.newest_frames`, after `_prepare` or `_prepare_reset`."""
        return self._values.newest_frames(frame, self._head, begins=begins)

    def _forget_interrupted(self) -> None:
        """Take back the start of a reset that was interrupted before its row was committed."""
        starts = self._starts
        while starts and starts[-1] >= self._head:
            starts.pop()

    def _make_room(self, n: int) -> None:
        with self._session.failing():
            self._chunks.make_room(n)
            self._sealer.make_room(n)

    def _cache_for_step(self) -> None:
        """Put what a step needs into attributes of its own: it is called millions of times."""
        n = self._head
        columns = self._chunks.columns
        actions, flags = columns["actions"], columns["non_terminals"]
        self._old_start, self._new_start = actions.old.start, actions.new.start
        self._old_actions = actions.old.items
        self._old_rewards = columns["rewards"].old.items
        self._old_flags, self._new_flags = flags.old.items, flags.new.items
        self._new_resets = columns["resets"].new.items
        if self._sole is not None:
            self._frame_rows, self._frame_start = self._chunks.place("frames", n)
        border = min(self._sealer.half_stop, self._chunks.border(n))
        self._border = border if self._running else 0
        if self._session.is_over:  # set by another thread in the meantime
            self._border = 0

    def _put_extras(self, row: int, extras: Mapping[str, object]) -> None:
        for path, value in self._values.extras(extras).items():
            window = self._chunks.columns[path].old
            window.rows[row - window.start] = value

    def _commit(self, n: int) -> None:
        if _publish is not None:
            _publish()
        self._head = self._words[COMMITTED] = n + 1

    # ------------------------------------------------------------ flushing and closing

    def flush(self) -> None:
        """Make all rows durable: they survive a power cut from here on.

        Raises:
            FailedStoreError: an fsync failed; writing is over. What the last flush made durable is
                kept; of the rows after it nobody knows what is on the disk, and the next opening
                goes on without them.
            ClosedError: this writer is closed.
        """
        self._session.flush()

    def _stop(self) -> None:
        """Let the next call ask first whether writing is over."""
        self._border = 0

    def close(self) -> None:
        """Make the lane a plain zarr group and let go of it; a second call does nothing.

        Raises:
            DiskFullError: no room for the last shard or the index. Nothing is lost; make room and
                call again.
            FailedStoreError: a write or fsync failed. The next opening recovers: as after `flush`
                if it was an fsync of rows, and otherwise all that was committed.
        """
        self._session.close(self._finish)

    def _finish(self) -> None:
        self._running = False
        self._forget_interrupted()
        if self._head and self._chunks.columns:
            self._chunks.finish_row(self._head - 1, self._newest_flag)
        self._sealer.wait()
        self._background.finish_tasks()  # the checksums that are still being made
        self._chunks.columns.clear()

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
        """Path and rows."""
        return f"<mmreplay.Writer {self.path} rows={self._head}{' closed' * self._session.closed}>"


_publish = platform.barrier
