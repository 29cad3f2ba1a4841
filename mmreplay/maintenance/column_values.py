"""Values of a column that is added to a store, from an array, a function or pairs, in blocks.

Invariant: a block is (n,) valid ids and as many values, whose shape and dtype are not checked yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import imported
from mmreplay.errors import SchemaError
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
        return _joined(_of_trajectories(store, source))
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
    live = store.live
    episodes = live.contents(returns=False).episodes[["id", "length", "terminated", "truncated"]]
    shape: tuple[int, ...] | None = None
    for first, length, terminated, truncated in episodes.tolist():
        stride = live.readers[first >> LANE_SHIFT].n
        ids = np.arange(first, first + length * stride, stride)
        read = functools.partial(_rows, store, ids)
        trajectory = LazyTrajectory(
            store.schema, read, first, length, stride, terminated, truncated
        )
        values = as_array(function(trajectory), "source")
        shape = values.shape[1:] if shape is None else shape
        if values.shape != (length, *shape):
            raise SchemaError(
                f"source: expected a value for each of {length:,} steps of the trajectory with id "
                f"{first}, {(length, *shape)}; found {values.shape}"
            )
        yield ids, values


def _rows(store: Store, ids: Ids, path: str, n_rows: int) -> Array:
    """Rows of a trajectory with these ids; nobody writes the store, so nothing can go meanwhile."""
    live = store.live
    if path in store.schema.frame_paths.values():
        return live.episode_rows([path], int(ids[0]), 0, n_rows)[0]
    return live.columns[path].take(ids)


def _joined(blocks: Blocks) -> Blocks:
    """The same values in larger blocks: storing many costs little more than storing a few."""
    parts, n = list[tuple[Ids, Array]](), 0
    for ids, values in blocks:
        parts.append((ids, values))
        n += ids.size
        if n >= _BLOCK_ROWS:
            yield _concatenated(parts)
            parts, n = [], 0
    if parts:
        yield _concatenated(parts)


def _concatenated(parts: Sequence[tuple[Ids, Array]]) -> tuple[Ids, Array]:
    ids, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    return ids, values


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
