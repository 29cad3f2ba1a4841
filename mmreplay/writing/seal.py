"""The threads of a writer, and the sealing of a half of the tail into a shard.

One thread seals and checksums, one flushes by the clock. A writer that waits for a shard helps to
encode it.

Invariant: the thread that steps the environment waits for the disk only if there is no room left to
write to, or if `reset` ends an episode whose last step is already durable; an interrupt never makes
it wait forever (see `mmreplay.system.threads`). A shard has its name only when it is
whole; a half of the tail is given back only after a checkpoint says that its rows are in a shard.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Callable

import numpy as np

from mmreplay.errors import FailedStoreError, MmreplayError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files, shard_file
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.state_page import TAIL_START
from mmreplay.system import durable_writes
from mmreplay.system.limits import starting_threads
from mmreplay.system.threads import Flag, Thread, Workers
from mmreplay.writing.flush import TimedFlush
from mmreplay.writing.log import Log

_NEVER = 1 << 62
_NICE = 10
"""Of the sealing thread: environments in threads of their own wait for the slowest at each step, so
frames are compressed while cores are idle, and a writer that needs the room helps."""


class Background:
    """The threads of one writer.

    `flush_s` is the interval of flushes, 0 for none. While `building` a lane that has no name yet,
    frames are compressed as configured even if the writer waits for it, and the caller syncs the
    lane. `helpers` compress beside the sealing thread.
    """

    building = False

    def __init__(self, flush_s: float) -> None:
        self.flush_s, self.helpers = flush_s, list[Workers]()
        self._lane: Callable[[], TimedFlush | None] = lambda: None
        self._stop = self._due = False
        self._sealing = Workers(1, "mmreplay-seal", nice=_NICE)
        wake: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._wake = wake
        # The loop holds no lane while it waits: a writer dropped without close goes, and its lock.
        owner = weakref.ref(self, wake.put)
        run, stop = functools.partial(_flush_loop, owner, wake), functools.partial(wake.put, False)
        self._flushing = Thread(run, "mmreplay-flush", stop)

    def build(self, n_threads: int) -> None:
        """Begin `building`, with so many threads that compress; nothing was submitted yet."""
        self.building = True
        self._sealing, *self.helpers = (Workers(1, "mmreplay-seal") for _ in range(n_threads))

    def attach(self, lane: TimedFlush) -> None:
        """Flush this lane from now on."""
        self._lane = weakref.ref(lane)
        if self.flush_s > 0:
            with starting_threads():
                self._flushing.start()

    def end(self) -> None:
        """Flush no more, and end the threads once the tasks have ended."""
        self._stop = True
        for workers in (*self.helpers, self._sealing):
            workers.end()
        self._flushing.end()

    def finish_tasks(self) -> None:
        """Wait until the tasks that were submitted before have ended."""
        ended = Flag()
        self.submit(ended.set)
        ended.wait()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task, which keeps its own errors, in the sealing thread, or at once without one."""
        if not self._sealing.hand_over(task):
            task()

    def wake(self) -> None:
        """Let the flushing thread see whether eviction needs a flush."""
        # If no thread can be started, the next call tries again.
        with contextlib.suppress(RuntimeError, MemoryError):
            self._flushing.start()
        if self._wake.empty():
            self._wake.put(True)

    def flush_soon(self) -> None:
        """Flush as if the time had come, unless nothing is flushed by the clock."""
        if self.flush_s > 0:
            self._due = True
            self._wake.put(True)

    def tick(self, *, timer: bool) -> bool:
        """One round of the flushing thread; False when it is over."""
        timer, self._due = timer or self._due, False
        lane = self._lane()
        if lane is not None and not self._stop:
            lane.flush_in_background(timer=timer)
        return not self._stop


def _flush_loop(owner: weakref.ref[Background], wake: queue.SimpleQueue[object]) -> None:
    """Flush at each True that comes; what else comes ends it."""
    while True:
        background = owner()
        if background is None:
            return
        interval = background.flush_s
        del background
        is_woken = goes_on = True
        try:
            # An hour is as good as never to wait.
            goes_on = wake.get(timeout=min(interval or 3600.0, 3600.0)) is True
            while not wake.empty():
                goes_on &= wake.get() is True
        except queue.Empty:
            is_woken = False
        background = owner()
        if not goes_on or background is None or not background.tick(timer=not is_woken):
            return


