"""Arrays that are open for writing; an append-only log: with tails, state page and checkpoint.

Invariant: a log knows nothing of others. That of a lane's steps and that of its final observations
differ in their columns, and in that the frames of steps are stored one row ahead.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator, Mapping

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec, checksum_spec
from mmreplay.ids import Array
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.chunk_files import Window
from mmreplay.storage.state_page import COMMITTED, TAIL_START, CheckpointFile, State
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.held_directories import AnyPath, check_there
from mmreplay.system.memory_maps import populate

_AHEAD_BYTES = 1 << 20


@contextlib.contextmanager
def syncing_rows(*logs: Log) -> Iterator[None]:
    """If an fsync fails, the next opening goes back to the checkpoints of these logs."""
    try:
        yield
    except FailedSyncError:
        for log in logs:
            log.state.distrust()
        raise


class Arrays:
    """Arrays below one directory of a lane that this process has locked.

    Attributes:
        half: rows of half a tail, which make a shard; 0 if nothing is compressed.
        fresh: directories with names that are not durable yet.
        base: the oldest row kept.
    """

    base = 0

    def __init__(self, path: AnyPath, specs: Mapping[str, ArraySpec]) -> None:
        self.path, self.specs = path, dict(specs)
        for name in self.specs:
            folder = path / checksum_spec(name).path
            if not folder.is_dir():
                raise FormatError(f"{folder}: missing; run `mmreplay repair`")
        self.tail_specs = [s for s in self.specs.values() if not s.is_raw]
        self.raw_specs = [s for s in self.specs.values() if s.is_raw]
        self.half = self.tail_specs[0].chunk_rows if self.tail_specs else 0
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self.fresh: collections.deque[AnyPath] = collections.deque()
        self.sums = Checksums(path, self.specs, self.fresh)
        self._window_lock = threading.Lock()

    def beyond(self, spec: ArraySpec) -> int:
        """Rows of an array that are stored from the head on."""
        del spec
        return 0

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there; raises FailedStoreError if nothing is."""
        error = CorruptStoreError(
            f"{path}: missing; it holds rows up to {stop:,}; run `mmreplay verify`"
        )
        check_there(self.path, error)
        return error

    def check_in_place(self) -> None:
        """Nothing to check: a locked lane keeps its directory."""

    def open_window(self, spec: ArraySpec, chunk: int) -> Window:
        """Allocate and map a chunk file for writing; DiskFullError: nothing was changed."""
        # One at a time: a thread that finds no room removes the file that it has made, and not one
        # that another has made and writes to.
        with self._window_lock:
            return self._opened(spec, chunk)

    def _opened(self, spec: ArraySpec, chunk: int) -> Window:
        window = chunk_files.open_window(self.path, spec, chunk)
        self.fresh.append(self.path / spec.path)  # after: a flush may empty it at any time
        return window


class Log(Arrays):
    """A log of a lane that this process has locked; `recover` sets what changes while it is open.

    Attributes:
        pending: rows of frames stored beyond the head: 1 for steps, else 0.
        tails: raw rows of the compressed arrays by path, (2 * half, *row_shape).
        base, before: the oldest row kept, and the number of episodes that began below it.
        flushed: rows below it are durable.
        is_trusted: a recovery trusted the state page: rows after the last flush are kept.
        first: the oldest row to be sampled, as of the last flush.
    """

    is_live = True
    is_trusted = False
    state: State
    checkpoint: CheckpointFile
    tails: dict[str, Array]
    before: int
    flushed: int
    first: int

    def __init__(self, path: AnyPath, specs: Mapping[str, ArraySpec], pending: int) -> None:
        super().__init__(path, specs)
        self.pending = pending
        self.codecs = {s.path: compression.make_codec(s.codec or {}) for s in self.tail_specs}
        self._ready: dict[str, Window] = {}
        self.closed = False
        self.checkpoint_lock = threading.Lock()

    def add(self, spec: ArraySpec) -> None:
        """Add a column that was made while the log is open; the caller has the turn of flushes."""
        if spec.path not in self.specs:
            self.specs[spec.path] = spec
            self.raw_specs.append(spec)
            self.fresh.append(self.path / spec.path)

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

    def _opened(self, spec: ArraySpec, chunk: int) -> Window:
        ready = self._ready.pop(spec.path, None)
        if ready is not None and ready.chunk == chunk:
            return ready
        return super()._opened(spec, chunk)

    def prepare_window(self, spec: ArraySpec, chunk: int) -> None:
        """Open the next large chunk file ahead of its first row, with all its pages."""
        if spec.chunk_bytes < _AHEAD_BYTES:
            return
        # A full disk is not an error yet: the step that needs the chunk tries again.
        with contextlib.suppress(MmreplayError, OSError):
            window = self.open_window(spec, chunk)
            populate(window.data)
            self._ready[spec.path] = window
