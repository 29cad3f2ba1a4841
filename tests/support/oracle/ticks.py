"""A model of environments that step together as indices and gatherers see it, in memory.

Invariant: what a capacity has taken is poisoned, so that whoever reads it is found out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support.oracle.vectors import VectorModel

from mmreplay.episode_index import RowIndex
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT

__all__ = ["PartsColumn", "Rows", "TicksOnDisk"]

Array = npt.NDArray[Any]
ROW_MASK = (1 << LANE_SHIFT) - 1
POISON = 1 << 50
NAMES = ("frames", "actions", "rewards", "non_terminals")


class TicksOnDisk:
    """The columns of a model as it is now: a `TickSource`, and `columns` for a gatherer."""

    def __init__(self, model: VectorModel) -> None:
        self.width = model.width
        ticks, starts = model.columns("ticks"), model.columns("starts")
        named = [one.number for tick in model.ticks[model.base :] for one in tick.values()]
        self.starts = low, _ = min(named, default=len(model.episodes)), len(model.episodes)
        self.count, self.episode, self.flags = (
            _poisoned(ticks[name], model.base) for name in ("count", "episode", "ends")
        )
        self.tick, self.env = (_poisoned(starts[name], low) for name in ("tick", "env"))
        parts = {name: [_poisoned(ticks[name], model.base)] for name in NAMES}
        parts["frames"].append(_poisoned(starts["frames"], low))
        self.columns = {name: PartsColumn(one, ticks[name].dtype) for name, one in parts.items()}

    def counts(self, start: int, stop: int) -> Array:
        _check(np.array([start, stop - 1]), self.count)
        return self.count[start:stop]

    def episodes(self, cells: Array) -> Array:
        return _taken(self.episode, cells)

    def numbers(self, tick: int) -> Array:
        return self.episodes(np.arange(tick * self.width, (tick + 1) * self.width))

    def ends(self, cells: Array) -> Array:
        return _taken(self.flags, cells)

    def ended(self, start: int, stop: int) -> Array:
        _check(np.array([start, stop - 1]) * self.width, self.flags)
        return self.flags.reshape(-1, self.width)[start:stop]

    def start_ticks(self, numbers: Array) -> Array:
        return _taken(self.tick, self._known(numbers))

    def start_envs(self, numbers: Array) -> Array:
        return _taken(self.env, self._known(numbers))

    def _known(self, numbers: Array) -> Array:
        for number in numbers.ravel().tolist():
            if not self.starts[0] <= number < self.starts[1]:
                raise CorruptStoreError(f"lane: {number} is none of the starts; `mmreplay verify`")
        return numbers


def _poisoned(rows: Array, low: int) -> Array:
    """The same, flat, and worthless below row `low`."""
    out = rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)
    out[:low] = POISON
    return out.ravel()


def _check(places: Array, array: Array) -> None:
    if places.size and not (places.min() >= 0 and places.max() < len(array)):
        raise AssertionError(f"read outside of {len(array)} rows: {places}")


def _taken(array: Array, places: Array) -> Array:
    _check(places, array)
    return array[places]


class PartsColumn:
    """A column in memory: rows of part 0, of part 1, and so on, each of them a number."""

    row_shape = ()

    def __init__(self, parts: list[Array], dtype: npt.DTypeLike) -> None:
        self.parts, self.dtype = parts, np.dtype(dtype)

    def take(self, ids: Array, out: Array | None = None) -> Array:
        found = np.empty(ids.shape, self.dtype) if out is None else out
        for number in np.unique(ids >> LANE_SHIFT).tolist():
            here = ids >> LANE_SHIFT == number
            values = _taken(self.parts[number], ids[here] & ROW_MASK)
            assert not (values == POISON).any()
            found[here] = values
        return found


class Rows:
    """The same experience in lanes of one environment each, in an index of rows.

    What can be sampled is the same, by the capacity of each lane.
    """

    def __init__(self, model: VectorModel) -> None:
        self.index = RowIndex(model.width)
        rows = model.rows(model.ids())
        for env, lane in enumerate(model.lanes.lanes):
            n_kept, head = int((rows >> LANE_SHIFT == env).sum()), len(lane.rows)
            starts = np.array([one.row for one in model.episodes if one.env == env], np.int64)
            # Of a lane of which nothing can be sampled any more only the newest row is left.
            base = 0 if n_kept or not head else head - 1
            self.index.load(env, base, head, starts[starts >= base], n_kept or None)
        self.columns = {}
        for name in NAMES:
            columns = [lane.column(name) for lane in model.lanes.lanes]
            self.columns[name] = PartsColumn(columns, columns[0].dtype)
