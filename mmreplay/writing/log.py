"""One append-only log that is open for writing: its arrays, tails, state page and checkpoint.

Invariant: a log knows nothing of others. What differs between the rows of one environment, the
ticks of a vector lane and the starts of its episodes is its columns, and what `kept` says.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import compression
from mmreplay.format.columns import Column
from mmreplay.format.consolidated import Documents
from mmreplay.format.layout import ArraySpec, checksum_spec
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.lane_metadata import read_metadata, read_specs
from mmreplay.storage.state_page import COMMITTED, TAIL_START
from mmreplay.system.held_directories import AnyPath, check_there
from mmreplay.system.memory_maps import populate
from mmreplay.writing import recover

__all__ = ["Kept", "Log"]

_AHEAD_BYTES = 1 << 20


class Kept(Protocol):
    """Which rows of a log are kept, and what stands beside them."""

    def first_row(self, head: int) -> int:
        """The oldest row below `head` that is to be kept, but for those before it as context."""

    def forget(self, base: int) -> None:
        """Rows below `base` were evicted."""

    def finish(self, head: int) -> list[tuple[ArraySpec, int]]:
        """Write durably the arrays that a closed log of that many rows has besides those of rows.

        Returns them, and how many rows each has.
        """


class Log:
    """A log that this process has open for writing; who makes it holds the lane's lock.

    Args:
        path: its directory.
        columns: its arrays of rows, by path.
        changes: attributes to change, such as the capacity.
        capacity: transitions that its lane keeps, so far.
        width: environments of a tick; None if a row is none.
        before_reopening: called before a closed one is made an open one.

    Raises:
        FormatError, CorruptStoreError: it is no sound log.
        DiskFullError: no room for the tails; nothing was changed.

    Attributes:
        metadata: attributes.mmreplay as they stand on disk.
        specs: every array of rows by path.
        tail_specs, raw_specs: the compressed ones, and the others.
        tails: raw rows of the compressed arrays by path, (2 * half, *row_shape).
        half: rows of half a tail, which make a shard; 0 if nothing is compressed.
        base: the oldest row kept.
        recovered: whether some of its rows are in the page cache only, until the next flush.
        lost: rows after the last flush that were not trusted, as far as the state page tells.
        words: the state page's; `base` and `head` as readers see them.
        state, checkpoint, checkpoint_lock: the page, the two slots, and who may write a slot.
        sums, codecs: checksums, and how each compressed array is encoded, by path.
        fresh: directories with names that no flush has made durable; one thread fills it while
            another empties it.
        flushed: rows below it are durable.
        first: the oldest row to be sampled, as of the last flush.
        closed: whether it is a plain zarr group by now.
        documents: once it is closed, what stands in the zarr.json of its arrays and groups.
        kept: which rows are kept; set by who makes the log.
    """

    is_live = True
    kept: Kept

    def __init__(
        self,
        path: AnyPath,
        columns: Mapping[str, Column],
        changes: Mapping[str, Any] | None = None,
        *,
        capacity: int | None,
        width: int | None = None,
        before_reopening: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self.width = path, width
        metadata = read_metadata(path)
        self.specs, _ = read_specs(path, columns)
        for name in self.specs:
            folder = path / checksum_spec(name).path
            if not folder.is_dir():
                raise FormatError(f"{folder}: missing; run `mmreplay repair`")
        self.tail_specs = [s for s in self.specs.values() if not s.is_raw]
        self.raw_specs = [s for s in self.specs.values() if s.is_raw]
        self.half = self.tail_specs[0].chunk_rows if self.tail_specs else 0
        self.codecs = {s.path: compression.make_codec(s.codec or {}) for s in self.tail_specs}
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self.fresh: collections.deque[AnyPath] = collections.deque()
        self.sums = Checksums(path, self.specs, self.fresh)
        self._ready: dict[str, Window] = {}
        self.closed = False
        self.documents: Documents = {}
        self.checkpoint_lock, self._window_lock = threading.Lock(), threading.Lock()
        begin: Callable[..., recover.Live] = recover.recover
        if metadata["closed"]:
            begin = functools.partial(recover.reopen, before=before_reopening)
        live = begin(
            path, metadata, self.specs, self.sums, changes or {}, capacity=capacity, width=width
        )
        self.metadata, self.tails = live.metadata, live.tails
        self.state, self.checkpoint = live.state, live.checkpoint
        self.words = live.state.words
        self.base, self.flushed = live.base, live.flushed
        self.recovered, self.lost = live.trusted, live.lost
        self.fresh.extend(path / spec.path for spec in self.specs.values())
        self.first = 0

    @property
    def head(self) -> int:
        """Rows committed."""
        return self.words[COMMITTED]

    @property
    def tail_start(self) -> int:
        """The first row that is in the tail."""
        return self.words[TAIL_START]

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there; raises FailedStoreError if nothing is."""
        error = CorruptStoreError(
            f"{path}: missing; it holds rows up to {stop:,}; run `mmreplay verify`"
        )
        check_there(self.path, error)
        return error

    def check_in_place(self) -> None:
        """It is: who holds its lane's lock cannot lose the directory to another."""

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
            populate(window.data)
            self._ready[spec.path] = window
