"""Relabelled samples as the model has them: each as if its episode had been recorded with its goal.

Invariant: nothing here is shared with the relabelling of the package.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from tests.support.oracle.checks import check_same
from tests.support.oracle.model import LANE_SHIFT

Array = npt.NDArray[Any]
FIRST = -2
"""In the place of an id: the first observation of an episode, which no step came before."""


def goals_of(model, id_, strategy):
    """Where a transition's goal may come from: ids of the steps after which they were achieved.

    That is -2 for the first observation. If the episode's beginning was evicted, what was achieved
    after the steps that can be sampled counts.
    """
    number = id_ >> LANE_SHIFT
    lane = model.lanes[number]
    one, place = model.find(id_)
    ids = model.ids_of(number, one)
    if strategy == "future":
        return ids[place:]
    if strategy == "final":
        return ids[-1:]
    oldest = max(lane.first - one.first, 0)
    return ids[oldest:] if oldest else [FIRST, *ids]


def check_relabelled(batch, model, reward, strategy, terminal, settings):
    """Every sample of a batch against an episode that was recorded with its goal."""
    settings = {name: value for name, value in settings.items() if name != "episode"}
    goals = batch.extras["hindsight"].tolist()
    for at, (id_, goal) in enumerate(zip(batch.id.tolist(), goals, strict=True)):
        one, place = model.find(id_)
        if goal != -1:
            if goal not in goals_of(model, id_, strategy):
                raise AssertionError(f"id {id_}: {goal} is no goal of {strategy}")
            after = 0 if goal == FIRST else model.find(goal)[1] + 1
            one = _recorded_with(model, one, one.frames[after]["achieved_goal"], reward, terminal)
        expected = model.batch_of([(one, place)], batch.id[at : at + 1], **settings)
        if terminal is not None and goal != -1:  # it ends the episode in its middle, too
            expected.terminated[:] = ~expected.non_terminal
            expected.truncated[:] &= expected.non_terminal
        for field in dataclasses.fields(Batch):
            found, wanted = getattr(batch, field.name), getattr(expected, field.name)
            if isinstance(wanted, dict):
                for key, value in wanted.items():
                    check_same(found[key][at], value[0], f"{field.name}[{key}] of {id_}")
            else:
                check_same(found[at], wanted[0], f"{field.name} of {id_}")


def _recorded_with(model, one, goal, reward, terminal):
    schema = model.schema
    given = (
        np.stack([frame["achieved_goal"] for frame in one.frames[1:]]),
        np.stack([goal] * len(one.steps)),
        {name: np.stack([step.extras[name] for step in one.steps]) for name in schema.extra_fields},
    )
    rewards = reward(*given)
    ends = None if terminal is None else terminal(*given)
    steps = [
        dataclasses.replace(
            step,
            reward=np.array(rewards[number], schema.reward_dtype),
            non_terminal=step.non_terminal if ends is None else int(not ends[number]),
        )
        for number, step in enumerate(one.steps)
    ]
    frames = [{**frame, "desired_goal": goal} for frame in one.frames]
    return dataclasses.replace(one, frames=frames, steps=steps)
