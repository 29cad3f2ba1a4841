"""`Hindsight`: samples with goals that their own episode did reach.

Invariant: which transitions come, and with which weights, is the data's affair alone; goals are
drawn beside that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.batches.relabel import STRATEGIES, GoalFunction, Relabelling, Task
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import Around, EpochSource
from mmreplay.datasets.store_draws import Draw
from mmreplay.errors import SchemaError
from mmreplay.reading.store import Store
from mmreplay.schema import Field, Schema


class Hindsight(Around, EpochSource):
    """Samples of a dataset or buffer of which a share has a goal that its own episode reached.

    Observations are dicts with an achieved and a desired goal, as those of Gymnasium-Robotics. A
    relabelled sample's desired goal is the achieved goal of another observation of its episode, in
    each frame of both stacks, and each reward of its n-step window is computed again. What is
    stored is not changed. Also for truncated, interrupted and running episodes, whose last
    observation is then the newest one; of an episode whose beginning was evicted, those after the
    steps that can still be sampled.

    Args:
        data: what to sample from; a prioritized buffer's ids and weights stay its own.
        reward: ``reward(achieved_goal, desired_goal, info)``: (N, *goal), (N, *goal) and a dict of
            the declared extras of the same steps, (N, ...) each, to (N,) rewards; the achieved
            goal is the one after the step. Takes ``env.unwrapped.compute_reward`` as it is.
        strategy: where the goal comes from: ``future``, uniform over the observations after the
            transition, up to the final one; ``final``, the final one; ``episode``, uniform over all
            of them.
        probability: of a sample to be relabelled, in [0, 1]; k / (k + 1) for k of them beside
            each one as recorded.
        terminal: the same arguments to (N,) bools, for tasks that end in success: whether the step
            ends the episode. Then these flags, and not the stored ones, cut the window and give
            the discount of relabelled samples. None keeps the stored ones.
        achieved_goal: key of the achieved goal in the observation.
        desired_goal: key of the desired one.
        mark: name of the extra of each batch that says where goals come from: (B,) int64, the id
            of the step after which the goal was achieved, -2 for the episode's first observation,
            -1 where the goal is the recorded one.

    Raises:
        SchemaError: observations without such goals, data of a class with a `sample` of its own, or
            a setting out of its range.

    Attributes:
        data: as given.
        schema: of a batch: the store's, and the mark.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay: section 3.2, algorithm 1, and
        the strategies of section 4.5.
    """

    data: Dataset
    update_priorities: Callable[..., Any]
    """The buffer's own, where it has one."""

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
        functions: dict[str, Any] = {"reward": reward, "terminal": terminal}
        for name, function in functions.items():
            if not callable(function) and not (name == "terminal" and function is None):
                raise SchemaError(
                    f"{name}: expected a function (achieved_goal, desired_goal, info), "
                    f"found {function!r}"
                )
        if strategy not in STRATEGIES:
            raise SchemaError(f"strategy: expected one of {STRATEGIES}, found {strategy!r}")
        checked: Any = probability
        if not isinstance(checked, (int, float, np.number)) or not 0 <= checked <= 1:
            raise SchemaError(f"probability: expected a number in [0, 1], found {probability!r}")
        if not isinstance(data, Dataset):
            raise SchemaError(
                f"data: expected what mmreplay.load returns, or a replay buffer, found {data!r}; "
                f"put Decorated and Mixture around Hindsight, not inside"
            )
        if type(data).sample is not Dataset.sample:
            raise SchemaError(
                f"data: expected the class of a dataset or buffer of mmreplay, found a "
                f"{type(data).__name__}, with a sample() of its own, which Hindsight does not call"
            )
        schema = data.store.schema
        _check_goals(data.store, achieved_goal, desired_goal)
        if mark in schema.extras:
            raise SchemaError(
                f"{data.store.path}: there is an extra named {mark!r} already; "
                f"give the mark of relabelled samples another name with mark="
            )
        self.data = data
        self.schema: Schema = dataclasses.replace(
            schema, extras={**schema.extras, mark: Field((), "int64")}
        )
        self._strategy, self._probability = strategy, float(probability)
        self._task = Task(
            schema.frame_paths[achieved_goal],
            schema.frame_paths[desired_goal],
            schema.extra_paths,
            self.schema.extra_paths[mark],
            reward,
            terminal,
        )
        self._gatherer = TransitionGatherer(self.schema, data.settings)
        if hasattr(data, "update_priorities"):
            self.update_priorities = data.update_priorities

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
        """The transitions with these ids, with goals drawn for some of them.

        Args:
            ids: (B,) integers.
            out: a batch that this object returned for as many; overwritten and returned.

        Raises:
            InvalidIdError: an id that is no valid transition, named.
        """
        relabelling = self._relabelling(self.generator, np.size(ids))
        return self.store.live.gather(self.store.live.valid_ids(ids), relabelling, out)

    def _batches(self, given: EpochArguments) -> Iterator[Batch]:
        return self.data.read_batches(given, self._relabelling_by)

    def _relabelling(self, generator: np.random.Generator, size: int) -> Relabelling:
        chances, draws = generator.random((2, size))
        some = chances < self._probability
        return Relabelling(self._gatherer, self._task, self._strategy, lambda _: (some, draws))

    def _relabelling_by(self, seed: list[int]) -> Relabelling:
        """The same of a batch that may lose what was evicted since it was drawn."""
        probability = self._probability

        def drawn(size: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
            chances, draws = np.random.default_rng(seed).random((2, size))
            return chances < probability, draws

        return Relabelling(self._gatherer, self._task, self._strategy, drawn)

    def __repr__(self) -> str:
        return (
            f"<mmreplay.Hindsight {self._strategy} probability={self._probability:g} "
            f"of {self.data!r}>"
        )


def _check_goals(store: Store, achieved: str, desired: str) -> None:
    frames = store.schema.frames
    for name in (achieved, desired):
        if not store.schema.is_dict or name not in frames:
            raise SchemaError(
                f"{store.path}: expected dict observations with {achieved!r} and {desired!r}, "
                f"found {sorted(frames)}; name the goals' keys with achieved_goal= and "
                f"desired_goal="
            )
    if not frames[achieved].same_data(frames[desired]):
        raise SchemaError(
            f"{store.path}: expected goals of one shape and dtype, found "
            f"{achieved!r}: {frames[achieved].dtype} {frames[achieved].shape}, "
            f"{desired!r}: {frames[desired].dtype} {frames[desired].shape}"
        )
