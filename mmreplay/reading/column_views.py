"""Columns of one lane as arrays by row, and a lane as a set of them.

Invariant: what is indexed is what numpy would give for an array of all the lane's rows, read again
at every access, and copied.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.schema import FRAME, Schema


class ColumnView:
    """One column of one lane, indexed by row as a numpy array is; every read is a copy.

    A row is what one step gave: [row], or [row, env] in a lane made with an axis of environments.
    Rows below the base read as zeros.
    """

    def __init__(self, lanes: LiveLanes, lane: int, path: str) -> None:
        spec = lanes.readers[lane].rows.specs[path]
        self.dtype: np.dtype[Any] = spec.dtype
        self._row_shape = spec.row_shape
        self._lanes, self._lane, self._path = lanes, lane, path

    def _read(self, rows: Ids) -> Array:
        return self._lanes.read_rows(self._lane, self._path, rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, *row shape), or (rows, environments, *row shape)."""
        return (self._lanes.rows(self._lane), *self._row_shape)

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """As numpy's: numbers, slices, arrays, masks, ellipsis and tuples of these."""
        while True:
            lanes = self._lanes.follow()
            try:
                out = self._at(key)
            except IndexError:
                if self._lanes.follow() is lanes:
                    raise
            else:
                if self._lanes.follow() is lanes:  # else another store may have another length
                    return out

    def _at(self, key: Any) -> Any:
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            row = range(len(self))[int(first)]
            return self._read(np.array([row]))[(0, *rest)]
        if isinstance(first, slice):
            rows = range(len(self))[first]
            block = self._read(np.arange(rows.start, rows.stop, rows.step))
            return block[(slice(None), *rest)]
        if isinstance(first, (list, np.ndarray)):
            chosen = np.asarray(first)
            if chosen.dtype == np.bool_ and chosen.shape == (len(self),):
                chosen = chosen.nonzero()[0]
            if chosen.dtype.kind in "iu" and chosen.size:
                unique, inverse = np.unique(np.arange(len(self))[chosen], return_inverse=True)
                return self._read(unique)[(inverse.reshape(chosen.shape), *rest)]
        return self._read(np.arange(len(self)))[key]

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self[row]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """All rows; raises ValueError if a view of the store is asked for (``copy=False``)."""
        if copy is False:
            raise ValueError("rows of a store can only be copied; leave out copy=False")
        return np.asarray(self[:], dtype)

    def __repr__(self) -> str:
        return f"<{self._path} {self.shape} {self.dtype}>"


class RowColumns(abc.ABC):
    """The columns of one lane by name; indexed by [row], or by [row, env]."""

    schema: Schema

    @abc.abstractmethod
    def _column(self, path: str) -> ColumnView:
        """The column at a path."""

    @property
    def frames(self) -> ColumnView | dict[str, ColumnView]:
        """(rows, *frame) or (rows, N, *frame), before the steps; a dict for dict observations.

        The observation after an episode's last step is in `Store.trajectory`, and in the array
        ``finals/frames`` of the lane.
        """
        paths = self.schema.frame_paths
        if self.schema.is_dict:
            return {key: self._column(path) for key, path in paths.items()}
        return self._column(paths[FRAME])

    @property
    def actions(self) -> ColumnView:
        """(rows, *action), or (rows, N, *action)."""
        return self._column("actions")

    @property
    def rewards(self) -> ColumnView:
        """(rows,) or (rows, N), float32 or float64."""
        return self._column("rewards")

    @property
    def non_terminals(self) -> ColumnView:
        """(rows,) or (rows, N), uint8."""
        return self._column("non_terminals")

    @property
    def resets(self) -> ColumnView:
        """(rows,) or (rows, N), uint8: 1 where an episode begins with this step."""
        return self._column("resets")

    @property
    def ends(self) -> ColumnView:
        """(rows,) or (rows, N), uint8: 1 where an episode ends with this step.

        In the newest row of a live lane it may still change.
        """
        return self._column("ends")

    @property
    def step(self) -> ColumnView:
        """(rows,) or (rows, N), int64: the number of the step in its episode, from 1 on.

        0 where an environment has no step, as it was left out of the row.
        """
        return self._column("step")

    @property
    def extras(self) -> dict[str, ColumnView]:
        """Extra columns by name."""
        return {name: self._column(path) for name, path in self.schema.extra_paths.items()}


class LaneView(RowColumns):
    """One lane of a store: its columns by [row], or by [row, env].

    Attributes:
        path: its directory.
        name: as given to ``create(lane=...)``; None if it has only a number.
        environments: how many it has.
    """

    def __init__(self, lanes: LiveLanes, number: int) -> None:
        reader = lanes.readers[number]
        self.path = Path(str(reader.path))
        self.name: str | None = reader.metadata.get("name")
        self._lanes, self._number = lanes, number
        self.environments: int = reader.n
        self.schema = lanes.schema

    def _column(self, path: str) -> ColumnView:
        return ColumnView(self._lanes, self._number, path)

    def __repr__(self) -> str:
        return f"<mmreplay.LaneView {self.path} environments={self.environments}>"

    def _window(self) -> tuple[int, int, int]:
        base, first, head = self._lanes.look(lambda index: index.window(self._number))
        n = self.environments
        return base // n, first // n, head // n

    @property
    def rows(self) -> int:
        """Rows committed."""
        return self._window()[2]

    @property
    def first(self) -> int:
        """The oldest row that may be sampled."""
        return self._window()[1]

    @property
    def base(self) -> int:
        """The oldest row kept."""
        return self._window()[0]

    @property
    def ids(self) -> Ids:
        """The lane's valid transition ids, ascending."""
        ids = self._lanes.look(lambda index: index.ids())
        return np.asarray(ids[ids >> LANE_SHIFT == self._number])

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._lanes.look(lambda index: index.n_transitions_of(self._number))
