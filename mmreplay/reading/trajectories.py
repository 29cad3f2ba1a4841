"""Episodes as sequences of steps: read whole, or column by column when they are first asked for.

Invariant: `trajectory[i]` and `trajectory[a:b:c]` are what `list(trajectory)` gives for the same
index, and whatever was read once does not change.
"""

from __future__ import annotations

import abc
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import shapes_of
from mmreplay.format.layout import episode_path
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.pictures import strip_png
from mmreplay.schema import FRAME, Schema

Observation = Array | dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of an episode.

    Attributes:
        observation: (*frame) as stored, one frame, or a dict of these.
        action: (*action).
        reward: a scalar.
        next_observation: (*frame), or a dict of these.
        non_terminal: whether the world went on.
        id: of the transition.
        extras: the declared extra columns.
    """

    observation: Observation
    action: Array
    reward: np.floating[Any]
    next_observation: Observation
    non_terminal: bool
    id: int
    extras: dict[str, Array]


class _Steps(abc.ABC):
    """An episode as a sequence of `Step`; slices are lists."""

    __slots__ = ()

    @abc.abstractmethod
    def __len__(self) -> int:
        """Steps."""

    @abc.abstractmethod
    def read(self) -> Trajectory:
        """All columns, read."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Step | list[Step]:
        """A step, or a list of them; reads what has not been read.

        Raises:
            IndexError: there are not as many.
            InvalidIdError: its rows were evicted before they were read.
            SchemaError: another store stands at the path by now.
        """
        length = len(self)
        if isinstance(index, slice):
            whole = self.read()
            return [_step(whole, number) for number in range(length)[index]]
        number = operator.index(index)
        if not -length <= number < length:
            raise IndexError(f"step {number}: the trajectory has {length} steps")
        return _step(self.read(), number % length)

    def __iter__(self) -> Iterator[Step]:
        whole = self.read()
        return (_step(whole, number) for number in range(len(whole)))


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trajectory(_Steps):
    """One episode of T steps; a sequence of `Step`, whose slices are lists.

    Attributes:
        observation: (T + 1, *frame) as stored, or a dict of these; the last is the final one.
        action: (T, *action).
        reward: (T,).
        non_terminal: (T,) bool.
        terminated: it ended in a terminal state.
        truncated: it was cut off.
        ids: (T,) int64, the transitions' ids.
        extras: the declared extra columns, (T, ...) each.
        episode: the fields of the episode by name: texts, numbers and arrays.
    """

    observation: Observation
    action: Array
    reward: Array
    non_terminal: npt.NDArray[np.bool_]
    terminated: bool
    truncated: bool
    ids: Ids
    extras: dict[str, Array]
    episode: dict[str, Any]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return shapes_of(self)

    def _repr_png_(self) -> bytes | None:
        return strip_png(self.observation)

    def read(self) -> Trajectory:
        """Itself."""
        return self


class LazyTrajectory(_Steps):
    """A `Trajectory` whose columns are read when they are first asked for, and then kept.

    Length, ids and how it ended are known immediately. `read` gives the first rows of a column, by
    its path and their number; `first` is the id of the first step, `stride` the difference of two
    successive ids.
    """

    def __init__(
        self,
        schema: Schema,
        read: Callable[[str, int], Array],
        first: int,
        length: int,
        stride: int,
        terminated: bool,
        truncated: bool,
        fields: Iterable[str] = (),
    ) -> None:
        self._schema, self._read, self._fields = schema, read, fields
        self._first, self._length, self._stride = first, length, stride
        self.terminated, self.truncated = terminated, truncated
        self._columns: dict[str, Array] = {}

    def _column(self, path: str, n_rows: int) -> Array:
        column = self._columns.get(path)
        if column is None:
            column = self._columns.setdefault(path, self._read(path, n_rows))
        return column

    @property
    def observation(self) -> Observation:
        """(T + 1, *frame) as stored, or a dict of these; the last is the final one.

        Raises:
            InvalidIdError: of this and all columns: its rows were evicted before they were read.
            SchemaError: of this and all columns: another store stands at the path by now.
        """
        paths, n_rows = self._schema.frame_paths, self._length + 1
        frames = {name: self._column(path, n_rows) for name, path in paths.items()}
        return frames if self._schema.is_dict else frames[FRAME]

    @property
    def action(self) -> Array:
        """(T, *action)."""
        return self._column("actions", self._length)

    @property
    def reward(self) -> Array:
        """(T,)."""
        return self._column("rewards", self._length)

    @property
    def non_terminal(self) -> npt.NDArray[np.bool_]:
        """(T,) bool."""
        return np.asarray(self._column("non_terminals", self._length) != 0)

    @property
    def ids(self) -> Ids:
        """(T,) int64, the transitions' ids."""
        return self._first + np.arange(self._length, dtype=np.int64) * self._stride

    @property
    def extras(self) -> dict[str, Array]:
        """The declared extra columns, (T, ...) each."""
        paths = self._schema.extra_paths
        return {name: self._column(path, self._length) for name, path in paths.items()}

    @property
    def episode(self) -> dict[str, Any]:
        """The fields of the episode by name: texts, numbers and arrays."""
        return {name: self._column(episode_path(name), 1)[0] for name in self._fields}

    def read(self) -> Trajectory:
        """All columns; raises as `observation`."""
        names = (field.name for field in dataclasses.fields(Trajectory))
        return Trajectory(**{name: getattr(self, name) for name in names})

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        lane, row = self._first >> LANE_SHIFT, self._first & ROW_MASK
        place = f"row={row // self._stride}"
        if self._stride > 1:
            place += f" environment={row % self._stride}"
        return (
            f"<mmreplay.LazyTrajectory lane={lane} {place} steps={self._length} "
            f"read={sorted(self._columns)}>"
        )


def _step(whole: Trajectory, number: int) -> Step:
    def observed(index: int) -> Observation:
        frames = whole.observation
        if isinstance(frames, dict):
            return {name: rows[index] for name, rows in frames.items()}
        frame: Array = frames[index]
        return frame

    return Step(
        observed(number),
        whole.action[number],
        whole.reward[number],
        observed(number + 1),
        bool(whole.non_terminal[number]),
        int(whole.ids[number]),
        {name: column[number] for name, column in whole.extras.items()},
    )
