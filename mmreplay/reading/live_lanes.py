"""The lanes of a store as they are now, while writers go on, close and come back.

Invariant: what was read across a change of session is read again; an answer is of one moment.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from mmreplay.episode_index import Index
from mmreplay.errors import ClosedError, CorruptStoreError, SchemaError
from mmreplay.reading.joined_lanes import Joined
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import lane_paths
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.system.forks import after_fork_in_child

__all__ = ["Following"]

T = TypeVar("T")

_ATTEMPTS = 100
_LOOK_S = 1.0


class Following:
    """The lanes of one or several stores as one, with the newest rows; safe for several threads.

    Attributes:
        path: the first store's directory.
        paths: the directories of all of them.
        index: the trajectory boundaries.
    """

    def __init__(self, roots: Sequence[Path], known: Sequence[Path] = ()) -> None:
        """Open all lanes of the stores at `roots`.

        Args:
            roots: the stores.
            known: lanes of theirs that have the first numbers, in this order.
        """
        self.path = roots[0]
        self.paths = tuple(roots)
        found = [lane for root in roots for lane in lane_paths(root)]
        self._paths = [*known, *(path for path in found if path not in known)]
        if len(roots) > 1:
            _check_distinct(self._paths)
        self._lock = threading.RLock()
        self._closed = False
        self._next_look = time.monotonic() + _LOOK_S
        self._reload()
        _FOLLOWING.add(self)

    def refresh(self) -> Self:
        """Take the newest rows of a live store; notice new lanes, and that it was opened again.

        `len`, `ids` and sampling do the first by themselves, and the last within a second.
        """
        with self._lock:
            self._guard()
            found = [lane for root in self.paths for lane in lane_paths(root)]
            # At the end: the lanes that are known keep their numbers, and so do their ids.
            fresh = [path for path in found if path not in self._paths]
            self._paths += fresh
            if fresh or any(reader.replaced() for reader in self._joined.readers):
                self._reload()
            else:
                self._follow()
        return self

    def _follow(self) -> Joined:
        """The view with the newest rows. The caller holds the lock."""
        self._guard()
        for _ in range(_ATTEMPTS):
            try:
                if self._joined.follow() and not self._moved():
                    return self._joined
            except EvictedError:  # files went while they were looked up: they are not needed now
                if self._joined.is_ahead():
                    continue
            break
        self._reload()  # which forgets where the oldest episode began
        return self._joined

    def _moved(self) -> bool:
        """Whether a closed lane was opened again, or a lane repaired; looked up once a second."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        return not all(reader.is_in_place() for reader in self._joined.readers)

    def _reload(self) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self._joined = Joined(self._paths)
            except EvictedError:
                continue
            return
        raise self._restless()

    def _restless(self) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self.path}: the store changed {_ATTEMPTS} times while it was being read"
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the locks."""
        # It may have been taking new rows, and have left index and columns halfway.
        if not self._lock.acquire(blocking=False):
            for reader in self._joined.readers:
                reader.leave_session()
        self._lock = threading.RLock()
        for column in self._joined.columns.values():
            column.after_fork_in_child()

    def _guard(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: this store was closed; open it again to read")

    def retrying(self, read: Callable[[], tuple[Joined, T]]) -> T:
        """Run a read again as long as rows or sessions go away under it.

        Args:
            read: returns what it read, and the view that it read from.

        Raises:
            CorruptStoreError: they keep going away.
        """
        for _ in range(_ATTEMPTS):
            known = self._joined
            try:
                view, out = read()
            except EvictedError:
                pass
            else:
                if view.same_session():
                    return out
                known = view
            with self._lock:
                self._guard()
                if self._joined is known:
                    self._reload()
        raise self._restless()

    @property
    def index(self) -> Index:
        """The trajectory boundaries."""
        return self._joined.index

    @property
    def columns(self) -> Mapping[str, RawColumn | ShardColumn]:
        """Every column over all lanes, by path."""
        self._guard()
        return self._joined.columns

    @property
    def readers(self) -> Sequence[LaneReader]:
        """The lanes' files; for `info` and `verify`."""
        return self._joined.readers

    def look(self, read: Callable[[Index], T]) -> T:
        """What `read` finds in the index as it is now; nobody changes it meanwhile."""
        with self._lock:
            return read(self._follow().index)

    def close(self) -> None:
        """Let go of all maps; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._joined.columns = {}


def _check_distinct(lanes: Sequence[Path]) -> None:
    """Refuse a lane that comes twice: its rows would be drawn twice as often, and without a word.

    Raises:
        SchemaError: naming the lane.
    """
    seen: dict[Path, Path] = {}
    for lane in lanes:
        real = lane.resolve()
        if real in seen:
            raise SchemaError(
                f"{lane}: loaded already as {seen[real]}; name each store once, and not one of "
                f"its lanes beside it"
            )
        seen[real] = lane


_FOLLOWING: weakref.WeakSet[Following] = weakref.WeakSet()
after_fork_in_child(_FOLLOWING, Following.after_fork_in_child)
