"""Read-only view of one append-only log: closed, live or crashed; takes no lock, writes nothing.

Invariant: `base`, `head` and the tails belong to one session of the log; `poll` says when that
session is over, and `load` starts again from zarr.json.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError, StoreNotFoundError
from mmreplay.format import layout
from mmreplay.format.columns import Column
from mmreplay.format.compression import crc32c
from mmreplay.format.consolidated import Copy
from mmreplay.ids import Array
from mmreplay.storage import tail_file
from mmreplay.storage.checkpoint import CheckpointFile, check_rows
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import (
    Root,
    read_document,
    read_metadata,
    read_root,
    read_specs,
)
from mmreplay.storage.state_page import BASE, COMMITTED, SESSION, TAIL_START, State
from mmreplay.system import locks, platform
from mmreplay.system.held_directories import AnyPath, at, check_there

_ATTEMPTS = 50
_IDLE_ATTEMPTS = 5
_PATIENCE_S = 0.02

_NO_SESSION = -1  # no word of the page ever has it


def file_stamp(path: AnyPath) -> tuple[int, int]:
    """What changes when zarr.json is replaced; zeros if it is gone."""
    name, folder = at(path)
    try:
        about = os.stat(f"{name}/zarr.json", dir_fd=folder)  # for each lane of a batch: no new path
    except OSError as error:
        check_there(path, error)
        return 0, 0
    return about.st_ino, about.st_mtime_ns


class LogReader:
    """One log, read-only; rows below `base` are gone, those below `head` committed.

    While `is_live`, a session that this reader follows may append rows. `tails` are raw rows of the
    compressed arrays, by path, while live or after a crash. `untrusted` counts rows past the head
    that a state page speaks of which is not trusted.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.specs: dict[str, layout.ArraySpec] = {}
        self.base = self.head = self.untrusted = 0
        self.is_live = self.is_closed = False
        self.tails: dict[str, Array] = {}
        self._state: State | None = None
        self._session = 0
        self._tail_start = 0
        self.load()

    def _columns(self) -> Mapping[str, Column]:
        """The arrays of rows, by path, from `metadata`; raises FormatError for one of others."""
        raise NotImplementedError

    def _find_copy(self, root: Root) -> Copy | None:
        """The copy of the documents of its arrays, if it is closed and there is one."""
        return root.copy

    @property
    def _capacity(self) -> int | None:
        """Transitions to keep; None if no row is ever evicted."""
        capacity: int | None = self.metadata["capacity"]
        return capacity

    @property
    def _context(self) -> int:
        """Rows kept below the oldest one that may be sampled."""
        return layout.context_rows(None)

    @property
    def _locked(self) -> AnyPath:
        """The directory that whoever writes the log holds a lock on."""
        return self.path

    def load(self, *, trust: bool = True) -> None:
        """Open again, from zarr.json; which errors it raises is in docs/format.md.

        Without `trust` a log that is not closed is read as of its last flush, whatever its state
        page says.
        """
        n_idle = 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                # Whoever opens or closes it holds its lock. Nobody does: nothing to wait for.
                n_idle = 0 if locks.is_locked(self._locked) else n_idle + 1
                if n_idle > _IDLE_ATTEMPTS:
                    break
                time.sleep(_PATIENCE_S)
            self._stamp = file_stamp(self.path)
            root = read_root(self.path)
            self.metadata, self._sum = root.metadata, crc32c(root.data)
            try:
                copy = self._find_copy(root) if self.metadata.get("closed") else None
                self.specs, rows = read_specs(self.path, self._columns(), copy)
            except (FormatError, CorruptStoreError):
                if file_stamp(self.path) == self._stamp:
                    raise
                continue  # another store has the path by now, or none
            if self.metadata["closed"]:
                self._load_closed(rows)
                return
            if self._load_open(trust=trust):
                return
        raise CorruptStoreError(
            f"{self.path}: neither closed nor live: expected .live/state, .live/checkpoint and the "
            f"tails, found no whole set of them"
        )

    def _load_closed(self, rows: int) -> None:
        own = self.metadata
        if rows < own["rows"]:
            raise FormatError(
                f"{self.path}: the root says {own['rows']:,} rows, the arrays {rows:,}"
            )
        self.head = self._tail_start = own["rows"]
        self.base = max(own["first"] - self._context, 0)
        self.is_live, self.is_closed = False, True
        self.tails, self._state, self._session = {}, None, 0

    def _load_open(self, *, trust: bool) -> bool:
        """Take a log that was not closed; False if it changed hands while it was looked at."""
        live = self.path / ".live"
        try:
            # The state first: the session that it shows must be the one that it shows when all
            # else is mapped, or the tails may be those of another.
            state = State(live / "state", writable=False)
            session = state.words[SESSION]
            best = CheckpointFile(live / "checkpoint", self.metadata["uuid"]).best
            tails = {
                name: tail_file.map_tail(self.path, spec)
                for name, spec in self.specs.items()
                if not spec.is_raw
            }
        except (FileNotFoundError, NotADirectoryError):
            return False  # being closed, opened or recovered at this moment
        except CorruptStoreError:
            if file_stamp(self.path) != self._stamp:
                return False  # closed since, and opened again: a tail has its name before its size
            raise
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            raise CorruptStoreError(f"{live}: may not be read: {error.strerror}") from error
        trusted = trust and state.trusted(best)
        if trusted and session == 0 and read_metadata(self.path)["closed"]:
            return False  # its writer has just closed it
        self._state, self._session = state, session
        self.is_live, self.is_closed = trusted, False
        self.tails = tails if trusted or best.tail_start <= best.head else {}
        if trusted:
            self.base = state.words[BASE]  # before the head, which moves on
            self._follow()
        else:  # the rules of recovery, in memory only
            self.head, self.base = best.head, best.base
            self._tail_start = min(best.tail_start, best.head)
        self.untrusted = 0 if trusted else state.rows_beyond(best.head)
        check_rows(live, self.base, self.head, self._capacity)
        unchanged = state.words[SESSION] == session and state.is_in_place()
        return unchanged and read_metadata(self.path) == self.metadata

    def _follow(self) -> None:
        words = self._state.words  # type: ignore[union-attr]
        self._tail_start = words[TAIL_START]
        self._reach(words[COMMITTED])

    def _reach(self, head: int) -> None:
        """Take a new head: what is read from here on is read after it."""
        self.head = head
        if platform.barrier is not None:
            platform.barrier()

    def in_session(self) -> bool:
        """Whether the session that was loaded goes on."""
        return self._state is None or self._state.words[SESSION] == self._session

    def poll(self) -> bool:
        """Take the newest head of a live log; False if its session is over: it must be loaded."""
        if not self.in_session():
            return False
        if self.is_live and self._state is not None:
            words = self._state.words
            head = words[COMMITTED]
            if head != self.head:
                self._reach(head)
                if not self.in_session():  # it may be the head of the next one
                    return False
            self.base = words[BASE]
        return True

    def leave_session(self) -> None:
        """Let `poll` say of a log that is not closed that it must be loaded again."""
        self._session = _NO_SESSION

    def is_in_place(self) -> bool:
        """Whether what stands at the path is still what was loaded; one call to the system.

        It is not once a log that was closed is opened again, nor once another directory has the
        name, as after a repair: the rows of that one are not those that this reader knows.
        """
        if self._state is not None:
            return self._state.is_in_place()
        return self._stamp == file_stamp(self.path)

    def check_in_place(self) -> None:
        """See `chunk_files.LaneFiles`."""
        if not self.is_in_place():
            raise EvictedError(str(self.path))

    def replaced(self) -> bool:
        """Whether zarr.json or the state is another than the one that was loaded."""
        if not self.poll():
            return True
        try:
            if self.is_closed:  # with all its copies it is long: not parsed again
                return crc32c(read_document(self.path)) != self._sum
            return read_metadata(self.path) != self.metadata or (
                self._state is not None and not self._state.path.exists()
            )
        except (StoreNotFoundError, FormatError):
            return True

    def tail_start(self) -> int:
        """The first row that is in the tail now."""
        if self.is_live and self._state is not None:
            return self._state.words[TAIL_START]
        return self._tail_start

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there and holds rows below `stop`."""
        if self.is_live and (not self.poll() or stop <= self.base or not self.is_in_place()):
            return EvictedError(str(path))
        if not self.is_live and self.replaced():
            return EvictedError(str(path))
        return CorruptStoreError(
            f"{path}: this chunk file is missing; it holds rows up to {stop:,} of "
            f"[{self.base:,}, {self.head:,}); run `mmreplay verify`"
        )
