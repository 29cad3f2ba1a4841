"""Goals from other rows of the episode: drawn in the index, shown as columns of the store.

Invariant: a relabelled sample is, byte for byte, what a store would give for it in which that goal
stands in every row of the episode, with the rewards (and, if asked for, the ends) that follow from
it. So nothing of stacks and returns is made here: the gatherer reads columns that say otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch, Column
from mmreplay.batches.transitions import TransitionGatherer, TransitionSpans
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, Array, Ids

STRATEGIES = ("future", "final", "episode")

GoalFunction = Callable[[Array, Array, dict[str, Array]], npt.ArrayLike]
"""Called with (N, *goal) achieved, (N, *goal) desired and extras of (N, ...): one number a step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """The paths of the columns, and the functions of rewards and ends."""

    achieved: str
    desired: str
    extras: dict[str, str]
    mark: str
    reward: GoalFunction
    terminal: GoalFunction | None


class Relabelling:
    """The gatherer of one batch: draws goals in the index, reads columns that hold them."""

    def __init__(
        self,
        gatherer: TransitionGatherer,
        task: Task,
        strategy: str,
        some: npt.NDArray[np.bool_],
        draws: npt.NDArray[np.float64],
    ) -> None:
        """Take the draws, so that a repeated read gets the same goals.

        `some` (B,) tells which samples to relabel; `draws` (B,) in [0, 1) how far along its range
        of rows each goal lies.
        """
        self._gatherer, self._task, self._strategy = gatherer, task, strategy
        self._some, self._draws = some, draws
        self._goals = np.empty(0, np.int64)

    def locate(self, index: Index, ids: Ids) -> TransitionSpans:
        """Draw the goals' rows from the same state of the index as the spans."""
        position = index.locate(ids)
        stop = index.end(position, ids)
        start = stop - 1
        if self._strategy == "future":
            start = ids + 1
        elif self._strategy == "episode":
            start = np.maximum(index.begin(position), _oldest(index, ids))
        rows = start + (self._draws * (stop - start)).astype(np.int64)
        self._goals = np.where(self._some, rows, -1)
        return self._gatherer.locate(index, ids)

    def fetch(
        self, columns: Mapping[str, Column], spans: TransitionSpans, out: Batch | None = None
    ) -> Batch:
        """Read the transitions as if they had been recorded with these goals."""
        goals = _Goals(self._task, columns, self._goals)
        return self._gatherer.fetch(goals.columns(), spans, out)


def _oldest(index: Index, ids: Ids) -> Ids:
    """Ids of the oldest row that may be sampled in the lanes of some ids.

    Of those below it, more or fewer are still on disk, depending on when it was last flushed.
    """
    lanes, number = np.unique(ids >> LANE_SHIFT, return_inverse=True)
    firsts = [(lane << LANE_SHIFT) + index.window(lane)[1] for lane in lanes.tolist()]
    return np.array(firsts, np.int64)[number]


class _Goals:
    """The columns of a store in which some samples of one batch have other goals."""

    def __init__(self, task: Task, columns: Mapping[str, Column], rows: Ids) -> None:
        """Read the goals achieved in `rows` (B,), ids; -1 leaves a sample alone."""
        self._task, self._columns, self._rows = task, columns, rows
        self.some = (rows >= 0).nonzero()[0]
        self._values = columns[task.achieved].take(rows[self.some])
        self._known: tuple[Ids, tuple[Array, Array, dict[str, Array]]] | None = None

    def columns(self) -> dict[str, Column]:
        """All columns; axis 0 of the ids that they are asked for is the sample."""
        task, columns = self._task, self._columns
        out: dict[str, Column] = {**columns, task.mark: _Mark(self._rows)}
        if not self.some.size:
            return out
        out[task.desired] = _Replaced(columns[task.desired], self.some, self._desired)
        out["rewards"] = _Replaced(columns["rewards"], self.some, self._rewards)
        if task.terminal is not None:
            out["non_terminals"] = _Replaced(columns["non_terminals"], self.some, self._live)
        return out

    def _desired(self, ids: Ids) -> Array:
        """The goals, to be spread over the frames of each sample."""
        goals = self._values
        return goals.reshape(len(goals), *(1,) * (ids.ndim - 1), *goals.shape[1:])

    def _rewards(self, ids: Ids) -> Array:
        return self._computed("reward", self._task.reward, ids)

    def _live(self, ids: Ids) -> Array:
        ended = self._computed("terminal", self._task.terminal, ids)  # type: ignore[arg-type]
        return np.equal(ended, 0)

    def _computed(self, name: str, function: GoalFunction, ids: Ids) -> Array:
        """The results of a function for the steps at `ids`, in their shape."""
        if self._known is None or self._known[0] is not ids:  # both functions see the same window
            self._known = ids, self._steps(ids)
        size = ids[self.some].shape
        values = np.asarray(function(*self._known[1]))
        if values.shape != (np.prod(size),) or values.dtype.kind not in "biuf":
            raise SchemaError(
                f"{name}: expected numbers of shape ({np.prod(size)},) for goals of shape "
                f"{self._known[1][0].shape}, found {values.dtype} {values.shape}; it is called "
                f"once for many steps"
            )
        return values.reshape(size)

    def _steps(self, ids: Ids) -> tuple[Array, Array, dict[str, Array]]:
        """Achieved goals after the steps, desired ones, and extras: (N, ...) each."""
        wanted = ids[self.some]
        flat = wanted.ravel()
        return (
            self._columns[self._task.achieved].take(flat + 1),
            self._values.repeat(flat.size // len(wanted), axis=0),
            {name: self._columns[path].take(flat) for name, path in self._task.extras.items()},
        )


class _Replaced:
    """A column with other values for some samples."""

    def __init__(self, column: Column, some: Ids, values: Callable[[Ids], Array]) -> None:
        """`values` gives what the column holds for the samples `some`, from the ids of all."""
        self._column, self._some, self._values = column, some, values
        self.row_shape, self.dtype = column.row_shape, column.dtype

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id."""
        rows = self._column.take(ids, out)
        rows[self._some] = self._values(ids)
        return rows


class _Mark:
    """A column with the row that each sample's goal comes from."""

    row_shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype("int64")

    def __init__(self, rows: Ids) -> None:
        self._rows = rows

    def take(self, ids: Ids, out: Array | None = None) -> Array:  # noqa: ARG002 (as of any column)
        """The goals' rows, whatever `ids` are."""
        if out is None:
            return self._rows.copy()
        out[...] = self._rows
        return out
