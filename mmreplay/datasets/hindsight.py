"""`Hindsight`: samples with goals that their own episode did reach.

Invariant: which transitions come, and with which weights, is the data's affair alone; goals are
drawn beside that.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import true_or_false, whole_number, whole_number_or_none
from mmreplay.batches.batch import Batch
from mmreplay.batches.relabel import STRATEGIES, GoalFunction, Relabelling, Task
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.draws import Draw
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from mmreplay.schema import Field, Schema

_ATTEMPTS = 100


class Hindsight:
    """Samples of a dataset or buffer of which a share has a goal that its own episode reached.

    Observations are dicts with an achieved and a desired goal, as those of Gymnasium-Robotics. A
    relabelled sample's desired goal is the achieved goal of another row of its episode, in each
    frame of both stacks, and each reward of its n-step window is computed again. What is stored is
    not changed. Also for truncated, interrupted and running episodes: their last row is then the
    newest one; of an episode whose beginning was evicted, the rows that can still be sampled.

    Args:
        data: what to sample from; a prioritized buffer's ids and weights stay its own.
        reward: ``reward(achieved_goal, desired_goal, info)``: (N, *goal), (N, *goal) and a dict of
            the declared extras of the same steps, (N, ...) each, to (N,) rewards; the achieved
            goal is the one after the step. Takes ``env.unwrapped.compute_reward`` as it is.
        strategy: where the goal comes from: ``future``, uniform over the rows after the
            transition, up to the final observation; ``final``, the episode's last row;
            ``episode``, uniform over all of its rows.
        probability: of a sample to be relabelled, in [0, 1]; k / (k + 1) for k of them beside
            each one as recorded.
        terminal: the same arguments to (N,) bools, for tasks that end in success: whether the step
            ends the episode. Then these flags, and not the stored ones, cut the window and give
            the discount of relabelled samples. None keeps the stored ones.
        achieved_goal: key of the achieved goal in the observation.
        desired_goal: key of the desired one.
        mark: name of the extra of each batch that tells where goals come from: (B,) int64. In a
            lane of one environment the id of the row whose achieved goal it is. In one of many the
            id of the step after which it was achieved, or -2 for the episode's first observation.
            In both -1 where the goal is the recorded one.

    Raises:
        SchemaError: observations without such goals, or a setting out of its range.

    Attributes:
        data: as given.
        schema: of a batch: the store's, and the mark.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay: section 3.2, algorithm 1, and
        the strategies of section 4.5.
    """

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
        # Whoever draws in a way of its own is asked for a batch of its own, for the ids in it.
        self._is_known = type(data).sample in {Dataset.sample, PrioritizedReplayBuffer.sample}
        if hasattr(data, "update_priorities"):
            self.update_priorities = data.update_priorities

    @property
    def store(self) -> Store:
        """The store that is read."""
        return self.data.store

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the data's."""
        return self.data.settings

    @property
    def generator(self) -> np.random.Generator:
        """What draws: the data's."""
        return self.data.generator

    @property
    def ids(self) -> Ids:
        """Every valid transition id, ascending."""
        return self.data.ids

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.data)

    def sample(
        self,
        batch_size: int,
        out: Batch | None = None,
        *,
        replace: bool = True,
        group: int | None = None,
    ) -> Batch:
        """Draw transitions as the data does, and goals for some of them.

        Args:
            batch_size: B.
            out: a batch that this object returned for the same B; overwritten and returned.
            replace: whether a transition may come twice in a batch.
            group: m draws groups of m neighbours, each of which has a goal of its own; see
                `Dataset.sample`.

        Raises:
            EmptyBufferError: there is no transition yet.
            SchemaError: as of the data: without replacement, and there are fewer than
                `batch_size`; groups that `batch_size` is no multiple of; either of them, and the
                data samples by priority.
        """
        size = whole_number("batch_size", batch_size)
        group = whole_number_or_none("group", group)
        replace = true_or_false("replace", replace)
        if self._is_known:
            return self.data.ahead.next(
                self.store.live, self.generator, self._begin, (size, replace, group), out
            )
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(InvalidIdError):  # evicted since it was drawn
                return self._relabelled_draw(size, out, replace, group)
        return self._relabelled_draw(size, out, replace, group)

    def _begin(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        draw = self.data.begin_sample(generator, size, replace, group)
        return dataclasses.replace(draw, gatherer=self._relabelling(generator, size))

    def _relabelled_draw(
        self, size: int, out: Batch | None, replace: bool, group: int | None
    ) -> Batch:
        drawn = self.data.sample(size, replace=replace, group=group)
        batch = self.relabel(drawn.id, out)
        batch.weight[:] = drawn.weight
        return batch

    def relabel(self, ids: npt.ArrayLike, out: Batch | None = None) -> Batch:
        """The transitions with these ids, with goals drawn for some of them.

        Args:
            ids: (B,) integers.
            out: a batch that this object returned for as many; overwritten and returned.

        Raises:
            InvalidIdError: an id that is no valid transition, named.
        """
        return self.store.live.gather_ids(ids, self._relabelling(self.generator, np.size(ids)), out)

    def batches(
        self,
        batch_size: int,
        epochs: int | None = 1,
        *,
        shuffle: bool | Literal["full"] = True,
        shuffle_rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """Every transition once an epoch, with goals drawn again; see `Dataset.batches`.

        Goals follow from the epoch and the place in it, as the order does.
        """
        given = EpochArguments(
            batch_size, epochs, shuffle, shuffle_rows, rank, world_size, drop_last, epoch
        )
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