class SealJob:
    """Rows [start, stop) of a tail to a shard, by the sealing thread and a writer that waits."""

    def __init__(self, log: Log, start: int, stop: int, *, durable: bool = True) -> None:
        self._log, self._start, self._stop, self._durable = log, start, stop, durable
        self._chunks = [
            (spec, inner)
            for spec in log.tail_specs
            for inner in range(-(-(stop - start) // spec.inner_rows) * spec.width)
        ]
        self._parts: list[bytes | None] = [None] * len(self._chunks)
        self._todo = collections.deque(range(len(self._chunks)))
        self._hurry = False
        self.done = Flag()
        self.error: BaseException | None = None

    def work(self, *, fast: bool) -> None:
        """Encode parts until none is left; `fast` makes both threads hurry."""
        self._hurry |= fast
        while self._todo:
            try:
                part = self._todo.popleft()
            except IndexError:  # the other thread has taken it
                return
            self._parts[part] = self._encode(part)

    def run(self) -> None:
        """The sealing thread's part: encode, and finish; nothing if that is done."""
        if self.done.is_set:
            return
        try:
            self.work(fast=False)
            # A part that the writer is at is done here too: it may have been interrupted in it.
            parts = [
                self._encode(number) if part is None else part
                for number, part in enumerate(self._parts)
            ]
            self._finish(parts)
        except BaseException as error:
            is_here = threading.current_thread() is threading.main_thread()
            if is_here and not isinstance(error, Exception):
                raise  # an interrupt where no thread was to be had: the writer has it run again
            self.error = error  # the writer raises it at its next border
        self.done.set()

    def _encode(self, part: int) -> bytes:
        spec, inner = self._chunks[part]
        rows = chunk_files.tail_rows(spec, self._log.tails[spec.path], self._start, inner)
        past = self._start + (inner // spec.width + 1) * spec.inner_rows - self._stop
        if past > 0:  # the last chunk of a short shard: nothing of older rows goes into it
            rows = rows.copy()
            rows[-past:] = 0
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        return compression.encode(self._log.codecs[spec.path], data, fast=self._hurry)

    def _finish(self, encoded: list[bytes]) -> None:
        log, stop = self._log, self._stop
        for spec in log.tail_specs:
            pairs = zip(self._chunks, encoded, strict=True)
            data = shard_file.assemble(spec, [part for (of, _), part in pairs if of is spec])
            chunk = self._start // spec.chunk_rows
            path = chunk_files.chunk_path(log.path, spec, chunk)
            durable_writes.write_file(path, data, durable=self._durable)
            log.sums.set(spec, chunk, compression.crc32c(data))
        if stop - self._start == log.half:
            with log.checkpoint_lock:
                if self._durable:
                    log.checkpoint.write(tail_start=stop)
                log.state.words[TAIL_START] = stop


def sum_up(log: Log, spec: ArraySpec, window: Window) -> None:
    """Store the checksum of a raw chunk file whose last row has been written."""
    if (window.chunk + 1) * spec.chunk_rows <= log.base:
        return
    # One that fails is computed at close, or not at all: no row depends on it.
    with contextlib.suppress(MmreplayError, OSError):
        log.sums.set(spec, window.chunk, compression.crc32c(window.data))


class Sealer:
    """Keeps half of a log's tail free; from row `half_stop` on `make_room` is needed."""

    def __init__(self, log: Log, background: Background) -> None:
        self._log, self._background = log, background
        self._job: SealJob | None = None
        self._is_replacing = False  # also after an interrupt in the middle: it is begun again then
        self.half_stop = 0 if log.half else _NEVER

    def make_room(self, n: int) -> None:
        """Free the place of row n, which the log does not have yet."""
        if n < self.half_stop:
            return
        log, half = self._log, self._log.half
        self.wait()
        start = log.tail_start
        if n - start >= 2 * half:  # after a kill both halves may be full
            self._submit()
            self.wait()
            start = log.tail_start
        if n - start < half:
            stop = start + half
        elif log.head < start + half:  # its last row is about to be committed: ask again then
            stop = n + 1
        else:
            self._submit()
            stop = start + 2 * half
        is_shared = any(chunk_files.is_shared(log.path, spec) for spec in log.tail_specs)
        if is_shared or self._is_replacing:
            self._is_replacing = True
            self._replace_tails()
            self._is_replacing = False
        self.half_stop = stop

    def _replace_tails(self) -> None:
        """Continue in tails that no copy of the log shares."""
        log = self._log
        for spec in log.tail_specs:
            tail = chunk_files.map_tail(log.path, spec, writable=True)
            tail[...] = log.tails[spec.path]  # written since an interrupted call copied the file
            log.tails[spec.path] = tail
        log.state.renew()  # before a row is written that readers would look for in the old ones

    def wait(self) -> None:
        """Make sure that the half of the tail before the newest one is in a shard."""
        job = self._job
        if job is None:
            return
        self._help(job)
        if job.error is not None and not isinstance(job.error, FailedStoreError):
            # There may be room, or memory, by now; a failed fsync is the end.
            job = self._submit()
            self._help(job)
        if isinstance(job.error, MmreplayError):
            raise type(job.error)(str(job.error)) from job.error
        if job.error is not None:
            raise job.error
        self._job = None

    def _help(self, job: SealJob) -> None:
        if job.done.is_set:
            return
        # A part that fails here is left to the sealing thread, which tells why if it fails again.
        with contextlib.suppress(Exception):
            job.work(fast=not self._background.building)
        self._background.submit(job.run)  # again: an interrupt may have kept it from getting there
        job.done.wait()

    def _submit(self) -> SealJob:
        start, durable = self._log.tail_start, not self._background.building
        job = self._job = SealJob(self._log, start, start + self._log.half, durable=durable)
        self._background.submit(job.run)
        for helper in self._background.helpers:
            helper.hand_over(functools.partial(job.work, fast=False))
        return job
