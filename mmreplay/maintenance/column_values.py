"""Values of a column that is added to a store, from an array, a function or pairs, in blocks.

Invariant: a block is (n,) valid ids and as many values, whose shape and dtype are not checked yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.reading.store import Store
from mmreplay.reading.trajectories import LazyTrajectory
from mmreplay.schema import as_array

Source = Any
"""An array in the order of `Store.ids`, a function of a trajectory, or pairs of ids and values."""
Blocks = Iterator[tuple[Ids, Array]]

_BLOCK_BYTES = 16 << 20


def blocks_of(store: Store, source: Source) -> Blocks:
    """The values of a source; raises SchemaError if it is none, or InvalidIdError."""
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
    live = store.live
    episodes = live.contents(returns=False).episodes
    for one in episodes[["id", "length", "terminated", "truncated"]].tolist():
        trajectory = live.lazy_trajectory(live.uuids, *one)
        yield trajectory.ids, as_array(function(trajectory), "source")


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
