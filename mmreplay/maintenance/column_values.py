"""Values of a column that is added to a store, from an array, a function or pairs, in blocks.

Invariant: a block is (n,) valid ids and as many values, whose shape and dtype are not checked yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import imported
from mmreplay.errors import SchemaError
from mmreplay.format.layout import EPISODES
from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory
from mmreplay.schema import as_array

Source = Any
"""An array by `Store.ids`, a function of a trajectory or its name, or pairs of ids and values."""
Blocks = Iterator[tuple[Ids, Array]]

_BLOCK_BYTES, _BLOCK_ROWS = 16 << 20, 1 << 14


def blocks_of(store: Store, source: Source) -> Blocks:
    """The values of a source; raises SchemaError if it is none, or InvalidIdError."""
    if isinstance(source, str):
        source = imported("source", source, "source(trajectory)", "an array, an iterator, ")
    if callable(source):
        return _of_trajectories(store, source)
    if hasattr(source, "__array__") or isinstance(source, (list, tuple)):
        return _of_array(store, source)
    if isinstance(source, Iterable):
        return _of_pairs(store, source)
    raise SchemaError(
        f"source: expected an array of {len(store):,} values, a function of a trajectory, or an "
        f"iterator over (ids, values); found {source!r:.80}"
    )


def _of_array(store: Store, source: Any) -> Blocks:
    # What can be sliced is not read whole, such as a memory map or a zarr array.
    array, ids = source if hasattr(source, "shape") else as_array(source, "source"), store.ids
    if not array.shape or array.shape[0] != ids.size:
        raise SchemaError(
            f"source: expected a value for each of {ids.size:,} transitions, in the order of "
            f"store.ids; found shape {tuple(array.shape)}"
        )
    size = max(_BLOCK_BYTES * ids.size // max(getattr(array, "nbytes", 0), 1), 1)
    for start in range(0, ids.size, size):
        yield ids[start : start + size], as_array(array[start : start + size], "source")


def _of_trajectories(store: Store, function: Callable[[LazyTrajectory], Any]) -> Blocks:
    shape: tuple[int, ...] | None = None
    for episodes in _blocks_of_episodes(store):
        out = []
        for number, length in enumerate(episodes.lengths):
            values = as_array(function(episodes.trajectory(number)), "source")
            shape = values.shape[1:] if shape is None else shape
            if values.shape != (length, *shape):
                raise SchemaError(
                    f"source: expected a value for each of {length:,} steps of the trajectory with "
                    f"id {episodes.table[number][0]}, {(length, *shape)}; found {values.shape}"
                )
            out.append(values)
        yield episodes.ids, np.concatenate(out)


def _blocks_of_episodes(store: Store) -> Iterator[_Episodes]:
    """The whole episodes, so many together that reading each costs little; at least one."""
    columns, frames = store.schema.columns(), store.schema.frame_paths.values()
    widest = max(one.row_bytes for path, one in columns.items() if path not in frames)
    most = max(min(_BLOCK_ROWS, _BLOCK_BYTES // widest), 1)
    table = store.live.contents(returns=False).episodes
    table = table[["id", "length", "terminated", "truncated"]]
    ends, first, done = table["length"].cumsum(), 0, 0
    while first < len(table):
        stop = max(int(ends.searchsorted(done + most, "right")), first + 1)
        yield _Episodes(store, table[first:stop])
        first, done = stop, int(ends[stop - 1])


class _Episodes:
    """Whole episodes, whose columns are read together when the first of them is asked for one."""

    def __init__(self, store: Store, table: npt.NDArray[np.void]) -> None:
        self._store, self._columns = store, dict[str, Array]()
        self.table: list[tuple[Any, ...]] = table.tolist()
        self.lengths: list[int] = table["length"].tolist()
        widths = np.array([reader.n for reader in store.live.readers])
        strides = widths[table["id"] >> LANE_SHIFT]
        self._strides: list[int] = strides.tolist()
        starts = table["length"].cumsum() - table["length"]
        self._starts: list[int] = starts.tolist()
        # Step k of an episode has the id first + k * stride.
        steps = np.arange(sum(self.lengths)) - starts.repeat(table["length"])
        self.ids: Ids = table["id"].repeat(table["length"])
        self.ids += steps * strides.repeat(table["length"])

    def trajectory(self, number: int) -> LazyTrajectory:
        """One of them."""
        first, length, terminated, truncated = self.table[number]
        read, stride = functools.partial(self._read, number), self._strides[number]
        schema, fields = self._store.schema, self._store.live.fields
        return LazyTrajectory(schema, read, first, length, stride, terminated, truncated, fields)

    def _read(self, number: int, path: str, n_rows: int) -> Array:
        column, start = self._columns.get(path), self._starts[number]
        if column is None:
            live = self._store.live
            if path in self._store.schema.frame_paths.values():
                return live.episode_rows([path], self.table[number][0], 0, n_rows)[0]
            if path.startswith(f"{EPISODES}/"):
                return live.columns[path].take(self.ids[start : start + 1])
            column = self._columns[path] = live.columns[path].take(self.ids)
        return column[start : start + n_rows]


def _of_pairs(store: Store, source: Iterable[Any]) -> Blocks:
    for pair in source:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 (a pair)
            raise SchemaError(f"source: expected pairs of ids and values, found {pair!r:.80}")
        ids, values = as_array(pair[0], "ids"), as_array(pair[1], "values")
        if values.shape[: ids.ndim] != ids.shape:
            raise SchemaError(
                f"source: expected a value for each of the ids, {ids.shape}; found {values.shape}"
            )
        wanted = store.live.checked_ids(ids.reshape(-1))
        values = values.reshape(wanted.size, *values.shape[ids.ndim :])
        kept = np.flatnonzero(wanted != -1)
        if kept.size < wanted.size:
            wanted, values = wanted[kept], values[kept]
        yield store.live.look(store.live.valid_ids(wanted)), values
