"""Read-only view of a lane: the log of its steps, and that of its final observations.

Invariants:
- `base`, `head` and the tails of a log belong to one session of it; `poll` says when that session
  is over, and the lane is to be loaded again.
- The head of the steps is taken before that of the final observations, so that every episode that
  ended before the newest step has one that is known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format.layout import CONTEXT_ROWS, FINALS, ArraySpec
from mmreplay.ids import LANE_SHIFT, Array
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import Given, LaneDocument, read_lane
from mmreplay.storage.state_page import (
    BASE,
    COMMITTED,
    EPISODES_BEFORE,
    SESSION,
    TAIL_START,
    CheckpointFile,
    State,
    check_rows,
)
from mmreplay.system import locks, platform
from mmreplay.system.held_directories import AnyPath, at, check_there

_ATTEMPTS = 50
_IDLE_ATTEMPTS = 5
_PATIENCE_S = 0.02
_NO_SESSION = -1  # no word of the page ever has it

Stamp = tuple[int, int]


def file_stamp(path: AnyPath) -> Stamp:
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
    in a state page that is not trusted. `stamp` was taken before the lane's zarr.json was read. If
    it `mends`, a damaged state page does not count.
    """

    mends = False

    def __init__(
        self, path: AnyPath, specs: Mapping[str, ArraySpec], lane: AnyPath, stamp: Stamp
    ) -> None:
        self.path, self.specs = path, dict(specs)
        self._lane, self._stamp = lane, stamp
        self.base = self.head = self.untrusted = 0
        self.is_live = self.is_closed = False
        self.tails: dict[str, Array] = {}
        self._state: State | None = None
        self._session = self._tail_start = 0

    def load_closed(self, base: int, head: int) -> None:
        """Take a log of a closed lane."""
        self.base, self.head, self._tail_start, self.is_closed = base, head, head, True

    def load_open(self, uuid: str, capacity: int | None, *, trust: bool) -> bool:
        """Take a log that was not closed; False if it was opened or closed meanwhile.

        Without `trust` it is read as of its last flush, whatever its state page says.
        """
        live, state = self.path / ".live", None
        damage = (FileNotFoundError, CorruptStoreError) if self.mends else ()
        try:
            # The state first: the session that it shows must be the one that it shows when all
            # else is mapped, or the tails may be those of another.
            with contextlib.suppress(*damage):
                state = State(live / "state", writable=False)
            session = _NO_SESSION if state is None else state.words[SESSION]
            checkpoint = CheckpointFile(live / "checkpoint", uuid)
            best = checkpoint.best
            tails = {
                name: chunk_files.map_tail(self.path, spec)
                for name, spec in self.specs.items()
                if not spec.is_raw
            }
        except (FileNotFoundError, NotADirectoryError):
            return False  # being closed, opened or recovered at this moment
        except CorruptStoreError:
            if file_stamp(self._lane) != self._stamp:
                return False  # closed since, and opened again: a tail has its name before its size
            raise
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            raise CorruptStoreError(f"{live}: may not be read: {error.strerror}") from error
        self._state, self._session = state, session
        is_ahead = self.mends and state is not None and bool(state.ahead_of(checkpoint))
        self.is_live = trust and state is not None and state.trusted(best) and not is_ahead
        # Of a tail that was not trusted after its half was sealed nothing is needed: the row after
        # the head, which may be asked for, is in the shard as well.
        self.tails = tails if self.is_live or best.tail_start <= best.head else {}
        if self.is_live and state is not None:
            self.base = state.words[BASE]  # before the head, which moves on
            self._tail_start = state.words[TAIL_START]
            self._reach(state.words[COMMITTED])
        else:  # the rules of recovery, in memory only
            self.base, self.head, self._tail_start = best.base, best.head, best.tail_start
        self.untrusted = 0 if self.is_live or state is None else state.rows_beyond(best.head)
        check_rows(live, self.base, self.head, capacity)
        return state is None or (self.in_session() and state.is_in_place())

    def _reach(self, head: int) -> None:
        """Take a new head: what is read from here on is read after it."""
        self.head = head
        if platform.barrier is not None:
            platform.barrier()

    @property
    def session(self) -> int:
        """The session that was loaded; 0 in a closed lane."""
        return self._session

    def in_session(self) -> bool:
        """Whether the session that was loaded goes on."""
        return self._state is None or self._state.words[SESSION] == self._session

    def poll(self) -> bool:
        """Take the newest head of a live log; False if its session is over: it must be loaded."""
        if self._state is None:
            return True
        words = self._state.words
        if words[SESSION] != self._session:
            return False
        if self.is_live:
            head = words[COMMITTED]
            if head != self.head:
                self._reach(head)
                if not self.in_session():  # it may be the head of the next one
                    return False
            self.base = words[BASE]
        return True

    def has_moved(self, head: int) -> bool:
        """Whether there are more than `head` rows by now, or its session is over."""
        if platform.barrier is not None:
            platform.barrier()
        if not self.is_live or self._state is None:
            return False
        return self._state.words[COMMITTED] != head or not self.in_session()

    def begun_before(self, uuid: str) -> tuple[int, int]:
        """(row, episodes that began below it), of one moment, of a log that is not closed."""
        pair = (0, 0)
        if self.is_live and self._state is not None:
            pair = self._state.words[BASE], self._state.words[EPISODES_BEFORE]
        try:
            best = CheckpointFile(self.path / ".live" / "checkpoint", uuid).best
        except FileNotFoundError as error:  # it is being closed
            raise EvictedError(str(self.path)) from error
        # The words change one after the other, after the checkpoint that has both.
        return max(pair, (best.base, best.before))

    def leave_session(self) -> None:
        """Let `poll` say of a log that is not closed that it must be loaded again."""
        self._session = _NO_SESSION

    def is_in_place(self) -> bool:
        """Whether the path still holds what was loaded: not once it was reopened or repaired."""
        if self._state is not None:
            state = self._state
            return state.is_in_place() and (self.is_live or state.has_session_of_path())
        return self._stamp == file_stamp(self._lane)

    def check_in_place(self) -> None:
        """See `chunk_files.LaneFiles`."""
        if not self.is_in_place():
            raise EvictedError(str(self.path))

    def replaced(self) -> bool:
        """Whether the lane's zarr.json or the state is another than the one that was loaded."""
        return not self.poll() or not self.is_in_place() or file_stamp(self._lane) != self._stamp

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


