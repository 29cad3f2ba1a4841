"""A store, read-only: one lane or many as one; arrays by row id, transitions, trajectories.

Invariant: everything is read through `Following.retrying` or under its lock, so an answer is of one
moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import Gatherer
from mmreplay.episode_index import Index
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading.column_views import ColumnView, LaneView
from mmreplay.reading.joined_lanes import Joined
from mmreplay.reading.live_lanes import Following
from mmreplay.reading.trajectories import LazyTrajectory, Trajectory
from mmreplay.schema import FRAME, Schema, as_array
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.system import user_paths

__all__ = ["Store", "open_store"]

Places = TypeVar("Places")
Read = TypeVar("Read")


class Rebuilder(Protocol[Places, Read]):
    """What makes something to train with of ids: a `Gatherer`, or one of sequences."""

    def locate(self, index: Index, ids: Ids, /) -> Places:
        """Look up in the index what is needed of it."""

    def fetch(self, columns: Mapping[str, Any], places: Places, out: Read | None, /) -> Read:
        """Read what lies there."""


class Store(Following):
    """A store opened for reading; made by `mmreplay.open`.

    Takes no lock and writes nothing, whether the store is closed, live or left by a crash. A
    context manager. Safe to use from several threads. A pickle of it holds its paths; who loads
    that opens them again, with the rows that are there then.

    Attributes:
        path: its directory; of several stores loaded as one, the first one's.
        paths: the directories of all of them, in the order of their lanes.
        schema: what a row holds.
        index: the trajectory boundaries.
    """

    def __init__(
        self, roots: Sequence[Path], known: Sequence[Path] = (), *, padding: str | None = None
    ) -> None:
        """Open the stores at `roots` as one; see `open_store`."""
        super().__init__(roots, known)
        first = self.readers[0]
        self.schema: Schema = first.schema
        self.padding: str = padding or first.metadata["padding"]

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: the lanes are in it so that ids mean the same there."""
        self._guard()
        return {"roots": self.paths, "known": tuple(self._paths), "padding": self.padding}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the stores again."""
        self.__init__(**state)  # type: ignore[misc]

    # ------------------------------------------------------------ transitions

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        with self._lock:
            return self._follow().index.n_transitions

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending: int64 (len(self),)."""
        with self._lock:
            return self._follow().index.ids()

    def transitions(
        self,
        ids: npt.ArrayLike,
        stack: int | None = 4,
        n_step: int = 1,
        gamma: float = 0.99,
        padding: str | None = None,
        stack_axis: int = 0,
        out: Batch | None = None,
    ) -> Batch:
        """The transitions with these ids.

        Args:
            ids: (B,) integers, lane << 40 | row.
            stack: frames an observation; None drops the axis.
            n_step: most steps of a return.
            gamma: discount a step.
            padding: ``reset`` or ``zero``; None takes the store's.
            stack_axis: 0 or -1.
            out: a batch to fill again.

        Raises:
            InvalidIdError: an id that is no valid transition, named.
            SchemaError: a setting out of its range.
        """
        settings = Settings(stack, n_step, gamma, padding or self.padding, stack_axis)
        return self.gather_ids(ids, self.gatherer(settings), out)

    def gatherer(self, settings: Settings) -> Gatherer:
        """What rebuilds this store's transitions by these settings.

        Raises:
            SchemaError: this store does not keep enough rows for them.
        """
        evicts = any(r.metadata["capacity"] is not None or r.base for r in self.readers)
        settings.check_evicting(evicts=evicts)
        return Gatherer(self.schema, settings)

    def checked_ids(self, ids: npt.ArrayLike) -> Ids:
        """Ids as the user gave them: int64 (B,).

        Raises:
            SchemaError: no integers (B,).
        """
        wanted = as_array(ids, "ids")
        if wanted.dtype == np.uint64 and (large := wanted[wanted >= 1 << 63]).size:
            raise self._invalid(int(large.flat[0]))
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise SchemaError(f"ids: expected integers (B,), found {wanted.dtype} {wanted.shape}")
        return wanted.astype(np.int64)

    def gather_ids(
        self, ids: npt.ArrayLike, gatherer: Rebuilder[Places, Read], out: Read | None = None
    ) -> Read:
        """The transitions with these ids, each checked."""
        wanted = self.checked_ids(ids)

        def valid(index: Index) -> Ids:
            wrong = index.invalid(wanted)
            if wrong.any():
                raise self._invalid(int(wanted[wrong][0]))
            return wanted

        return self.gather(valid, gatherer, out)

    def gather(
        self,
        draw: Callable[[Index], Ids],
        gatherer: Rebuilder[Places, Read],
        out: Read | None = None,
    ) -> Read:
        """What `draw` chooses from the index as it is now, rebuilt by `gatherer`."""

        def read() -> tuple[Joined, Read]:
            with self._lock:
                view = self._follow()
                places = gatherer.locate(view.index, draw(view.index))
            return view, gatherer.fetch(view.columns, places, out)

        return self.retrying(read)

    def _invalid(self, wrong: int) -> InvalidIdError:
        lane, row = wrong >> LANE_SHIFT, wrong & ROW_MASK
        if not 0 <= lane < len(self.readers):
            return InvalidIdError(
                f"{self.path}: id {wrong}: there is no lane {lane}, of {len(self.readers)}"
            )
        _, first, head = self.index.window(lane)
        return InvalidIdError(
            f"{self.path}: id {wrong} (lane {lane}, row {row}) is no transition: the rows are "
            f"[{first:,}, {head:,}), and the last row of an episode is none; see store.ids"
        )

    # ------------------------------------------------------------ rows

    def read_rows(self, lane: int, path: str, rows: Ids) -> Array:
        """Rows of one lane by number; zeros below base, the newest one as a final row."""

        def read() -> tuple[Joined, Array]:
            with self._lock:
                view = self._follow()
                base, _, head = view.index.window(lane)
                begun = view.index.resets(lane)
            column = view.columns[path]
            out = np.zeros((rows.size, *column.row_shape), column.dtype)
            kept = (rows >= base).nonzero()[0]
            ids = rows[kept] + (lane << LANE_SHIFT)
            out[kept] = column.take(np.ascontiguousarray(ids))
            newest = (rows == head - 1).nonzero()[0]
            if newest.size and not view.readers[lane].is_closed and not path.startswith("frames"):
                out[newest] = view.newest(lane, path, begun)
            return view, out

        return self.retrying(read)

    def rows_of(self, lane: int) -> int:
        """Rows of a lane, the newest included."""
        with self._lock:
            return self._follow().heads[lane]

    @property
    def lanes(self) -> tuple[LaneView, ...]:
        """Each lane by itself."""
        return tuple(self._lane(number) for number in range(len(self.readers)))

    def _lane(self, number: int) -> LaneView:
        reader = self.readers[number]

        def column(path: str) -> ColumnView:
            known = self.columns[path]
            return ColumnView(
                path,
                known.row_shape,
                known.dtype,
                lambda: self.rows_of(number),
                lambda rows: self.read_rows(number, path, rows),
            )

        def ids() -> Ids:
            every = self.ids
            return np.asarray(every[every >> LANE_SHIFT == number])

        return LaneView(
            reader.path,
            reader.metadata.get("name"),
            self.schema,
            {path: column(path) for path in self.columns},
            lambda: self.look(lambda index: index.window(number)),
            ids,
        )

    def _sole(self) -> LaneView:
        if len(self.readers) != 1:
            raise SchemaError(
                f"{self.path}: this store has {len(self.readers)} lanes; rows are numbered in "
                f"each by itself: use store.lanes[i]"
            )
        return self._lane(0)

    @property
    def frames(self) -> ColumnView | dict[str, ColumnView]:
        """Frames by row id, of a store of one lane."""
        return self._sole().frames

    @property
    def actions(self) -> ColumnView:
        """Actions by row id, of a store of one lane."""
        return self._sole().actions

    @property
    def rewards(self) -> ColumnView:
        """Rewards by row id, of a store of one lane."""
        return self._sole().rewards

    @property
    def non_terminals(self) -> ColumnView:
        """Non-terminal flags by row id, of a store of one lane."""
        return self._sole().non_terminals

    @property
    def resets(self) -> ColumnView:
        """Reset bits by row id, of a store of one lane."""
        return self._sole().resets

    @property
    def extras(self) -> dict[str, ColumnView]:
        """Extra columns by name, of a store of one lane."""
        return self._sole().extras

    # ------------------------------------------------------------ episodes

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        """Whole retained episodes in the order of lanes and rows: see `EPISODE_DTYPE`.

        The running one of a live lane is its last, with both flags False. An episode of no step
        is not counted.
        """

        def read() -> tuple[Joined, npt.NDArray[np.void]]:
            with self._lock:
                view = self._follow()
                found = [view.episodes(number) for number in range(len(view.readers))]
            return view, np.concatenate(found)

        return self.retrying(read)

    def trajectory(self, number: int) -> Trajectory:
        """One episode whole, by its place in `episodes`.

        Raises:
            IndexError: there are not as many.
        """

        def read() -> tuple[Joined, Trajectory]:
            episodes = self.episodes
            if not -len(episodes) <= number < len(episodes):
                raise IndexError(f"trajectory {number}: there are {len(episodes)} whole episodes")
            one = episodes[number]
            lane, row = int(one["id"]) >> LANE_SHIFT, int(one["id"]) & ROW_MASK
            out = self._trajectory(one, lane, np.arange(row, row + int(one["length"]) + 1))
            with self._lock:
                view = self._follow()
            if view.index.window(lane)[1] > row:
                raise EvictedError(str(self.path))  # in part, while it was read
            return view, out

        return self.retrying(read)

    def _trajectory(self, one: np.void, lane: int, rows: Ids) -> Trajectory:
        frames = {
            name: self.read_rows(lane, p, rows) for name, p in self.schema.frame_paths.items()
        }
        steps = rows[:-1]
        return Trajectory(
            frames if self.schema.is_dict else frames[FRAME],
            self.read_rows(lane, "actions", steps),
            self.read_rows(lane, "rewards", steps),
            self.read_rows(lane, "non_terminals", steps) != 0,
            bool(one["terminated"]),
            bool(one["truncated"]),
            steps + (lane << LANE_SHIFT),
            {name: self.read_rows(lane, p, steps) for name, p in self.schema.extra_paths.items()},
        )

    def lazy_trajectories(self, draw: Callable[[Index], Ids]) -> list[LazyTrajectory]:
        """The whole episodes whose first rows `draw` chooses from the index as it is now."""

        def read() -> tuple[Joined, list[LazyTrajectory]]:
            with self._lock:
                view = self._follow()
                firsts = draw(view.index)
                lengths, terminated, truncated = view.endings(firsts)
            each = zip(*(x.tolist() for x in (firsts, lengths, terminated, truncated)), strict=True)
            return view, [
                LazyTrajectory(self, first, length, terminated=flag, truncated=cut)
                for first, length, flag, cut in each
            ]

        return self.retrying(read)

    def episode_rows(self, path: str, first: int, stop: int) -> Array:
        """Rows of a column, by id, of an episode that was whole.

        Args:
            path: of the column.
            first: id of the episode's first row.
            stop: id of the row after the last one to read; all of them are committed.

        Raises:
            InvalidIdError: the episode is not whole any more.
        """

        def read() -> tuple[Joined, Array]:
            view = self._with_episode(first)
            out = view.columns[path].take(np.arange(first, stop))
            self._with_episode(first)  # it may have gone while it was read
            return view, out

        return self.retrying(read)

    def _with_episode(self, first: int) -> Joined:
        lane, row = first >> LANE_SHIFT, first & ROW_MASK
        with self._lock:
            view = self._follow()
            oldest = view.index.window(lane)[1]
        if oldest > row:
            raise InvalidIdError(
                f"{self.path}: the trajectory with id {first} (lane {lane}, row {row}) was evicted "
                f"before it was read: the oldest row is {oldest:,} by now; read trajectories soon "
                f"after they are drawn, or give the buffer a larger capacity"
            )
        return view

    # ------------------------------------------------------------ about it

    def info(self) -> dict[str, Any]:
        """What is in it: the dict that ``mmreplay info --json`` prints; see docs/api.md."""
        from mmreplay.reading.info import describe  # noqa: PLC0415 (stands below this module)

        return describe(self)

    def endings(self, episodes: npt.NDArray[np.void]) -> npt.NDArray[np.str_]:
        """How each of some episodes ended, as `info` counts them.

        Args:
            episodes: (n,) as `episodes` gives them.

        Returns:
            (n,) of ``terminated``, ``truncated`` and ``open``: still running. Where a writer died
            in an episode, it was cut off.
        """
        from mmreplay.reading.info import endings  # noqa: PLC0415 (stands below this module)

        return endings(self, episodes)

    def zarr(self) -> Any:
        """The same store as a read-only zarr group, for whoever wants zarr's own interface.

        Raises:
            SchemaError: several stores, which are no group together.
        """
        if len(self.paths) > 1:
            raise SchemaError(
                f"zarr: expected one store, found {len(self.paths)} loaded as one, {self.path} the "
                f"first of them; open each: [mmreplay.open(path).zarr() for path in store.paths]"
            )
        import zarr  # noqa: PLC0415 (slow to import, and needed by few)

        return zarr.open_group(self.path, mode="r", zarr_format=3, use_consolidated=False)

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path, lanes and transitions."""
        return (
            f"<mmreplay.Store {self.path} lanes={len(self.readers)} "
            f"transitions={self.index.n_transitions}>"
        )


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading.

    Args:
        path: its directory.

    Raises:
        StoreNotFoundError: there is none.
        FormatError, CorruptStoreError: it is none that this version reads, or not whole.
        SchemaError: what was given is no path.
    """
    return Store([user_paths.as_path(path).absolute()])
