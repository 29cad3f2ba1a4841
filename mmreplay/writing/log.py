"""One append-only log that is open for writing: its arrays, tails, state page and checkpoint.

Invariant: a log knows nothing of others. That of a lane's steps and that of its final observations
differ in their columns, and in that the frames of steps are stored one row ahead.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Mapping

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec, checksum_spec
from mmreplay.ids import Array
from mmreplay.storage import chunk_files
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.state_page import COMMITTED, TAIL_START, State
from mmreplay.system.held_directories import AnyPath, check_there
from mmreplay.system.memory_maps import populate

__all__ = ["Log"]

_AHEAD_BYTES = 1 << 20


class Log:
    """A log of a lane that this process has locked; `recover` gives it what changes as it is open.

    Args:
        path: its directory.
        specs: its arrays of rows, by path.
        pending: rows of frames that are stored beyond the head: 1 for a lane's steps, else 0.

    Attributes:
        tail_specs, raw_specs: the compressed arrays, and the others.
        half: rows of half a tail, which make a shard; 0 if nothing is compressed.
        codecs: how each compressed array is encoded, by path.
        sums: checksums.
        fresh: directories with names that no flush has made durable; one thread fills it while
            another empties it.
        tails: raw rows of the compressed arrays by path, (2 * half, *row_shape).
        state, checkpoint, checkpoint_lock: the page, the two slots, and the lock to write one.
        base: the oldest row kept.
        before: episodes that began below it.
        flushed: rows below it are durable.
        first: the oldest row to be sampled, as of the last flush.
        closed: whether it is a plain zarr group by now.
    """

    is_live = True
    state: State
    checkpoint: CheckpointFile
    tails: dict[str, Array]
    base: int
    before: int
    flushed: int
    first: int

    def __init__(self, path: AnyPath, specs: Mapping[str, ArraySpec], pending: int) -> None:
        self.path, self.specs, self.pending = path, dict(specs), pending
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
        self.checkpoint_lock, self._window_lock = threading.Lock(), threading.Lock()

    @property
    def live(self) -> AnyPath:
        """The directory of what only an open log has."""
        return self.path / ".live"

    @property
    def head(self) -> int:
        """Rows committed."""
        return self.state.words[COMMITTED]

    @property
    def tail_start(self) -> int:
        """The first row that is in the tail."""
        return self.state.words[TAIL_START]

    def beyond(self, spec: ArraySpec) -> int:
        """Rows of an array that are stored from the head on."""
        return self.pending if spec.path.partition("/")[0] == "frames" else 0

    def shard_start(self, row: int) -> int:
        """The first row of the shard of a row; 0 where nothing is compressed."""
        return row - row % self.half if self.half else 0

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there; raises FailedStoreError if nothing is."""
        error = CorruptStoreError(
            f"{path}: missing; it holds rows up to {stop:,}; run `mmreplay verify`"
        )
        check_there(self.path, error)
        return error

    def check_in_place(self) -> None:
        """It is: whoever holds its lane's lock cannot lose the directory to another."""

    def open_window(self, spec: ArraySpec, chunk: int) -> Window:
        """Allocate and map a chunk file for writing.

        Raises:
            DiskFullError: no room; nothing was changed.
        """
        # One at a time: a thread that finds no room removes the file that it has made, and not one
        # that another has made and writes to.
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
