"""The policy loop over `RecordExperience`, for one environment or many.

It runs for hours: nothing is created or looked up per step that could be created before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mmreplay.recording.autoreset import Mask, lives_left
from mmreplay.recording.environments import World
from mmreplay.recording.experience import RecordExperience, RecordVectorExperience
from mmreplay.recording.policies import make_actor
from mmreplay.recording.progress import Meter


@dataclass(slots=True)
class Tally:
    """What was done so far, also if the loop ends with an exception.

    Attributes:
        steps: transitions recorded.
        episodes: episodes that ended.
    """

    steps: int = 0
    episodes: int = 0


class Loop:
    """Environments after their reset, with the first action chosen and nothing recorded yet.

    Raises SchemaError if `life_loss` is set and the environment does not report ``lives``.
    """

    def __init__(
        self, world: World, policy: Callable[..., Any] | None, seed: int, *, life_loss: bool
    ) -> None:
        self._env, self._life_loss = world.env, life_loss
        observation, info = self._first = world.env.reset(seed=seed)
        if life_loss:
            lives_left(info)
        self._actor = make_actor(
            policy, world.observation_space, world.action_space, seed, world.fields.lanes
        )
        self._actor.start(np.ones(world.n_envs, np.bool_))
        self._action = self._actor.act(observation, None)

    def run(
        self, writer: Any, total: int, tally: Tally, meter: Meter, stop: Callable[[], bool]
    ) -> None:
        """Record `total` transitions."""
        wrap: Any = RecordExperience  # which chooses its class by the environment
        env = wrap(self._env, writer, life_loss=self._life_loss)
        env.begun(*self._first)
        is_vector = isinstance(env, RecordVectorExperience)
        side: _Single | _Vector = _Vector(env) if is_vector else _Single(env)
        actor, action = self._actor, self._action
        while True:
            done = side.step(action, total - tally.steps)
            tally.steps += done.steps
            tally.episodes += done.episodes
            if tally.steps >= total or stop():
                return
            observation, started = done.observation, done.started
            if done.over is not None:
                observation, started = side.reset(done.over), done.over
            if started is not None:
                actor.start(started)
            if perf_counter() >= meter.due:
                meter.report(tally.steps, tally.episodes)
            action = actor.act(observation, done.ignored)


class _Done(NamedTuple):
    """One step: what was recorded, and what comes next.

    Attributes:
        observation: what the policy sees next.
        steps: transitions recorded.
        episodes: episodes that ended.
        over: the environments that the loop has to reset; None for none.
        started: the environments that have begun an episode; None for none.
        ignored: the environments whose next action will be ignored; None for none.
    """

    observation: Any
    steps: int
    episodes: int
    over: Mask | None
    started: Mask | None = None
    ignored: Mask | None = None


class _Single:
    def __init__(self, env: RecordExperience) -> None:
        self._env = env

    def step(self, action: Any, _most: int) -> _Done:
        observation, _, terminated, truncated, _ = self._env.step(action)
        if terminated or truncated:
            return _Done(observation, 1, 1, np.ones(1, np.bool_))
        return _Done(observation, 1, 0, None)

    def reset(self, _over: Mask) -> Any:
        return self._env.reset()[0]


class _Vector:
    def __init__(self, env: RecordVectorExperience) -> None:
        self._env = env

    def step(self, actions: Any, most: int) -> _Done:
        env = self._env
        env.most = most
        observations = env.step(actions)[0]
        step = env.newest
        steps, over, ended = len(step.terminated), step.over, step.over
        if step.recorded is not None:
            steps = int(np.count_nonzero(step.recorded))
            ended = None if over is None else over & step.recorded
        by_hand = over if env.resets_by_hand else None
        episodes = 0 if ended is None else int(np.count_nonzero(ended))
        return _Done(observations, steps, episodes, by_hand, step.started, step.ignored)

    def reset(self, over: Mask) -> Any:
        # Gymnasium takes the mask out of the options and keeps it.
        return self._env.reset(options={"reset_mask": over.copy()})[0]
