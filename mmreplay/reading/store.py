"""A store, read-only: one lane or many as one; arrays by row, transitions, trajectories.

Invariant: everything is read through `LiveLanes`, so an answer is of one moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import EPISODE_DTYPE, Index
from mmreplay.errors import InvalidIdError, MmreplayError, SchemaError
from mmreplay.ids import Ids, environments
from mmreplay.pictures import even, strip_png
from mmreplay.reading import info
from mmreplay.reading.column_views import ColumnView, LaneView, RowColumns
from mmreplay.reading.episode_columns import with_columns
from mmreplay.reading.episode_table import arrow_table
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.trajectories import Trajectory
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import Given, declared_extras
from mmreplay.system import user_paths
from mmreplay.system.held_directories import AnyPath


class Store(RowColumns):
    """A store opened for reading; made by `mmreplay.open`.

    Takes no lock and writes nothing, whether the store is closed, live or left by a crash. A
    context manager. Safe to use from several threads. A pickle of it holds its paths; loading it
    opens them again, with the rows that are there then. A store of one lane has its columns, too.

    Attributes:
        path: its directory; of several stores loaded as one, the first one's.
        paths: the directories of all of them, in the order of their lanes.
        schema: what a row holds.
        live: the lanes as they are now, for the modules that sample.
    """

    def __init__(
        self,
        roots: Sequence[AnyPath],
        known: Sequence[Path] = (),
        *,
        padding: str | None = None,
        columns: Collection[str] | None = None,
        given: Given = None,
    ) -> None:
        self.live = LiveLanes(roots, known, columns, given)
        self.paths = tuple(Path(str(root)) for root in self.live.roots)
        self.path, self.schema = self.paths[0], self.live.schema
        if unknown := sorted({*(columns or ())} - self.schema.extra_fields.keys()):
            raise SchemaError(
                f"{self.path}: columns: expected extra columns of this store, which has "
                f"{sorted(declared_extras(roots[0])) or 'none'}; found {unknown!r:.200}"
            )
        self.padding: str = padding or self.live.readers[0].metadata["padding"]

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: the lanes are in it so that ids mean the same there."""
        self.live.check_open()
        return {
            "roots": self.paths,
            "known": tuple(Path(str(lane)) for lane in self.live.paths),
            "padding": self.padding,
            "columns": [*self.schema.extra_fields],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def refresh(self) -> Self:
        """Take the newest rows of a live store; notice new lanes, and that it was opened again.

        `len`, `ids` and sampling do the first by themselves, and the others within a second.
        """
        self.live.refresh()
        return self

    def close(self) -> None:
        """Let go of all maps; a second call does nothing."""
        self.live.close()

    @property
    def index(self) -> Index:
        """The trajectory boundaries."""
        return self.live.index

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self.live.look(lambda index: index.n_transitions)

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending: int64 (len(self),)."""
        return self.live.look(lambda index: index.ids())

    def transitions(
        self,
        ids: npt.ArrayLike,
        stack: int | EllipsisType | None = ...,
        n_step: int = 1,
        gamma: float = 0.99,
        padding: str | None = None,
        stack_axis: int = 0,
        out: Batch | None = None,
    ) -> Batch:
        """The transitions with these ids, in `out` if given; the settings are as for `load`.

        `ids` are (B,) integers, lane << 40 | row, or lane << 40 | row * N + environment.

        Raises:
            InvalidIdError: an id that is not a transition; the message names it.
            SchemaError: a setting out of its range.
        """
        k, keys = self.schema.stacks(stack)
        settings = Settings(k, n_step, gamma, padding or self.padding, stack_axis, stacked=keys)
        return self.live.gather(self.live.valid_ids(ids), self.live.gatherer(settings), out)

    @property
    def lanes(self) -> tuple[LaneView, ...]:
        """Each lane by itself."""
        return tuple(LaneView(self.live, number) for number in range(len(self.live.readers)))

    def _column(self, path: str) -> ColumnView:
        n_lanes = len(self.live.readers)
        if n_lanes != 1:
            raise SchemaError(
                f"{self.path}: this store has {n_lanes} lanes, each with rows of its own: use "
                f"store.lanes[i]"
            )
        return ColumnView(self.live, 0, path)

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        """Whole retained episodes in the order of lanes and of first steps: see `EPISODE_DTYPE`.

        After these columns come the fields of episodes; texts are `numpy.str_`. The running ones
        of a live lane have both flags False. Episodes without steps do not count.
        """
        return self.live.episodes()

    def episodes_table(self) -> Any:
        """The episodes as a `pyarrow.Table`, for DuckDB, Polars and the like.

        Columns: id of the first step, lane, env (counted over all lanes), length, return,
        terminated, truncated, started (a timestamp in UTC; null if not known), and the other fields
        of episodes: texts as strings, those with a shape as lists of a fixed length.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        return arrow_table(self.episodes_by_environment())

    def episodes_by_environment(self) -> npt.NDArray[np.void]:
        """As `episodes`, and ``env``: the environment, counted over all lanes."""
        table, widths = self.episodes, [reader.n for reader in self.live.readers]
        return with_columns(table, {"env": environments(table["id"], widths)})

    def checked_fields(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of fields of episodes; SchemaError if there is no such field."""
        given = [names] if isinstance(names, str) else [*names]
        if unknown := [name for name in given if name not in self.live.fields]:
            raise SchemaError(
                f"{self.path}: episode: expected names among the fields of episodes, "
                f"{sorted(self.live.fields) or 'none'}; found {unknown!r:.200}"
            )
        return tuple(dict.fromkeys(given))

    def trajectory(self, number: int) -> Trajectory:
        """One whole episode, by its index in `episodes`; a negative one counts from the end.

        Raises:
            IndexError: there are not as many.
            SchemaError: not a whole number.
        """
        return self.numbered_trajectory(number, lambda: self.live.contents(returns=False).episodes)

    def numbered_trajectory(
        self, number: int, table: Callable[[], npt.NDArray[np.void]]
    ) -> Trajectory:
        """One episode whole, by its index in a table of this store's; see `trajectory`."""
        number, live = whole_number("trajectory", number, None), self.live

        def read() -> tuple[JoinedLanes, Trajectory]:
            uuids, episodes = live.uuids, table()
            if not -len(episodes) <= number < len(episodes):
                raise IndexError(f"trajectory {number}: there are {len(episodes)} whole episodes")
            first, length, _, done, cut = episodes[number].tolist()[:5]
            whole = live.lazy_trajectory(uuids, first, length, done, cut)
            try:
                out = whole.read()
            except (InvalidIdError, SchemaError) as error:  # the numbers are others by now
                raise EvictedError(str(self.path)) from error
            return live.follow(), out

        return live.retrying(read)

    def info(self) -> dict[str, Any]:
        """What is in it: the dict that ``mmreplay info --json`` prints; see docs/commands.md."""
        return info.describe(self.live, self.padding)

    def endings(self, episodes: npt.NDArray[np.void]) -> npt.NDArray[np.str_]:
        """How each of some episodes ended, as `info` counts them.

        Args:
            episodes: (n,) as `episodes` gives them, or those of a dataset of this store.

        Returns:
            (n,) of ``terminated``, ``truncated`` and ``open``: still running. An episode in which
            a writer died was cut off there, or is terminated if a life was lost with its last step.

        Raises:
            SchemaError: these are not episodes, but their numbers, for example.
        """
        names = getattr(getattr(episodes, "dtype", None), "names", None) or ()
        if not {*names}.issuperset(EPISODE_DTYPE.names or ()):
            raise SchemaError(
                f"episodes: expected some of store.episodes, such as store.episodes[:8]; found "
                f"{episodes!r:.80}"
            )
        return info.endings(self.live, episodes)

    def zarr(self) -> Any:
        """The same store as a read-only zarr group, for zarr's own interface.

        Raises:
            SchemaError: several stores, which are not one group.
        """
        if len(self.paths) > 1:
            raise SchemaError(
                f"zarr: expected one store, found {len(self.paths)} loaded as one, {self.path} the "
                f"first of them; open each: [mmreplay.open(path).zarr() for path in store.paths]"
            )
        import zarr  # noqa: PLC0415 (slow to import, and needed by few)

        return zarr.open_group(self.path, mode="r", zarr_format=3, use_consolidated=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        n_lanes, n = len(self.live.readers), self.index.n_transitions
        return f"<mmreplay.Store {listed(self.paths)} lanes={n_lanes} transitions={n}>"

    def _repr_png_(self) -> bytes | None:
        """Frames from the first transition to the last; None if they cannot be read."""
        try:
            gatherer = self.live.gatherer(Settings(stack=None))
            batch = self.live.gather(lambda index: index.at(even(index.n_transitions)), gatherer)
        except MmreplayError:  # a notebook would show a traceback beside the line
            return None
        return strip_png(batch.observation)


def listed(paths: Sequence[Path]) -> str:
    """The first three paths, and how many more there are."""
    rest = f" and {len(paths[3:]):,} more" if paths[3:] else ""
    return ", ".join(map(str, paths[:3])) + rest


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading.

    Args:
        path: its directory.

    Raises:
        StoreNotFoundError: there is no store.
        FormatError, CorruptStoreError: this version cannot read it, or it is damaged.
        SchemaError: `path` is not a path.
    """
    return Store([user_paths.absolute_path(path)])
