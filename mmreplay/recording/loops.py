"""Policy loops over `RecordExperience`: one environment, or many.

They run once a step for hours: nothing is made or looked up in them that could be before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mmreplay.recording.autoreset import some
from mmreplay.recording.environments import World
from mmreplay.recording.experience import RecordExperience, RecordVectorExperience
from mmreplay.recording.lives import lives_of_all, lives_of_one
from mmreplay.recording.policies import Actor, VectorActor, make_actor, make_vector_actor
from mmreplay.recording.progress import Meter


@dataclass(slots=True)
class Tally:
    """What was done so far, also when it ended in an exception.

    Attributes:
        steps: transitions recorded.
        episodes: episodes that ended.
    """

    steps: int = 0
    episodes: int = 0


class Loop:
    """Environments that were reset, and whose first action is chosen: nothing is recorded yet.

    Raises SchemaError if `life_loss` is asked for and the environment does not tell ``lives``.
    """

    def __init__(
        self, world: World, policy: Callable[..., Any] | None, seed: int, *, life_loss: bool
    ) -> None:
        self._env, self._life_loss = world.env, life_loss
        env = world.env
        observation, info = self._first = env.reset(seed=seed)
        self._actor: Any
        if isinstance(env, VectorEnv):
            if life_loss:
                lives_of_all(info.get("lives"))
            self._actor = make_vector_actor(
                policy, world.observation_space, env.single_action_space, seed, env.num_envs
            )
            self._actor.start(np.ones(env.num_envs, np.bool_))
            self._action = self._actor.act(observation, None)
        else:
            if life_loss:
                lives_of_one(info.get("lives"))
            self._actor = make_actor(policy, env, seed)
            self._actor.start()
            self._action = self._actor.act(observation)

    def run(
        self, writer: Any, total: int, tally: Tally, meter: Meter, stop: Callable[[], bool]
    ) -> None:
        """Record `total` transitions."""
        wrap: Any = RecordExperience  # which chooses its class by the environment
        env = wrap(self._env, writer, life_loss=self._life_loss)
        env.begun(*self._first)
        run = _run_vector if isinstance(env, RecordVectorExperience) else _run_single
        run(env, self._actor, self._action, total, tally, meter, stop)


def _run_single(
    env: RecordExperience,
    actor: Actor,
    action: Any,
    total: int,
    tally: Tally,
    meter: Meter,
    stop: Callable[[], bool],
) -> None:
    while True:
        observation, _, terminated, truncated, _ = env.step(action)
        tally.steps += 1
        over = terminated or truncated
        if over:
            tally.episodes += 1
        if tally.steps >= total or stop():
            return
        if over:
            observation, _ = env.reset()
            actor.start()
        if perf_counter() >= meter.due:
            meter.report(tally.steps, tally.episodes)
        action = actor.act(observation)


def _run_vector(
    env: RecordVectorExperience,
    actor: VectorActor,
    actions: Any,
    total: int,
    tally: Tally,
    meter: Meter,
    stop: Callable[[], bool],
) -> None:
    while True:
        env.most = total - tally.steps
        observations, _, _, _, _ = env.step(actions)
        step = env.newest
        over = step.terminated | step.truncated
        ended = over if step.recorded is None else over & step.recorded
        tally.steps += len(over) if step.recorded is None else int(np.count_nonzero(step.recorded))
        tally.episodes += int(np.count_nonzero(ended))
        if tally.steps >= total or stop():
            return
        started = step.started
        if env.resets_by_hand and some(over) is not None:
            started = over
            # Gymnasium takes the mask out of the options and keeps it.
            observations, _ = env.reset(options={"reset_mask": over.copy()})
        if started is not None:
            actor.start(started)
        if perf_counter() >= meter.due:
            meter.report(tally.steps, tally.episodes)
        actions = actor.act(observations, step.ignored)
