"""The files of a lane that is locked for writing: opened, mapped chunk by chunk, released.

Invariant: while one process has a lane open for writing, no other process changes its files.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
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
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.lane_metadata import read_holder, read_metadata, read_specs
from mmreplay.storage.state_page import COMMITTED, TAIL_START
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.locks import DirectoryLock, holder
from mmreplay.system.memory_maps import populate
from mmreplay.writing import recover

__all__ = ["LockedLane", "holder_of"]

_LOG = logging.getLogger("mmreplay")
_AHEAD_BYTES = 1 << 20


class LockedLane:
    """A lane locked for writing.

    Args:
        path: its directory.
        changes: attributes to change, such as the capacity.

    Raises:
        LockedError: another writer is at work.
        StoreNotFoundError, FormatError, CorruptStoreError: there is no sound lane.
        DiskFullError: no room for the tails; nothing was changed.

    Attributes:
        path: its directory, which is locked: whatever has its name later is not touched.
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
        words: the state page's; `base` and `head` as readers see them.
        state, checkpoint, checkpoint_lock: the page, the two slots, and who may write a slot.
        sums, codecs: checksums, and how each compressed array is encoded, by path.
        fresh: directories with names that no flush has made durable; one thread fills it while
            another empties it.
        flushed: rows below it are durable.
        first: the oldest transition to be sampled, as of the last flush.
        flush_lock, failure: one flush at a time, and none after one that failed.
        closed, released: whether there is nothing left to flush.
    """

    is_live = True

    def __init__(self, path: AnyPath, changes: Mapping[str, Any]) -> None:
        metadata = read_metadata(path)  # says that there is no lane, before a lock says less
        if metadata["kind"] != "lane":
            raise SchemaError(f"{path}: this store has many lanes; name one (lane=...)")
        self._lock = DirectoryLock(path, who=lambda: holder_of(path))
        self.path: AnyPath = self._lock.directory.root
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
        self.codecs = {s.path: compression.make_codec(s.codec or {}) for s in self.tail_specs}
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self.fresh: collections.deque[AnyPath] = collections.deque()
        self.sums = Checksums(path, self.specs, self.fresh)
        self._ready: dict[str, Window] = {}
        self.closed = self.released = False
        self.failure: FailedStoreError | None = None
        self.flush_lock, self.checkpoint_lock = threading.Lock(), threading.Lock()
        self._window_lock = threading.Lock()
        durable_writes.sync_name(path)
        # A recovery takes a while, and who died does not hold it up.
        told = not metadata["closed"] and (path / ".live").is_dir()
        if told:
            _record_holder(path)
        begin = recover.reopen if metadata["closed"] else recover.recover
        live = begin(path, metadata, self.specs, self.sums, changes)
        self.metadata, self.tails = live.metadata, live.tails
        self.state, self.checkpoint = live.state, live.checkpoint
        self.words = live.state.words
        self.base, self.flushed = live.base, live.flushed
        self.recovered = live.trusted
        if live.lost:
            _LOG.warning(
                "%s: %d rows after the last flush are not kept: the system has restarted since, an "
                "fsync of them failed, or this is a copy, and the original has them",
                path,
                live.lost,
            )
        self.fresh.extend(path / spec.path for spec in self.specs.values())
        self.on_flush: Callable[[], str | None] | None = None
        self.capacity: int | None = self.metadata["capacity"]
        resets = chunk_files.nonzero_rows(self, self.specs["resets"], self.base, self.head)
        self.starts: list[int] = resets.tolist()
        self.first = episode_index.floor_row(self.base)
        self.first = self.first_row(self.head)
        if not told:
            _record_holder(path)

    @property
    def head(self) -> int:
        """Rows committed."""
        return self.words[COMMITTED]

    @property
    def tail_start(self) -> int:
        """The first row that is in the tail."""
        return self.words[TAIL_START]

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there."""
        return CorruptStoreError(
            f"{path}: missing; it holds rows up to {stop:,}; run `mmreplay verify`"
        )

    def check_in_place(self) -> None:
        """It is: who holds its lock cannot lose the directory to another."""

    def first_row(self, head: int) -> int:
        """The oldest transition to be sampled of those below `head`."""
        starts = np.array(self.starts, np.int64)
        starts = starts[: int(starts.searchsorted(head))]
        return episode_index.first_row(starts, self.first, head, self.capacity)

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
            self.fresh.append(self.path / spec.path)  # after: a flush may empty it at any time
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

    def abandon(self) -> None:
        """Its writer was dropped without close: whoever waits for the lock gets it soon."""
        self._lock.is_abandoned = True

    def release(self) -> None:
        """Let other writers in, once what runs here has ended."""
        self.released = True  # a flush that waits for its turn does nothing any more
        try:
            with self.flush_lock:
                pass
        finally:
            self._lock.release()


def _sums_path(path: str) -> str:
    return layout.checksum_spec(path).path


def _record_holder(path: AnyPath) -> None:
    """Leave word of who holds a lane; a full disk is no reason not to."""
    where = path / ".live" / "writer"
    try:
        durable_writes.write_file(where, holder(), durable=False)
    except DiskFullError:
        durable_writes.unlink(where)  # of the process before: rather no name than a wrong one


def holder_of(path: AnyPath) -> str:
    """Who holds a lane, for the message."""
    about = read_holder(path)
    return f" (pid {about['pid']} on {about['host']}, since {about['since']})" if about else ""
