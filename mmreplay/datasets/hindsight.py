"""`Hindsight`: samples with goals that their own episode reached.

Goals are drawn in the index and shown as columns of the store.

Invariants:
- The data alone determines which transitions are drawn, and their weights.
- A relabelled sample is, byte for byte, what a store would give in which that goal is in every row
  of the episode, with the rewards (and ends, if requested) that follow from it. So stacks and
  returns are not made here: the gatherer reads columns that were changed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_number, check_takes
from mmreplay.batches.batch import Batch, Column
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.datasets.around import Around
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.store_draws import Draw
from mmreplay.episode_index import Index, Span, Steps
from mmreplay.errors import SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.reading.store import Store
from mmreplay.sampling.draws import Windows
from mmreplay.schema import Field, Schema

STRATEGIES = ("future", "final", "episode")

_BY_STEP = "rewards", "non_terminals"
FIRST_OBSERVATION = -2
"""Marks a goal of the first observation of an episode: no step comes before it."""

GoalFunction = Callable[[Array, Array, dict[str, Array]], npt.ArrayLike]
"""Called with (N, *goal) achieved and desired, and extras of (N, ...): one number per step."""


class Hindsight(Around["Hindsight"]):
    """A dataset or buffer with goals that the episode reached in a share of its samples.

    Observations are dicts with an achieved and a desired goal, as in Gymnasium-Robotics. A
    relabelled sample's desired goal is the achieved goal of another observation of its episode, in
    each frame of both stacks, and each reward of its n-step window is computed again. What is
    stored does not change. The final observation of a running episode is the newest one; of an
    episode whose beginning was evicted, the observations after the remaining steps are used.

    Args:
        data: what to sample from; a prioritized buffer keeps its ids and weights.
        reward: ``reward(achieved_goal, desired_goal, info)``: (N, *goal), (N, *goal) and a dict of
            the declared extras of the same steps, (N, ...) each, to (N,) rewards; the achieved
            goal is the one after the step. ``env.unwrapped.compute_reward`` fits.
        strategy: where the goal comes from: ``future``, uniform over the observations after the
            transition, up to the final one; ``final``, the final one; ``episode``, uniform over all
            of them.
        probability: that a sample is relabelled, in [0, 1]; k / (k + 1) for k relabelled samples
            per recorded one.
        terminal: the same arguments to (N,) bools, for tasks that end in success: whether the step
            ends the episode. These flags replace the stored ones in relabelled samples. None keeps
            the stored ones.
        achieved_goal: key of the achieved goal in the observation.
        desired_goal: key of the desired goal.
        mark: name of the extra that says where goals come from: (B,) int64, the id of the step
            after which the goal was achieved, -2 for the episode's first observation, -1 for the
            recorded goal.

    Raises:
        SchemaError: observations without such goals, data of a class that overrides `sample`, or a
            setting out of its range.

    Attributes:
        data: as given.
        schema: of a batch: the store's, and the mark.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay: section 3.2, algorithm 1, and
        the strategies of section 4.5.
    """

    _lacks = (
        "goals are drawn for single transitions, by sample(), batches() and relabel(); use its "
        "`data`, which has the recorded goals"
    )
    data: Dataset
    schema: Schema

    def __init__(
        self,
        data: Dataset,
        reward: GoalFunction,
        strategy: str = "future",
        probability: float = 0.8,
        *,
        terminal: GoalFunction | None = None,
        achieved_goal: str = "achieved_goal",
        desired_goal: str = "desired_goal",
        mark: str = "hindsight",
    ) -> None:
        check_takes("reward", reward, "achieved_goal", "desired_goal", "info")
        if terminal is not None:
            check_takes("terminal", terminal, "achieved_goal", "desired_goal", "info")
        if strategy not in STRATEGIES:
            raise SchemaError(f"strategy: expected one of {STRATEGIES}, found {strategy!r}")
        check_number("probability", probability, 1)
        source: Any = data
        if not isinstance(source, Dataset) or type(source).sample is not Dataset.sample:
            raise SchemaError(
                f"data: expected what mmreplay.load returns, or a replay buffer, found {data!r}; "
                f"put Decorated and Mixture around Hindsight, and do not override sample()"
            )
        schema = data.store.schema
        _check_goals(data.store, achieved_goal, desired_goal)
        if mark in schema.extra_fields:
            raise SchemaError(
                f"{data.store.path}: there is an extra named {mark!r} already; give the mark of "
                f"relabelled samples another name with mark="
            )
        super().__init__(data)
        self.schema = dataclasses.replace(
            schema, extras={**schema.extras, mark: Field((), "int64")}
        )
        self._task = _Task(
            strategy,
            float(probability),
            schema.frame_paths[achieved_goal],
            schema.frame_paths[desired_goal],
            schema.extra_paths,
            self.schema.extra_paths[mark],
            reward,
            terminal,
        )
        self._gatherer = TransitionGatherer(self.schema, data.settings)

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        return self.data.read_ahead.next(
            self.store.live, self.generator, self._begin, (size, replace, group), out
        )

    def _begin(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        draw = self.data.begin_sample(generator, size, replace, group)
        return dataclasses.replace(draw, gatherer=self._relabelling(generator, size))

    def relabel(self, ids: npt.ArrayLike, out: Batch | None = None) -> Batch:
        """The transitions with these ids, (B,) integers, in `out` if given, with goals for some.

        Raises:
            InvalidIdError: an id that is not a valid transition, named.
        """
        relabelling = self._relabelling(self.generator, np.size(ids))
        return self.store.live.gather(self.store.live.valid_ids(ids), relabelling, out)

    def _batches(self, given: EpochArguments, windows: Windows | None) -> Iterator[Batch]:  # noqa: ARG002 (none)
        return self.data.read_batches(given, self._relabelling_by)

    def _relabelling(self, generator: np.random.Generator, size: int) -> _Relabelling:
        draws = generator.random((2, size))
        return _Relabelling(self._gatherer, self._task, lambda _: draws)

    def _relabelling_by(self, seed: list[int]) -> _Relabelling:
        """For a batch that loses what is evicted before it is read."""
        return _Relabelling(
            self._gatherer, self._task, lambda size: np.random.default_rng(seed).random((2, size))
        )

    def __repr__(self) -> str:
        return (
            f"<mmreplay.Hindsight {self._task.strategy} probability={self._task.probability:g} "
            f"of {self.data!r}>"
        )


def _check_goals(store: Store, achieved: str, desired: str) -> None:
    frames = store.schema.frames
    if not store.schema.is_dict or not {achieved, desired} <= frames.keys():
        raise SchemaError(
            f"{store.path}: expected dict observations with {achieved!r} and {desired!r}, found "
            f"{sorted(frames)}; name the goals' keys with achieved_goal= and desired_goal="
        )
    if not frames[achieved].same_data(frames[desired]):
        raise SchemaError(
            f"{store.path}: expected goals of one shape and dtype, found "
            f"{achieved!r}: {frames[achieved].dtype} {frames[achieved].shape}, "
            f"{desired!r}: {frames[desired].dtype} {frames[desired].shape}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """Which goals to draw, the paths of the columns, and the functions of rewards and ends."""

    strategy: str
    probability: float
    achieved: str
    desired: str
    extras: dict[str, str]
    mark: str
    reward: GoalFunction
    terminal: GoalFunction | None


class _Relabelling:
    """The gatherer of one batch: draws goals in the index, reads columns that hold them."""

    def __init__(
        self,
        gatherer: TransitionGatherer,
        task: _Task,
        draws: Callable[[int], npt.NDArray[np.float64]],
    ) -> None:
        self._gatherer, self._task = gatherer, task
        self._draws = draws  # (2, B) in [0, 1): whether to relabel, and where the goal lies
        self._some = np.empty(0, np.bool_)
        self._frames = self._marks = self._oldest = np.empty(0, np.int64)
        self._span: Span | None = None

    def locate(self, index: Index, ids: Ids) -> Steps:
        """Draw the goals' frames from the same state of the index as the steps."""
        span = index.span(ids)
        chances, draws = self._draws(ids.size)
        self._some = chances < self._task.probability
        # The frame after the last step, and those after all steps that can be sampled, with the
        # episode's first one. Of earlier ones more or fewer are still on disk, depending on when it
        # was last flushed.
        first = last = span.left
        if self._task.strategy == "future":
            first = np.ones_like(last)
        elif self._task.strategy == "episode":
            first = (span.back > span.oldest) - span.oldest
        frames = self._frames = first + (draws * (last + 1 - first)).astype(np.int64)
        self._span = span
        # A goal's place is the step before its observation; for a first one, the first step.
        is_first = frames <= -span.back
        places = span.steps.at(np.where(is_first, frames, frames - 1)[:, None])[:, 0]
        self._oldest = np.where(self._some, np.minimum(places, ids), ids)
        self._marks = np.where(is_first, FIRST_OBSERVATION, places)
        self._marks[~self._some] = -1
        return _with_pending(self._gatherer.locate(index, ids), span)

    def renewed(self, index: Index, steps: Steps) -> Steps:
        """As of the gatherer of transitions; the goals stay the same, too."""
        span: Span = self._span  # type: ignore[assignment]
        span = self._span = dataclasses.replace(span, steps=index.renewed(span.steps))
        return _with_pending(self._gatherer.renewed(index, steps), span)

    def oldest(self, steps: Steps) -> Ids:  # noqa: ARG002 (goals may lie before the steps)
        """The ids of the oldest steps that are read, with those of the goals: int64 (B,)."""
        return self._oldest

    def copy(self, batch: Batch, out: Batch) -> Batch:
        """As of the gatherer of transitions."""
        return self._gatherer.copy(batch, out)

    def fetch(self, columns: Mapping[str, Column], steps: Steps, out: Batch | None = None) -> Batch:
        """Read the transitions as if they had been recorded with these goals."""
        span: Span = self._span  # type: ignore[assignment]
        places = span.steps.frames(self._frames[:, None])[:, 0]
        places[~self._some] = -1
        goals = _Goals(self._task, columns, steps, places, self._marks)
        batch = self._gatherer.fetch(goals.columns(), steps, out)
        if self._task.terminal is not None:  # which ends episodes wherever it says so
            batch.terminated[goals.some] = ~batch.non_terminal[goals.some]
        return batch