class Entries:
    """A log of steps as columns read it: entry t * n + e is what step t gave environment e.

    `has_axis`: whether its arrays have an axis of environments; `pending` rows past the head may be
    read.
    """

    def __init__(self, log: LogReader, n: int, *, has_axis: bool, pending: int = 0) -> None:
        self._log, self._n, self._pending = log, n, pending
        self.path = log.path
        self.specs, self.tails = log.specs, log.tails
        if has_axis:
            self.specs = {path: spec.entries(n) for path, spec in log.specs.items()}
            self.tails = {
                path: rows.reshape(-1, *rows.shape[2:]) for path, rows in log.tails.items()
            }

    @property
    def base(self) -> int:
        """The oldest entry kept."""
        return self._log.base * self._n

    @property
    def head(self) -> int:
        """The entry after the last one that may be read."""
        head = self._log.head
        return (head + self._pending) * self._n if head else 0

    @property
    def is_live(self) -> bool:
        """Whether entries may still be appended."""
        return self._log.is_live

    def tail_start(self) -> int:
        """The first entry that is in the tail now."""
        return self._log.tail_start() * self._n

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there and holds entries below `stop`."""
        return self._log.missing(path, -(-stop // self._n))

    def check_in_place(self) -> None:
        """See `chunk_files.LaneFiles`."""
        self._log.check_in_place()


class LaneReader:
    """A lane, read-only; its document may be `given`. One that `mends` opens what is sound of it.

    `extras` as for `lane_metadata.read_lane`.

    Raises StoreNotFoundError, FormatError or CorruptStoreError as docs/format.md says.

    Attributes:
        number: its index in the store.
        environments: how many step together; None where arrays have no axis for them, so `n` is 1.
        entries: its steps as columns read them, one row for each environment of each.
        frames: the same for frames, with the pending row of a lane that is not closed.
    """

    document: LaneDocument
    metadata: dict[str, Any]
    schema: Schema
    environments: int | None
    n: int
    rows: LogReader
    finals: LogReader
    is_closed: bool

    def __init__(
        self,
        path: AnyPath,
        number: int = 0,
        given: Given = None,
        *,
        extras: Collection[str] | None = None,
        mends: bool = False,
    ) -> None:
        self.path, self.number = path, number
        self._given, self._extras, self._mends = given, extras, mends
        self._load()
        n, has_axis = self.n, self.environments is not None
        self.entries = Entries(self.rows, n, has_axis=has_axis)
        pending = 0 if self.is_closed else 1
        self.frames = Entries(self.rows, n, has_axis=has_axis, pending=pending)

    def _load(self) -> None:
        n_idle = 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                # Without a lock, no writer is opening or closing it: there is nothing to wait for.
                n_idle = 0 if locks.is_locked(self.path) else n_idle + 1
                if n_idle > _IDLE_ATTEMPTS:
                    break
                time.sleep(_PATIENCE_S)
            stamp = file_stamp(self.path)
            try:
                self.document = self._given or read_lane(self.path, extras=self._extras)
                is_loaded = self._load_logs(stamp)
                if is_loaded:
                    self._check_head()
            except EvictedError:
                continue  # it was closed or opened meanwhile
            except (FormatError, CorruptStoreError):
                if file_stamp(self.path) == stamp:
                    raise
                continue  # another store has the path by now, or none
            if is_loaded and file_stamp(self.path) == stamp and self.in_session():
                return
        raise CorruptStoreError(
            f"{self.path}: neither closed nor live: expected .live and {FINALS}/.live, each with "
            f"state, checkpoint and tails; found no whole set of them"
        )

    def _load_logs(self, stamp: Stamp) -> bool:
        """Take both logs; False if they changed hands meanwhile."""
        path, document = self.path, self.document
        own = self.metadata = document.metadata
        self.schema, self.environments, self.n = document.schema, document.environments, document.n
        self.rows = LogReader(path, document.rows, path, stamp)
        self.finals = LogReader(path / FINALS, document.finals, path, stamp)
        self.is_closed = own["closed"]
        if self.is_closed:
            for name, found in zip(("rows", "finals"), document.lengths, strict=True):
                if found < own[name]:
                    raise FormatError(
                        f"{path}: the root says {own[name]:,} {name}, the arrays {found:,}"
                    )
            self.rows.load_closed(max(own["first"] - CONTEXT_ROWS, 0), own["rows"])
            self.finals.load_closed(own["first_final"], own["finals"])
            return True
        uuid, capacity = own["uuid"], own["capacity"]
        self.rows.mends = self.finals.mends = self._mends
        if not self.rows.load_open(uuid, capacity, trust=True):
            return False
        if not self.finals.load_open(uuid, capacity, trust=self.rows.is_live):
            return False
        if self.rows.is_live and not self.finals.is_live:
            # The newest steps may have ended episodes whose final observations are lost.
            return self.rows.load_open(uuid, capacity, trust=False)
        return True

    def _check_head(self) -> None:
        """Check that the newest row has a file, before anything is made for rows."""
        if self.head * self.n >= 1 << LANE_SHIFT:
            raise CorruptStoreError(
                f"{self.path}: expected fewer than 2**{LANE_SHIFT} transitions, found "
                f"{self.head:,} rows of {self.n:,} environments"
            )
        if self.head and not self._mends:
            chunk_files.check_last(self.rows, self.rows.specs["step"], self.head)

    @property
    def base(self) -> int:
        """The oldest row kept."""
        return self.rows.base

    @property
    def head(self) -> int:
        """Rows committed."""
        return self.rows.head

    @property
    def is_live(self) -> bool:
        """Whether rows may still be appended."""
        return self.rows.is_live

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """(base, head) of the rows, and of the finals."""
        rows, finals = self.rows, self.finals
        return rows.base, rows.head, finals.base, finals.head

    def begun_before(self) -> tuple[int, int]:
        """A row that is kept, and how many episodes of the lane began below it."""
        if self.is_closed:
            return self.rows.base, self.metadata["episodes_before"]
        return self.rows.begun_before(self.metadata["uuid"])

    def poll(self) -> bool:
        """Take the newest heads of a live lane; False if a session is over: it must be loaded."""
        return self.rows.poll() and self.finals.poll()

    def in_session(self) -> bool:
        """Whether the sessions that were loaded go on."""
        return self.is_closed or (self.rows.in_session() and self.finals.in_session())

    def is_in_place(self) -> bool:
        """Whether what stands at the path is still what was loaded."""
        return self.rows.is_in_place() and self.finals.is_in_place()

    def replaced(self) -> bool:
        """Whether the zarr.json or a state is another than the one that was loaded."""
        return self.rows.replaced() or self.finals.replaced()


def lane_state(path: AnyPath, *, closed: bool) -> str:
    """``live`` while a writer is at work; else what zarr.json says: ``closed``, or ``crashed``."""
    if locks.is_locked(path):
        return "live"
    return "closed" if closed else "crashed"


def store_state(states: Iterable[str]) -> str:
    """The first of live, crashed and closed that any lane is in, else ``unknown``."""
    present = set(states)
    return next((state for state in ("live", "crashed", "closed") if state in present), "unknown")
