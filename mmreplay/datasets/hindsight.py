"""`Hindsight`: samples with goals that their own episode reached.

Invariant: the data alone determines which transitions are drawn, and their weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_number, check_takes
from mmreplay.batches.batch import Batch
from mmreplay.batches.relabel import STRATEGIES, GoalFunction, Relabelling, Task
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import Around, EpochSource
from mmreplay.datasets.store_draws import Draw
from mmreplay.errors import SchemaError
from mmreplay.reading.store import Store
from mmreplay.schema import Field


class Hindsight(Around, EpochSource):
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

    data: Dataset

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
        if mark in schema.extras:
            raise SchemaError(
                f"{data.store.path}: there is an extra named {mark!r} already; give the mark of "
                f"relabelled samples another name with mark="
            )
        super().__init__(data)
        self.schema = dataclasses.replace(
            schema, extras={**schema.extras, mark: Field((), "int64")}
        )
        self._task = Task(
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

    @property
    def store(self) -> Store:
        """The store that is read."""
        return self.data.store

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

    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        return self.data.read_batches(given, self._relabelling_by)

    def _relabelling(self, generator: np.random.Generator, size: int) -> Relabelling:
        draws = generator.random((2, size))
        return Relabelling(self._gatherer, self._task, lambda _: draws)

    def _relabelling_by(self, seed: list[int]) -> Relabelling:
        """For a batch that loses what is evicted before it is read."""
        return Relabelling(
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