def _with_pending(steps: Steps, span: Span) -> Steps:
    """The steps, with the pending rows that goals are read from."""
    steps.pending = tuple({*steps.pending, *span.pending})
    return steps


class _Goals:
    """The columns of a store in which some samples of one batch have other goals."""

    def __init__(
        self, task: _Task, columns: Mapping[str, Column], steps: Steps, goals: Ids, marks: Ids
    ) -> None:
        """Read the goals achieved at `goals` (B,) frames; -1 leaves a sample alone."""
        self._task, self._columns, self._around = task, columns, steps
        self._marks = marks
        self.some = (goals >= 0).nonzero()[0]
        self._values = columns[task.achieved].take(goals[self.some])
        self._known: tuple[Ids, tuple[Array, Array, dict[str, Array]]] | None = None

    def columns(self) -> dict[str, Column]:
        """All columns: of flags and rewards the last axis of the ids is the sample, else axis 0."""
        task, out, goals = self._task, dict(self._columns), self._values
        out[task.mark] = _Made((), np.dtype("int64"), self._mark)
        if self.some.size:
            shape = goals.shape
            out[task.desired] = self._replaced(  # in each frame of a sample
                task.desired,
                lambda ids: goals.reshape(shape[0], *(1,) * (ids.ndim - 1), *shape[1:]),
            )
            rewards = functools.partial(self._computed, "reward", task.reward)
            out["rewards"] = self._replaced("rewards", rewards)
            if task.terminal is not None:
                ended = functools.partial(self._computed, "terminal", task.terminal)
                out["non_terminals"] = self._replaced(
                    "non_terminals", lambda ids: np.equal(ended(ids), 0)
                )
        return out

    def _mark(self, _: Ids, out: Array) -> Array:
        out[...] = self._marks
        return out

    def _replaced(self, path: str, values: Callable[[Ids], Array]) -> Column:
        """A column with other values for some samples, made from the ids of all."""
        column = self._columns[path]

        def take(ids: Ids, out: Array | None = None) -> Array:
            rows = column.take(ids, out)
            (rows.T if path in _BY_STEP else rows)[self.some] = values(ids)
            return rows

        return _Made(column.row_shape, column.dtype, take)

    def _computed(self, name: str, function: GoalFunction, ids: Ids) -> Array:
        """The results of a function for the steps at `ids`, in their shape."""
        if self._known is None or self._known[0] is not ids:  # both functions see the same window
            self._known = ids, self._steps(ids)
        size = ids.T[self.some].shape
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
        wanted = ids.T[self.some]
        flat = wanted.ravel()
        after = self._around.frames_after(wanted.reshape(len(wanted), -1), self.some)
        return (
            self._columns[self._task.achieved].take(after.ravel()),
            self._values.repeat(flat.size // len(wanted), axis=0),
            {name: self._columns[path].take(flat) for name, path in self._task.extras.items()},
        )


@dataclasses.dataclass(slots=True, eq=False)
class _Made:
    """A column whose rows a function returns."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    take: Callable[..., Array]
