"""The two loops, one environment and many, each with a store behind it and without.

They run once a step for hours: nothing is made or looked up in them that could be before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from mmreplay.env_fields import Frame
from mmreplay.recording.autoreset import Lanes, Mask
from mmreplay.recording.environments import World
from mmreplay.recording.lives import lives_of_all, lives_of_one
from mmreplay.recording.policies import make_actor, make_vector_actor
from mmreplay.recording.progress import Meter
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer


@dataclass(slots=True)
class Tally:
    """What was done so far, also when it ended in an exception.

    Attributes:
        steps: transitions recorded.
        episodes: episodes that ended.
    """

    steps: int = 0
    episodes: int = 0


class Loop(Protocol):
    """Environments that were reset, and whose first action is chosen."""

    def run(
        self,
        writer: Any,
        total: int,
        tally: Tally,
        meter: Meter,
        stop: Callable[[], bool],
    ) -> None:
        """Record `total` transitions."""

    def run_plain(self, total: int) -> None:
        """Make at least `total` steps and record nothing."""


def prepare(world: World, policy: Callable[..., Any] | None, seed: int, *, life_loss: bool) -> Loop:
    """Reset the environments and choose the first action.

    Raises SchemaError if `life_loss` is asked for and the environment does not tell ``lives``.
    """
    if isinstance(world.env, VectorEnv):
        if world.lanes is None:
            raise TypeError("a vector environment without lanes")
        return _VectorLoop(world, world.env, world.lanes, policy, seed, life_loss)
    return _SingleLoop(world, world.env, policy, seed, life_loss)


class _SingleLoop:
    """One environment, whose episodes are reset here."""

    def __init__(
        self,
        world: World,
        env: gymnasium.Env[Any, Any],
        policy: Callable[..., Any] | None,
        seed: int,
        life_loss: bool,
    ) -> None:
        self._env = env
        self._to_frame = world.fields.to_frame
        self._actor = make_actor(policy, env, seed)
        observation, info = env.reset(seed=seed)
        self._frame = self._to_frame(observation)
        self._lives = lives_of_one(info.get("lives")) if life_loss else None
        self._actor.start()
        self._action = self._actor.act(observation)

    def run(
        self,
        writer: Writer,
        total: int,
        tally: Tally,
        meter: Meter,
        stop: Callable[[], bool],
    ) -> None:
        env, to_frame, actor = self._env, self._to_frame, self._actor
        action, lives = self._action, self._lives
        lost = False
        writer.reset(self._frame)
        while True:
            observation, reward, terminated, truncated, info = env.step(action)
            if lives is not None:
                left = lives_of_one(info.get("lives"))
                lost, lives = left < lives, left
            writer.step(
                action, reward, to_frame(observation), terminated, truncated, life_lost=lost
            )
            tally.steps += 1
            over = terminated or truncated
            if over:
                tally.episodes += 1
            if tally.steps >= total or stop():
                return
            if over:
                observation, info = env.reset()
                writer.reset(to_frame(observation))
                if lives is not None:
                    lives = lives_of_one(info.get("lives"))
                actor.start()
            if perf_counter() >= meter.due:
                meter.report(tally.steps, tally.episodes)
            action = actor.act(observation)

    def run_plain(self, total: int) -> None:
        env, actor, action = self._env, self._actor, self._action
        for _ in range(total):
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                observation, _ = env.reset()
                actor.start()
            action = actor.act(observation)


class _VectorLoop:
    """Many environments, whose episodes are reset by `Lanes`."""

    def __init__(
        self,
        world: World,
        env: VectorEnv[Any, Any, Any],
        lanes: Lanes,
        policy: Callable[..., Any] | None,
        seed: int,
        life_loss: bool,
    ) -> None:
        self._n_lanes = env.num_envs
        self._lanes = lanes
        self._actor = make_vector_actor(
            policy, world.observation_space, env.single_action_space, seed, self._n_lanes
        )
        observations, told = lanes.reset(seed)
        self._frames: Frame = world.fields.to_frame(observations)
        self._lives = lives_of_all(told) if life_loss else None
        self._actor.start(np.ones(self._n_lanes, dtype=np.bool_))
        self._actions = self._actor.act(observations, None)

    def run(
        self,
        writer: VectorWriter,
        total: int,
        tally: Tally,
        meter: Meter,
        stop: Callable[[], bool],
    ) -> None:
        lanes, actor, actions, lives = self._lanes, self._actor, self._actions, self._lives
        n_lanes = self._n_lanes
        lost: Mask | None = None
        writer.reset(self._frames)
        lanes.send(actions)
        while True:
            step = lanes.receive()
            recorded = step.recorded
            n_recorded = n_lanes if recorded is None else int(np.count_nonzero(recorded))
            if n_recorded > total - tally.steps:
                n_recorded = total - tally.steps
                some = _first(n_recorded, recorded, n_lanes)
                left_out = ~some if recorded is None else recorded & ~some
                writer._end_episodes(left_out)  # noqa: SLF001 (users reset environments)
                recorded = some
            if lives is not None:
                lost = lives_of_all(step.lives) < lives
                lives = lives_of_all(step.start_lives)
            goes_on = tally.steps + n_recorded < total and not stop()
            done = actions
            try:
                if goes_on:
                    if step.started is not None:
                        actor.start(step.started)
                    actions = actor.act(step.observations, step.ignored)
                    # The environments step while this step is written.
                    lanes.send(actions)
            finally:
                writer.step(
                    done,
                    step.rewards,
                    step.frames,
                    step.terminated,
                    step.truncated,
                    life_lost=lost,
                    mask=recorded,
                )
                tally.steps += n_recorded
            over = step.terminated | step.truncated
            if recorded is not None:
                over &= recorded
            tally.episodes += int(np.count_nonzero(over))
            if not goes_on:
                return
            if step.started is not None:
                writer.reset(step.start_frames, step.started)
            if perf_counter() >= meter.due:
                meter.report(tally.steps, tally.episodes)

    def run_plain(self, total: int) -> None:
        lanes, actor, actions = self._lanes, self._actor, self._actions
        steps = 0
        while steps < total:
            lanes.send(actions)
            step = lanes.receive()
            steps += self._n_lanes
            if step.started is not None:
                actor.start(step.started)
            actions = actor.act(step.observations, step.ignored)


def _first(n: int, recorded: Mask | None, n_lanes: int) -> Mask:
    """The first `n` lanes of those that are recorded."""
    whole = np.ones(n_lanes, dtype=np.bool_) if recorded is None else recorded
    return whole & (np.cumsum(whole) <= n)
