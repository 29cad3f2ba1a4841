"""The lanes of a store as they are now, while writers go on, close and come back.

Invariant: what was read across a change of session is read again; an answer is of one moment.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import Index
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    InvalidIdError,
    MmreplayError,
    SchemaError,
)
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading.frame_chunks import FrameChunks, KeptFrames
from mmreplay.reading.joined_lanes import AnyColumn, Contents, JoinedLanes
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.lookup import LateRebuilder, Lookup, Read, Rebuilder
from mmreplay.reading.trajectories import LazyTrajectory
from mmreplay.schema import Schema, as_array
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import Given, declared_extras, lane_paths
from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.system.forks import after_fork_in_child
from mmreplay.system.held_directories import AnyPath

T = TypeVar("T")

_ATTEMPTS = 100
_LOOK_S = 1.0


class LiveLanes:
    """The lanes of one or several stores as one, with the newest rows; safe for several threads.

    `roots` are the stores' directories, `path` the first of them, for messages; `paths` are those
    of the lanes, by their numbers. The document of a store's only lane may be `given`.
    """

    def __init__(
        self,
        roots: Sequence[AnyPath],
        known: Sequence[AnyPath] = (),
        extras: Collection[str] | None = None,
        given: Given = None,
    ) -> None:
        """Open all lanes of the stores; those of `known` have the first numbers, in this order.

        `extras` are the names of the extra columns to read; None for those that are there now.
        """
        self.path, self.roots = roots[0], tuple(roots)
        self.paths = [*known]
        self._add_new_lanes()
        if extras is None and any(root not in self.paths for root in self.roots):
            # While a column is added, some lanes have it before their store does.
            extras = {name for root in self.roots for name in declared_extras(root)}
        self._extras = extras
        self._lock = threading.RLock()
        self._closed = False
        self._next_look = time.monotonic() + _LOOK_S
        self._joined = self._open(given)
        self.schema: Schema = self.readers[0].schema
        self._extras = [*self.schema.extra_fields]  # also if others are added
        _FOLLOWING.add(self)

    # ------------------------------------------------------------ following the writers

    def refresh(self) -> None:
        """Take the newest rows; notice new lanes, and lanes that were opened again."""
        with self._lock:
            self.check_open()
            self._add_new_lanes()
            if len(self.paths) > len(self.readers) or any(one.replaced() for one in self.readers):
                self._reload()
            else:
                self._follow()

    def _add_new_lanes(self) -> None:
        """Put them at the end: the lanes that are known keep their numbers, and so do their ids."""
        found = [lane for root in self.roots for lane in lane_paths(root)]
        self.paths += [path for path in found if path not in self.paths]

    def follow(self) -> JoinedLanes:
        """The lanes with their newest rows."""
        with self._lock:
            return self._follow()

    def _follow(self) -> JoinedLanes:
        """As `follow`. The caller holds the lock."""
        if self._closed:
            self.check_open()
        for _ in range(_ATTEMPTS):
            try:
                joined = self._joined
                if joined.follow() and (time.monotonic() < self._next_look or not self._moved()):
                    return joined
            except EvictedError:  # files went while they were looked up: they are not needed now
                if self._joined.is_ahead():
                    continue
            break
        self._reload()  # which forgets where the oldest episode began
        return self._joined

    def _moved(self) -> bool:
        """Whether a lane was added, opened again or repaired; looked up once a second."""
        self._next_look = time.monotonic() + _LOOK_S
        with contextlib.suppress(MmreplayError):  # removed: the next opening reports it
            if any(root not in self.paths for root in self.roots):
                self._add_new_lanes()
        # Counted, as a lane that could not be opened the first time is tried again.
        return len(self.paths) > len(self.readers) or not all(
            reader.is_in_place() for reader in self.readers
        )

    def _open(self, given: Given = None) -> JoinedLanes:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(EvictedError):
                return JoinedLanes(self.paths, self._extras, given)
        raise self._restless()

    def _reload(self) -> None:
        joined = self._open()
        joined.report_exchanges(self._joined)
        self._joined = joined

    def _restless(self) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self.path}: the store changed {_ATTEMPTS} times while it was being read"
        )

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the locks, halfway."""
        if not self._lock.acquire(blocking=False):
            for reader in self._joined.readers:
                reader.rows.leave_session()
        self._lock = threading.RLock()
        self._joined.after_fork_in_child()

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._closed:
            raise ClosedError(f"{self.path}: this store was closed; open it again to read")

    def close(self) -> None:
        """Let go of all maps; a second call does so if the first one was interrupted."""
        with self._lock:
            self._closed = True
            self._joined.close()

    # ------------------------------------------------------------ what is there

    @property
    def index(self) -> Index:
        """The trajectory boundaries."""
        return self._joined.index

    @property
    def columns(self) -> Mapping[str, AnyColumn]:
        """Every column over all lanes, by path."""
        self.check_open()
        return self._joined.columns

    @property
    def fields(self) -> Mapping[str, EpisodeField]:
        """The fields of episodes that any lane has."""
        return self._joined.fields

    @property
    def frame_chunks(self) -> FrameChunks:
        """How frames are stored together; in `look`, those of the index."""
        return self._joined.frame_chunks

    @property
    def readers(self) -> Sequence[LaneReader]:
        """The lanes' files."""
        return self._joined.readers

    @property
    def uuids(self) -> tuple[str, ...]:
        """The lanes' uuids; another store at the path has others."""
        return self._joined.uuids

    def check_same(self, uuids: tuple[str, ...], whose: str, then: str) -> None:
        """Raise SchemaError if the lanes do not begin with those of these uuids.

        `whose` and `then` are for the message: whose ids are used, and what to do. Call it where
        the ids are used, in `look` or in what `gather` draws with.
        """
        now = self.uuids
        if uuids is now or uuids == now[: len(uuids)]:  # new lanes come last
            return
        raise SchemaError(
            f"{self.path}: expected the store {whose}, found another at this path, as after a "
            f"repair or a pack: ids may mean other transitions there; {then}"
        )

    def look(self, read: Callable[[Index], T]) -> T:
        """What `read` finds in the index as it is now, under the lock."""
        for _ in range(_ATTEMPTS):
            with self._lock:
                lanes = self._follow()
                try:
                    return read(lanes.index)
                except EvictedError:
                    self.check_open()
                    self._reload()
        raise self._restless()

    def retrying(self, read: Callable[[], tuple[JoinedLanes, T]]) -> T:
        """Repeat a read as long as rows or sessions go away during it.

        `read` returns the lanes that it read from, and what it read.
        """
        for _ in range(_ATTEMPTS):
            known, n_remaps = self._joined, self._joined.remaps.count
            try:
                lanes, out = read()
            except EvictedError:
                pass
            except IndexError:
                if self._joined is known and known.remaps.count == n_remaps:
                    raise
                continue
            else:
                if not lanes.followed or lanes.same_session():
                    if lanes is known and lanes.remaps.count == n_remaps:
                        return out
                    continue  # another thread may have let go of rows that were read
                known = lanes
            self._leave(known)
        raise self._restless()

    def _leave(self, known: JoinedLanes) -> None:
        """Open the lanes again, unless another thread did since these."""
        with self._lock:
            self.check_open()
            if self._joined is known:
                self._reload()

    # ------------------------------------------------------------ transitions by id

    @property
    def evicts(self) -> bool:
        """Whether a lane evicts rows, or has."""
        return any(r.metadata["capacity"] is not None or r.base for r in self.readers)

    def gatherer(self, settings: Settings) -> TransitionGatherer:
        """A gatherer of transitions; raises SchemaError if too few rows are kept for the stack."""
        settings.check_evicting(evicts=self.evicts)
        return TransitionGatherer(self.schema, settings)

    def gather(
        self,
        draw: Callable[..., Ids],
        gatherer: Rebuilder[Read],
        out: Read | None = None,
        kept: KeptFrames | None = None,
        numbers: tuple[Any, ...] = (),
    ) -> Read:
        """What `draw(index, *numbers)` chooses from the index as it is now, rebuilt by `gatherer`.

        It is drawn and read again as long as rows or sessions go away meanwhile.
        """
        for _ in range(_ATTEMPTS):
            lanes = self._joined
            n_remaps = lanes.remaps.count
            try:
                with self._lock:
                    lanes = self._follow()
                    n_remaps = lanes.remaps.count
                    places = gatherer.locate(lanes.index, draw(lanes.index, *numbers))
                columns = lanes.columns if kept is None else kept.columns(lanes.columns)
                read = gatherer.fetch(columns, places, out)
            except EvictedError:
                self._leave(lanes)
            except IndexError:
                if lanes.remaps.count == n_remaps:
                    raise
            else:
                if lanes.kept_all(n_remaps, places.pending):
                    return read
        raise self._restless()

    def locate(
        self,
        draw: Callable[..., Ids],
        gatherer: LateRebuilder[Read],
        kept: KeptFrames | None = None,
        numbers: tuple[Any, ...] = (),
    ) -> Lookup[Read]:
        """The first half of `gather`: what `draw` chooses from the index as it is now."""

        def looked_up(index: Index) -> Lookup[Read]:
            lanes = self._joined  # whose index it is: `look` holds the lock
            places = gatherer.locate(index, draw(index, *numbers))
            columns = lanes.columns if kept is None else kept.columns(lanes.columns)
            return Lookup(lanes, columns, gatherer, places, index.version, lanes.remaps.count)

        return self.look(looked_up)

    def renewed(self, lookup: Lookup[Read]) -> Lookup[Read] | None:
        """The same with the lanes as they are now; see `Lookup.renewed`."""
        with self._lock:
            return lookup.renewed(self._follow())

    def request_frames(self, ids: Ids) -> None:
        """Ask for the frames of these steps that are on the disk only, before they are gathered."""
        for path in self.schema.frame_paths.values():
            column = self.columns[path]
            if isinstance(column, RawColumn):
                column.request(ids)

    def release_frames(self) -> None:
        """Let the frames that were read no longer count as memory of the process."""
        for path in self.schema.frame_paths.values():
            column = self.columns[path]
            if isinstance(column, RawColumn | ShardColumn):
                column.release()

    def valid_ids(self, ids: npt.ArrayLike) -> Callable[[Index], Ids]:
        """What draws these ids; raises InvalidIdError for one that is not a transition."""
        wanted = self.checked_ids(ids)

        def valid(index: Index) -> Ids:
            wrong = index.invalid(wanted)
            if wrong.any():
                raise self._joined.invalid_id(self.path, int(wanted[wrong][0]))
            return wanted

        return valid

    def checked_ids(self, ids: npt.ArrayLike) -> Ids:
        """Ids as the user gave them, as int64 (B,); raises SchemaError if they are not integers."""
        wanted = as_array(ids, "ids")
        if wanted.dtype == np.uint64 and (large := wanted[wanted >= 1 << 63]).size:
            raise self._joined.invalid_id(self.path, int(large.flat[0]))
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise SchemaError(f"ids: expected integers (B,), found {wanted.dtype} {wanted.shape}")
        return wanted.astype(np.int64)

    # ------------------------------------------------------------ rows of one lane

    def rows(self, lane: int) -> int:
        """Rows of a lane, the newest included."""
        return self.follow().heads[lane]

    def read_rows(self, lane: int, path: str, rows: Ids) -> Array:
        """Rows of one lane by number, as stored; zeros below base. IndexError: not as many."""

        def read() -> tuple[JoinedLanes, Array]:
            with self._lock:
                lanes = self._follow()
                n = lanes.readers[lane].n
                base, _, head = (bound // n for bound in lanes.index.window(lane))
            if rows.size and rows.max() >= head:
                raise IndexError(f"{self.path}: row {rows.max()}: lane {lane} has {head:,} rows")
            kept = (rows >= base).nonzero()[0]
            found = lanes.read(lane, path, np.ascontiguousarray(rows[kept]))
            out = np.zeros((rows.size, *found.shape[1:]), found.dtype)
            out[kept] = found
            return lanes, out

        return self.retrying(read)

    # ------------------------------------------------------------ episodes

    def contents(self, *, returns: bool = True) -> Contents:
        """What is in the lanes; returns may be 0 without `returns`, which reads all rewards."""

        def read() -> tuple[JoinedLanes, Contents]:
            with self._lock:
                lanes = self._follow()
                return lanes, lanes.contents(returns=returns)

        return self.retrying(read)

    def episodes(self) -> npt.NDArray[np.void]:
        """The whole retained episodes, with their fields."""

        def read() -> tuple[JoinedLanes, npt.NDArray[np.void]]:
            with self._lock:
                lanes = self._follow()
                return lanes, lanes.episodes()

        return self.retrying(read)

    def stored_fields(self, firsts: Ids) -> dict[str, Any]:
        """See `JoinedLanes.stored_fields`."""

        def read() -> tuple[JoinedLanes, dict[str, Any]]:
            with self._lock:
                lanes = self._follow()
                return lanes, lanes.stored_fields(firsts)

        return self.retrying(read)

    def lazy_trajectories(self, draw: Callable[[Index], Ids]) -> list[LazyTrajectory]:
        """The whole episodes whose first rows `draw` chooses from the index as it is now."""

        def read() -> tuple[JoinedLanes, list[LazyTrajectory]]:
            with self._lock:
                lanes = self._follow()
                firsts = draw(lanes.index)
                lengths, terminated, truncated = lanes.endings(firsts)
            each = zip(*(x.tolist() for x in (firsts, lengths, terminated, truncated)), strict=True)
            return lanes, [self.lazy_trajectory(lanes.uuids, *one) for one in each]

        return self.retrying(read)

    def lazy_trajectory(
        self,
        uuids: tuple[str, ...],
        first: int,
        length: int,
        terminated: bool = False,
        truncated: bool = False,
    ) -> LazyTrajectory:
        """One episode, by the id of its first step in the lanes with these uuids."""

        def rows(path: str, n_rows: int) -> Array:
            return self.episode_rows([path], first, 0, n_rows, uuids)[0]

        stride = self.readers[first >> LANE_SHIFT].n
        fields = tuple(self._joined.fields)
        return LazyTrajectory(
            self.schema, rows, first, length, stride, terminated, truncated, fields
        )

    def episode_rows(
        self,
        paths: Sequence[str],
        first: int,
        start: int,
        stop: int,
        uuids: tuple[str, ...] | None = None,
        out: Array | None = None,
    ) -> list[Array]:
        """Rows [start, stop) of columns in the episode that begins with this id; in `out` of one.

        Raises InvalidIdError if it was evicted, SchemaError if the lanes do not have these uuids.
        """
        steps, frames = np.arange(start, stop), self.schema.frame_paths.values()

        def read() -> tuple[JoinedLanes, list[Array]]:
            for _ in range(_ATTEMPTS):
                with self._lock:
                    lanes = self._with_episode(first, uuids)
                    around = lanes.around(first)
                found = []
                for path in paths:
                    ids = (around.frames if path in frames else around.at)(steps)[0]
                    found.append(lanes.columns[path].take(ids, out=out))
                with self._lock:
                    self._with_episode(first, uuids)  # it may have gone while it was read
                if lanes.is_settled(around.pending):
                    return lanes, found
            raise self._restless()

        return self.retrying(read)

    def _with_episode(self, first: int, uuids: tuple[str, ...] | None) -> JoinedLanes:
        """The lanes as they are now, with the whole episode; the caller holds the lock."""
        lane, lanes = first >> LANE_SHIFT, self._follow()
        if uuids is not None:
            self.check_same(uuids, "of this trajectory", "draw trajectories again")
        oldest = lanes.index.window(lane)[1]
        if oldest > first & ROW_MASK:
            raise InvalidIdError(
                f"{self.path}: the trajectory with id {first} ({lanes.place(first)}) was evicted "
                f"before it was read: the oldest row is {oldest // lanes.readers[lane].n:,} by "
                f"now; read trajectories soon after they are drawn, or give the buffer a larger "
                f"capacity"
            )
        return lanes


_FOLLOWING: weakref.WeakSet[LiveLanes] = weakref.WeakSet()
after_fork_in_child(_FOLLOWING, LiveLanes.after_fork_in_child)
