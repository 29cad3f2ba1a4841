"""What of a lane is on disk while it is written: sealed, flushed, evicted, closed.

Invariant: a checkpoint speaks only of what is durable; a shard has its name only when it is whole;
a half of the tail is given back only after a checkpoint says that its rows are in a shard.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay import episode_index
from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    FormatError,
    MmreplayError,
    SchemaError,
)
from mmreplay.format import compression, layout, parse
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files, priority_column, shard_file, tail_file
from mmreplay.storage.checksums import Checksums, crc32c_of_file
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.lane_metadata import read_holder, read_metadata, read_specs
from mmreplay.storage.state_page import BASE, COMMITTED, TAIL_START
from mmreplay.system import durable_writes
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.locks import DirectoryLock, holder
from mmreplay.system.memory_maps import populate
from mmreplay.writing import build_lane, recover
from mmreplay.writing.seal import SealJob

__all__ = ["LaneDisk", "holder_of"]

_LOG = logging.getLogger("mmreplay")
_AHEAD_BYTES = 1 << 20


class LaneDisk:
    """A lane locked for writing.

    Args:
        path: its directory.
        changes: attributes to change, such as the capacity.

    Raises:
        LockedError: another writer is at work.
        StoreNotFoundError, FormatError, CorruptStoreError: there is no sound lane.
        DiskFullError: no room for the tails; nothing was changed.

    Attributes:
        path: its directory.
        metadata: attributes.mmreplay as they stand on disk.
        schema: what a row holds.
        specs: every array of rows by path.
        tail_specs, raw_specs: the compressed ones, and the others.
        tails: raw rows of the compressed arrays by path, (2 * half, *row_shape).
        half: rows of half a tail, which make a shard; 0 if nothing is compressed.
        base: the oldest row kept.
        starts: rows from base on with a reset; the writer appends to it.
        recovered: whether some of these rows are in the page cache only, until the next flush.
        on_flush: gives the random state to keep with a flush.
    """

    is_live = True

    def __init__(self, path: Path, changes: Mapping[str, Any]) -> None:
        self.path = path
        metadata = read_metadata(path)  # says that there is no lane, before a lock says less
        if metadata["kind"] != "lane":
            raise SchemaError(f"{path}: this store has many lanes; name one (lane=...)")
        self._lock = DirectoryLock(path, who=lambda: holder_of(path))
        try:
            self._open(changes)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, changes: Mapping[str, Any]) -> None:
        path = self.path
        metadata = read_metadata(path)
        where = str(path / "zarr.json")
        self.schema = parse.schema_from_json(metadata.get("schema"), where)
        self.specs, _ = read_specs(path, self.schema)
        for name in (*map(_sums_path, self.specs), layout.index_spec().path):
            if not (path / name).is_dir():
                raise FormatError(f"{path / name}: missing; run `mmreplay repair`")
        self.tail_specs = [s for s in self.specs.values() if not s.is_raw]
        self.raw_specs = [s for s in self.specs.values() if s.is_raw]
        self.half = self.tail_specs[0].chunk_rows if self.tail_specs else 0
        self._codecs = {s.path: compression.make_codec(s.codec or {}) for s in self.tail_specs}
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self._fresh: collections.deque[Path] = collections.deque()
        self._sums = Checksums(path, self.specs, self._fresh)
        self._ready: dict[str, Window] = {}
        self._closed = self._released = False
        self._failure: FailedStoreError | None = None
        self._flush_lock, self._checkpoint_lock = threading.Lock(), threading.Lock()
        self._window_lock = threading.Lock()
        durable_writes.sync_name(path)
        # A recovery takes a while, and who died does not hold it up.
        told = not metadata["closed"] and (path / ".live").is_dir()
        if told:
            _tell_holder(path)
        begin = recover.reopen if metadata["closed"] else recover.recover
        live = begin(path, metadata, self.specs, self._sums, changes)
        self.metadata, self.tails = live.metadata, live.tails
        self._state, self._checkpoint = live.state, live.checkpoint
        self.words = live.state.words
        self.base, self._flushed = live.base, live.flushed
        self.recovered = live.trusted
        if live.lost:
            _LOG.warning(
                "%s: %d rows after the last flush are not kept: the system has restarted since, an "
                "fsync of them failed, or this is a copy, and the original has them",
                path,
                live.lost,
            )
        self._fresh.extend(path / spec.path for spec in self.specs.values())
        self.on_flush: Callable[[], str | None] | None = None
        self.capacity: int | None = self.metadata["capacity"]
        resets = chunk_files.nonzero_rows(self, self.specs["resets"], self.base, self.head)
        self.starts: list[int] = resets.tolist()
        self._first = episode_index.floor_row(self.base)
        self._first = self._first_row(self.head)
        if not told:
            _tell_holder(path)

    @property
    def head(self) -> int:
        """Rows committed."""
        return self.words[COMMITTED]

    @property
    def tail_start(self) -> int:
        """The first row that is in the tail."""
        return self.words[TAIL_START]

    def missing(self, path: Path, stop: int) -> Exception:
        """The error for a chunk file that is not there."""
        return CorruptStoreError(
            f"{path}: missing; it holds rows up to {stop:,}; run `mmreplay verify`"
        )

    def check_in_place(self) -> None:
        """It is: who holds its lock cannot lose the directory to another."""

    def open_window(self, spec: ArraySpec, chunk: int) -> Window:
        """Allocate and map a chunk file for writing.

        Raises:
            DiskFullError: no room; nothing was changed.
        """
        # One at a time: who finds no room removes the file that he has made, and not one that the
        # other found there and writes to.
        with self._window_lock:
            ready = self._ready.pop(spec.path, None)
            if ready is not None and ready.chunk == chunk:
                return ready
            window = chunk_files.open_window(self.path, spec, chunk)
            self._fresh.append(self.path / spec.path)  # after: a flush may empty it at any time
            return window

    def prepare_window(self, spec: ArraySpec, chunk: int) -> None:
        """Open the next large chunk file ahead of its first row, with all its pages.

        In the background: a fault for each new page would be most of the time of a step.
        """
        if spec.chunk_bytes < _AHEAD_BYTES:
            return
        # No room yet is no error yet: the step that needs the chunk tries again, and says so.
        with contextlib.suppress(MmreplayError, OSError):
            window = self.open_window(spec, chunk)
            populate(window.rows)
            self._ready[spec.path] = window

    def release(self) -> None:
        """Let other writers in, once what runs here has ended."""
        self._released = True  # a flush that waits for its turn does nothing any more
        try:
            with self._flush_lock:
                pass
        finally:
            self._lock.release()

    # ------------------------------------------------------------ sealing

    def seal_job(self, start: int, stop: int | None = None) -> SealJob:
        """The job that moves rows [start, stop) of the tail into a shard; a whole half if None."""
        stop = start + self.half if stop is None else stop
        parts = [
            (spec, inner)
            for spec in self.tail_specs
            for inner in range(-(-(stop - start) // spec.inner_rows))
        ]

        def encode(part: int, fast: bool) -> bytes:
            spec, inner = parts[part]
            tail = self.tails[spec.path]
            row = (start + inner * spec.inner_rows) % len(tail)
            rows = tail[row : row + spec.inner_rows]
            past = start + (inner + 1) * spec.inner_rows - stop
            if past > 0:  # the last chunk of a short shard: nothing of older rows goes into it
                rows = rows.copy()
                rows[-past:] = 0
            data = rows.reshape(-1).view(np.uint8)
            return compression.encode(self._codecs[spec.path], data, fast=fast)

        def finish(encoded: list[bytes]) -> None:
            for spec in self.tail_specs:
                chunks = [
                    data for (one, _), data in zip(parts, encoded, strict=True) if one is spec
                ]
                data = shard_file.assemble(spec, chunks)
                chunk = start // spec.chunk_rows
                durable_writes.write_file(chunk_files.chunk_path(self.path, spec, chunk), data)
                self._sums.set(spec, chunk, compression.crc32c(data))
            if stop - start == self.half:
                with self._checkpoint_lock:
                    self._checkpoint.write(tail_start=stop)
                    self.words[TAIL_START] = stop

        return SealJob(len(parts), encode, finish)

    def sum_up(self, spec: ArraySpec, window: Window) -> None:
        """Store the checksum of a raw chunk file whose last row has been written."""
        if (window.chunk + 1) * spec.chunk_rows <= self.base:
            return
        # One that fails is computed at close, or not at all: no row depends on it.
        with contextlib.suppress(MmreplayError, OSError):
            data = window.rows.reshape(-1).view(np.uint8)
            self._sums.set(spec, window.chunk, compression.crc32c(data))

    # ------------------------------------------------------------ flushing and evicting

    def flush(self) -> None:
        """Make all committed rows durable, then evict what the capacity leaves no room for.

        Raises:
            DiskFullError: no room, for the random state at most: the rows are durable.
            FailedStoreError: an fsync failed, now or before: it is never tried again.
        """
        self._in_turn(self._flush_once_more)

    def _in_turn(self, call: Callable[[], None]) -> None:
        """One flush at a time, and none after one that failed: its fsyncs would say all is well."""
        with self._flush_lock:
            if self._failure is not None:
                raise FailedStoreError(str(self._failure)) from self._failure
            try:
                call()
            except FailedStoreError as error:
                self._failure = error
                raise

    def _flush_once_more(self) -> None:
        if not (self._closed or self._released):  # while this one waited
            self._flush()

    def _flush(self) -> None:
        head = self.head
        first = self._first_row(head)
        base = _base_of(first, self.base)
        # Each once, in an order that is the same for the same history. They are forgotten only once
        # they are durable: a flush that is interrupted leaves them to the next one.
        n_fresh = len(self._fresh)
        fresh = dict.fromkeys(self._fresh[number] for number in range(n_fresh))
        if head > self._flushed or fresh:
            try:
                self._sync_rows(head)
            except FailedSyncError:
                self._state.distrust()
                raise
        self._sums.sync()
        for directory in fresh:
            durable_writes.sync_directory(directory)
        for _ in range(n_fresh):
            self._fresh.popleft()
        try:
            self._save_generator()
            saved = True
        except DiskFullError:
            saved = False  # the rows need no room, and what is evicted makes some
        with self._checkpoint_lock:
            self._checkpoint.write(head=head, base=base)
        self._flushed, self._first = head, first
        if base > self.base:
            self.words[BASE] = self.base = base
            self._evict()
        if not saved:
            self._save_generator()

    def _save_generator(self) -> None:
        state = None if self.on_flush is None else self.on_flush()
        if state is not None:
            durable_writes.write_file(build_lane.generator_path(self.path), state.encode())

    def _sync_rows(self, head: int) -> None:
        for spec in self.tail_specs:
            durable_writes.sync_file(tail_file.tail_path(self.path, spec))
        # Row flushed - 1 was the newest one, and has got its action since.
        oldest = max(self._flushed - 1, self.base, 0)
        for spec in self.raw_specs:
            for chunk in range(oldest // spec.chunk_rows, -(-head // spec.chunk_rows)):
                durable_writes.sync_file(chunk_files.chunk_path(self.path, spec, chunk))

    def _first_row(self, head: int) -> int:
        starts = np.array(self.starts, np.int64)
        starts = starts[: int(starts.searchsorted(head))]
        return episode_index.first_row(starts, self._first, head, self.capacity)

    def can_evict(self) -> bool:
        """Whether a flush now would free a chunk file."""
        base = _base_of(self._first_row(self.head), self.base)
        return any(
            base // spec.chunk_rows > self.base // spec.chunk_rows for spec in self.specs.values()
        )

    def _evict(self) -> None:
        """Unlink the chunk files wholly below the base that a checkpoint has."""
        for spec in self.specs.values():
            for chunk in chunk_files.chunk_files(self.path, spec):
                if (chunk + 1) * spec.chunk_rows > self.base:
                    break
                durable_writes.unlink(chunk_files.chunk_path(self.path, spec, chunk))
        with contextlib.suppress(FormatError, CorruptStoreError):  # damaged, they cost no row
            priority_column.evict(self.path, self.base)
        kept = 0
        while kept + 1 < len(self.starts) and self.starts[kept + 1] <= self.base:
            kept += 1
        del self.starts[:kept]

    def stored_generator(self) -> str | None:
        """The random state that was saved with the last flush or close."""
        return build_lane.read_generator(self.path)

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """Make the lane a plain zarr group. The newest row is final, and no job is running.

        Raises:
            DiskFullError, FailedStoreError: it could not be finished; the lane is as before a
                recovery then, and nothing that was committed is lost.
        """
        self._in_turn(self._end)

    def _end(self) -> None:
        if not self._closed:  # otherwise only what was private is still there
            # A step that failed since the last flush has touched the newest row.
            self._flushed = min(self._flushed, self.head - 1)
            self._flush()
            self._close()
        durable_writes.remove_tree(self.path / ".live")
        durable_writes.sync_directory(self.path)

    def _close(self) -> None:
        head = self.head
        if self.half:
            start = self.tail_start
            if head - start >= self.half:
                self._seal_here(start, start + self.half)
                start += self.half
            if head > start:
                self._seal_here(start, head)
        self._evict()
        self._zero_unused(head)
        self._finish_checksums(head)
        self._write_index(head)
        for spec in self.specs.values():
            self._write_shape(spec, head)
            self._write_shape(layout.checksum_spec(spec.path), -(-head // spec.chunk_rows))
        with contextlib.suppress(FormatError, CorruptStoreError):
            priority_column.finish(self.path, head)
        generator = self.stored_generator()
        more = {} if generator is None else {"generator": generator}
        self.metadata = build_lane.write_metadata(
            self.path, self.metadata, rows=head, first=self._first, closed=True, **more
        )
        self._closed = True
        self._state.end()

    def _seal_here(self, start: int, stop: int) -> None:
        job = self.seal_job(start, stop)
        job.run()
        if job.error is not None:
            raise job.error

    def _zero_unused(self, head: int) -> None:
        """Give back the blocks past the last row; whatever an interrupted step left there goes."""
        for spec in self.raw_specs:
            for chunk in chunk_files.chunk_files(self.path, spec):
                start = chunk * spec.chunk_rows
                path = chunk_files.chunk_path(self.path, spec, chunk)
                if start >= head:
                    durable_writes.unlink(path)
                elif head < start + spec.chunk_rows:
                    durable_writes.zero_from(path, (head - start) * spec.row_bytes)

    def _finish_checksums(self, head: int) -> None:
        for spec in self.specs.values():
            for chunk in chunk_files.chunk_files(self.path, spec):
                is_short = spec.is_raw and head < (chunk + 1) * spec.chunk_rows
                # That of a shard may have gone with the power, after the shard was durable.
                if is_short or not self._sums.has(spec, chunk):
                    path = chunk_files.chunk_path(self.path, spec, chunk)
                    size = spec.chunk_bytes if spec.is_raw else shard_file.file_size(path, spec)
                    # Read, not mapped: on tmpfs a map needs room even for what lies in a hole.
                    self._sums.set(spec, chunk, crc32c_of_file(path, size))
        self._sums.sync()
        for spec in self.specs.values():
            # A power cut may have taken all the rows that such a file was made for.
            sums = layout.checksum_spec(spec.path)
            for file in chunk_files.chunk_files(self.path, sums):
                if file * sums.chunk_rows * spec.chunk_rows >= head:
                    durable_writes.unlink(chunk_files.chunk_path(self.path, sums, file))
            durable_writes.sync_directory(self.path / layout.checksum_spec(spec.path).path)

    def _write_index(self, head: int) -> None:
        starts = np.array([row for row in self.starts if self.base <= row < head], "<i8")
        spec = layout.index_spec(len(starts))
        for chunk in chunk_files.chunk_files(self.path, spec):
            durable_writes.unlink(chunk_files.chunk_path(self.path, spec, chunk))
        for chunk in range(-(-len(starts) // spec.chunk_rows)):
            part = starts[chunk * spec.chunk_rows : (chunk + 1) * spec.chunk_rows]
            data = part.tobytes().ljust(spec.chunk_bytes, b"\0")
            durable_writes.write_file(chunk_files.chunk_path(self.path, spec, chunk), data)
        self._write_shape(spec, len(starts))

    def _write_shape(self, spec: ArraySpec, rows: int) -> None:
        durable_writes.write_file(
            self.path / spec.path / "zarr.json", layout.array_json(spec, rows)
        )


def _sums_path(path: str) -> str:
    return layout.checksum_spec(path).path


def _base_of(first: int, base: int) -> int:
    """The oldest row to keep when `first` is the oldest to be sampled, and `base` was kept."""
    return max(base, first - layout.CONTEXT_ROWS)


def _tell_holder(path: Path) -> None:
    """Leave word of who holds a lane; a full disk is no reason not to."""
    where = path / ".live" / "writer"
    try:
        durable_writes.write_file(where, holder(), durable=False)
    except DiskFullError:
        durable_writes.unlink(where)  # of the process before: rather no name than a wrong one


def holder_of(path: Path) -> str:
    """Who holds a lane, for the message."""
    about = read_holder(path)
    return f" (pid {about['pid']} on {about['host']}, since {about['since']})" if about else ""
