"""The writer of one lane: `reset` and `step`.

Invariant: a row is readable, by this process and any other, from the moment `committed` passes it
and not before; everything that can fail happens before the first byte of a row is written.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from mmreplay.errors import ClosedError, DiskFullError, FailedStoreError, MmreplayError, SchemaError
from mmreplay.format.layout import SCALARS, ArraySpec
from mmreplay.ids import Array
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.system.forks import after_fork_in_child
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import LaneDisk
from mmreplay.writing.seal import SealJob
from mmreplay.writing.stacked_input import Overlap

__all__ = ["Writer"]

_NEVER = 1 << 62


class _Column:
    """A raw column being written: the chunk of the newest row, and the one of the row before."""

    __slots__ = ("new", "old", "spec")

    def __init__(self, spec: ArraySpec, window: Window) -> None:
        self.spec = spec
        self.new = self.old = window

    @property
    def stop(self) -> int:
        return self.new.start + self.spec.chunk_rows


class Writer:
    """Appends steps to one lane. The calls mirror those of a Gymnasium environment.

    Made by `mmreplay.create`. One thread at a time may call it; readers, in this process or
    others, need not care. A context manager: leaving it closes the lane.

    Attributes:
        path: the lane's directory.
        n_steps: transitions committed by this writer since it was opened.
    """

    def __init__(
        self,
        path: Path,
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
            As `LaneDisk`.
        """
        self.path = path
        self.n_steps = 0
        self._background = background
        self._failure: Exception | None = None
        self._closed = self._closing = self._running = False
        self._job: SealJob | None = None
        self._overlap = Overlap()
        self._disk = LaneDisk(path, changes or {})
        try:
            self._attach()
        except BaseException:
            self._disk.release()
            raise
        background.attach(self)
        _WRITERS.add(self)
        if self._disk.recovered:  # else one killed again and again would never be durable
            background.flush_soon()

    def _attach(self) -> None:
        """Map the chunks of the newest rows, and look up what the next step must know."""
        disk = self._disk
        head = self._head = disk.head
        newest = max(head - 1, 0)
        self._columns: dict[str, _Column] = {}
        for spec in disk.raw_specs:
            window = disk.open_window(spec, newest // spec.chunk_rows)
            self._columns[spec.path] = _Column(spec, window)
            if not spec.path.startswith("frames"):
                # Past the head lies what a power cut left of rows that were never committed; the
                # newest row must read as a final row the moment it is committed.
                # Mostly there is nothing: pages that stay clean ask nothing of a full disk.
                rest = window.rows[max(head - window.start, 0) :]
                if rest.reshape(-1).view(np.uint8).any():
                    rest[...] = 0
        self._words = disk.words
        self._frames = self.schema.frames
        self._sole = None if self.schema.is_dict else self._frames[FRAME]
        if self._sole is not None:
            self._shape, self._dtype = self._sole.shape, self._sole.dtype
        # A float that is too large becomes inf without a word, unless the field looks at it.
        dtype = self.schema.action.dtype
        items = self._columns["actions"].new.items
        self._scalar_action = isinstance(items, memoryview) and dtype != np.float32
        self._most = float(np.finfo(dtype).max) if dtype.kind == "f" else -1.0
        self._border = 0
        self._half_stop = head - head % disk.half if disk.half else _NEVER
        self._newest_flag = self._flag_of_newest()
        if head:
            self._finish_row(newest)
            self._columns_to_front()

    def _flag_of_newest(self) -> int:
        """The newest row's non-terminal flag: that of the row before, 1 at an episode's start."""
        disk, newest = self._disk, self._head - 1
        if newest <= disk.base or (disk.starts and disk.starts[-1] == newest):
            return 1
        flags = chunk_files.read_rows(disk, disk.specs["non_terminals"], newest - 1, newest)
        return int(flags[0])

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        return self._disk.schema

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """Every array of rows by path."""
        return self._disk.specs

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay as they stand on disk."""
        return self._disk.metadata

    @property
    def rows(self) -> int:
        """Rows committed: one for each reset and one for each step."""
        return self._head

    @property
    def base(self) -> int:
        """The oldest row kept; those below were evicted."""
        return self._disk.base

    @property
    def running(self) -> bool:
        """Whether an episode is running, so that the next call may be `step`."""
        return self._running

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
        self._guard()
        frames = self._coerced(self.unstacked(frame, begins=True))
        self.prepare_reset()
        # Interrupted from here on, the next step has to go through `prepare`, which tidies up.
        self._border = 0
        if n:
            self._finish_row(n - 1)
        self._put_frames(n, frames)
        for name in SCALARS:
            window = self._columns[name].new
            window.rows[n - window.start] = name in ("non_terminals", "resets")
        self._disk.starts.append(n)
        self._commit(n)
        self._newest_flag = 1
        self._running = True
        self._columns_to_front()

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
            self.prepare()
        if self._sole is None:
            self._put_frames(n, self._coerced(self.unstacked(next_frame, begins=False)))
        else:
            if (
                type(next_frame) is not np.ndarray
                or next_frame.shape != self._shape
                or next_frame.dtype != self._dtype
            ):
                next_frame = self.unstacked(next_frame, begins=False)
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
            over = terminated or truncated
            self._old_rewards[j] = reward
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"reward {reward!r} or a flag: expected a number and bools; convert them ({error})"
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

    def prepare_reset(self) -> None:
        """Do what may fail in the next `reset`, as `prepare` does for `step`.

        Raises:
            As `reset`.
        """
        self._guard()
        self._forget_interrupted()
        if self._head >= self._half_stop or not self._fits(self._head):
            self._make_room_or_fail(self._head)

    def prepare(self) -> None:
        """Do what may fail in the next `step`, so that one of many lanes is whole or not at all.

        Raises:
            As `step`.
        """
        n = self._head
        if n < self._border:
            return
        self._guard()
        self._forget_interrupted()
        if not self._running:
            raise SchemaError(
                f"{self.path}: step() at row {n:,}, but no episode is running"
                f"{': it has ended' if n else ''}; call reset(frame) first"
            )
        self._make_room_or_fail(n)
        self._columns_to_front()

    def unstacked(self, frame: Any, *, begins: bool) -> Any:
        """A frame, or a dict of them, with the newest frame in the place of `LazyFrames`.

        Args:
            frame: for the row to come, after `prepare` or `prepare_reset`.
            begins: whether it begins an episode.

        Raises:
            SchemaError: LazyFrames that do not go on from the newest row, or, beginning an episode,
                that do not start one.
        """
        if self._sole is not None:
            return self._newest(frame, self._sole, "frames", FRAME, begins)
        if not isinstance(frame, Mapping):
            return frame
        return {
            key: self._newest(value, self._frames[key], f"frames/{key}", f"frame[{key!r}]", begins)
            if key in self._frames
            else value
            for key, value in frame.items()
        }

    def _newest(self, frame: Any, one: Field, path: str, name: str, begins: bool) -> Any:
        if not isinstance(frame, LazyFrames):
            return frame
        if begins:
            return self._overlap.first(frame, one, path, name, self._head)
        return self._overlap.following(frame, one, path, name, self._head, self._newest_frame)

    def _newest_frame(self, path: str, row: int) -> Array:
        """What a frame column holds in the newest row, of the running episode."""
        rows = self._disk.tails.get(path)
        place = 0 if rows is None else row % len(rows)
        if rows is None:
            column = self._columns[path]
            window = column.new if row >= column.new.start else column.old
            rows, place = window.rows, row - window.start
        found: Array = rows[place, ...]  # an array also of frames of one number
        return found

    def _forget_interrupted(self) -> None:
        """Take back the start of a reset that was interrupted before its row was committed."""
        starts = self._disk.starts
        while starts and starts[-1] >= self._head:
            starts.pop()

    def _fits(self, n: int) -> bool:
        return all(
            column.new.start <= n - 1 and n < column.stop for column in self._columns.values()
        )

    def _guard(self) -> None:
        if self._closed:
            raise ClosedError(
                f"{self.path}: this writer is closed, or belongs to the parent of this process; "
                f"open the store again to write"
            )
        if self._failure is not None:
            raise FailedStoreError(
                str(self._failure)
                if isinstance(self._failure, MmreplayError)
                else f"{self.path}: a flush in the background failed: {self._failure!r}; what is "
                f"committed is kept: open the store again"
            ) from self._failure
        if self._closing:
            raise ClosedError(
                f"{self.path}: close() found no room on the disk; make room and call it again"
            )

    def _make_room_or_fail(self, n: int) -> None:
        try:
            self._make_room(n)
        except FailedStoreError as error:
            self._fail(error)
            raise

    def _open_window(self, spec: ArraySpec, chunk: int) -> Window:
        """As `LaneDisk.open_window`; on a full disk with what an eviction makes room for."""
        try:
            return self._disk.open_window(spec, chunk)
        except DiskFullError:
            if self._disk.capacity is None:
                raise
            self._disk.flush()  # or what is being evicted by another thread just now
            return self._disk.open_window(spec, chunk)

    def _make_room(self, n: int) -> None:
        """Map the chunks of row n and free the half of the tail that it falls into."""
        disk = self._disk
        finished: list[tuple[ArraySpec, Window]] = []
        for column in self._columns.values():
            if n > column.new.start and column.old is not column.new:
                finished.append((column.spec, column.old))
                column.old = column.new
            if n >= column.stop:
                spec, chunk = column.spec, n // column.spec.chunk_rows
                column.new = self._open_window(spec, chunk)
                self._background.submit(functools.partial(disk.prepare_window, spec, chunk + 1))
        for spec, window in finished:
            self._background.submit(functools.partial(disk.sum_up, spec, window))
        if disk.capacity is not None:
            self._background.wake()
        if n >= self._half_stop:
            self._wait_for_seal()
            start = disk.tail_start
            if n - start >= 2 * disk.half:  # after a kill both halves may be full
                self._submit(disk.seal_job(start))
                self._wait_for_seal()
                start = disk.tail_start
            if n - start >= disk.half:
                self._submit(disk.seal_job(start))
            self._half_stop = n - n % disk.half + disk.half

    def _columns_to_front(self) -> None:
        """Put what a step needs into attributes of its own: it is called millions of times."""
        n = self._head
        actions, flags = self._columns["actions"], self._columns["non_terminals"]
        self._old_start, self._new_start = actions.old.start, actions.new.start
        self._old_actions = actions.old.items
        self._old_rewards = self._columns["rewards"].old.items
        self._old_flags, self._new_flags = flags.old.items, flags.new.items
        self._new_resets = self._columns["resets"].new.items
        if self._sole is not None:
            self._frame_rows, self._frame_start = self._sink("frames", n)
        border = self._half_stop
        for column in self._columns.values():
            border = min(border, column.stop)
            if column.old is not column.new:  # row n - 1 is, or the next one will be, in the new
                border = min(border, n if n > column.new.start else n + 1)
        self._border = border if self._running else 0
        if self._failure is not None or self._closed:  # set by another thread in the meantime
            self._border = 0

    def _sink(self, path: str, n: int) -> tuple[Array, int]:
        """Where frame rows go, and the row of its first place."""
        tail = self._disk.tails.get(path)
        if tail is not None:
            return tail, n - n % len(tail)
        window = self._columns[path].new
        return window.rows, window.start

    def _coerced(self, frame: object) -> dict[str, Array]:
        """Frames by path."""
        if self._sole is not None:
            return {"frames": self._sole.coerce(frame, FRAME)}
        if not isinstance(frame, Mapping) or frame.keys() != self._frames.keys():
            found = sorted(frame) if isinstance(frame, Mapping) else type(frame).__name__
            raise SchemaError(
                f"frame: expected a dict with the keys {sorted(self._frames)}, found {found}"
            )
        return {
            f"frames/{key}": one.coerce(frame[key], f"frame[{key!r}]")
            for key, one in self._frames.items()
        }

    def _put_frames(self, n: int, frames: dict[str, Array]) -> None:
        for path, value in frames.items():
            rows, start = self._sink(path, n)
            rows[n - start] = value

    def _fitting_action(self, action: object) -> Array | float:
        one, most = self.schema.action, self._most
        if type(action) is float and not one.shape and -most <= action <= most:
            return action  # as most policies give it; the array below takes five times as long
        if type(action) is np.ndarray and action.shape == one.shape and action.dtype == one.dtype:
            return action
        return one.coerce_loosely(action, "action")

    def _put_extras(self, row: int, extras: Mapping[str, object]) -> None:
        declared = self.schema.extras
        if extras.keys() != declared.keys():
            raise SchemaError(
                f"extras: expected {sorted(declared) or 'none'}, found {sorted(extras) or 'none'}; "
                f"declare them when the store is created, and give all of them with each step"
            )
        values = {
            name: declared[name].coerce_loosely(value, name) for name, value in extras.items()
        }
        for name, value in values.items():
            window = self._columns[f"extras/{name}"].old
            window.rows[row - window.start] = value

    def _finish_row(self, row: int) -> None:
        """Make the newest row a final row again, whatever an interrupted step left in it."""
        for name, column in self._columns.items():
            if not name.startswith(("frames", "resets")):
                window = column.new if row >= column.new.start else column.old
                value = self._newest_flag if name == "non_terminals" else 0
                window.rows[row - window.start] = value

    def _commit(self, n: int) -> None:
        if _publish is not None:
            _publish()
        self._head = self._words[COMMITTED] = n + 1

    # ------------------------------------------------------------ sealing

    def _wait_for_seal(self) -> None:
        """Make sure that the half of the tail before the newest one is in a shard."""
        job = self._job
        if job is None:
            return
        if not job.done.is_set():
            job.work(fast=True)
            job.done.wait()
        if job.error is not None and not isinstance(job.error, FailedStoreError):
            # There may be room, or memory, by now; a failed fsync is the end.
            job = self._submit(self._disk.seal_job(self._disk.tail_start))
            job.work(fast=True)
            job.done.wait()
        if isinstance(job.error, MmreplayError):
            raise type(job.error)(str(job.error)) from job.error
        if job.error is not None:
            raise job.error
        self._job = None

    def _submit(self, job: SealJob) -> SealJob:
        self._job = job
        self._background.submit(job.run)
        return job

    # ------------------------------------------------------------ flushing and closing

    def flush(self) -> None:
        """Make all rows durable: they survive a power cut from here on.

        Raises:
            FailedStoreError: an fsync failed; writing is over. What the last flush made durable is
                kept; of the rows after it nobody knows what is on the disk, and the next opening
                goes on without them.
            ClosedError: this writer is closed.
        """
        self._guard()
        try:
            self._disk.flush()
        except FailedStoreError as error:
            self._fail(error)
            raise

    def flush_in_background(self, *, timer: bool) -> None:
        """Flush by the clock, or because a chunk file can be evicted after it."""
        if self._closed or self._failure is not None:
            return
        try:
            if timer or self._disk.can_evict():
                self._disk.flush()
        except DiskFullError:
            return  # the next flush, or the step that finds no room, says so
        except Exception as error:  # noqa: BLE001 (else the thread would end without a word)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._border = 0

    def stored_generator(self) -> str | None:
        """The random state that was saved with the last flush or close."""
        return self._disk.stored_generator()

    def save_generator(self, state: Callable[[], str | None]) -> None:
        """Save the random state that this gives with each flush and at close."""
        self._disk.on_flush = state

    def close(self) -> None:
        """Make the lane a plain zarr group and let go of it; a second call does nothing.

        Raises:
            DiskFullError: no room for the last shard or the index. Nothing is lost; make room and
                call again.
            FailedStoreError: a write or fsync failed. The next opening recovers: as after `flush`
                if it was an fsync of rows, and otherwise all that was committed.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self._close()
        except DiskFullError:
            self._closing, self._running, self._border = True, False, 0
            raise
        except FailedStoreError as error:
            self._fail(error)
            self.let_go()
            raise
        except BaseException:
            self.let_go()
            raise
        self.let_go()

    def _close(self) -> None:
        self._forget_interrupted()
        if self._head and self._columns:
            self._finish_row(self._head - 1)
        self._wait_for_seal()
        self._background.finish_tasks()  # the checksums that are still being made
        self._columns.clear()
        self._disk.close()

    def let_go(self) -> None:
        """Leave the lane as it is; the next opening recovers it, if it is not closed."""
        self._closed = True
        self._running = False
        self._border = 0
        try:
            self._background.detach(self)
        finally:
            self._disk.release()

    def abandon(self) -> None:
        """In a forked child: this writer is the parent's."""
        self._closed = True
        self._running = False
        self._border = 0

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and rows."""
        return f"<mmreplay.Writer {self.path} rows={self._head}{' closed' * self._closed}>"


_publish = platform.barrier
_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()
after_fork_in_child(_WRITERS, Writer.abandon)
