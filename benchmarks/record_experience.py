"""What `RecordExperience` costs a loop: the same environments with the wrapper and without it.

In turns of a few seconds and in one process, so that what else the machine does falls on both; the
two of a pair have the same seeds and actions, drawn before. The loop does nothing but step: a
policy and a learner would make the share smaller. Where frames are compressed, a turn fills whole
halves of the tail, and waits for the seals that this causes.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

import mmreplay
from benchmarks.experience import ENV_IDS, SEED
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread
from mmreplay import RecordExperience

__all__ = ["run"]

_LOST = 10.0
_TURNS = 3


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game, one and several of it; then CartPole, whose step takes microseconds."""
    gymnasium.register_envs(ale_py)
    for game in scale.games:
        env_id = ENV_IDS[game]
        name = f"{game}: one environment"
        _one_loop(result, scale, data, name, partial(one_atari, env_id), _LOST)
        name = f"{game}: {scale.envs} environments"
        _one_loop(result, scale, data, name, partial(_ataris, env_id, scale.envs), _LOST)
    _one_loop(result, scale, data, "CartPole: one environment", _cart_pole)
    name = f"CartPole: {scale.envs} environments"
    _one_loop(result, scale, data, name, partial(SyncVectorEnv, [_cart_pole] * scale.envs))


def _cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def one_atari(env_id: str) -> Any:
    env = gymnasium.make(env_id, frameskip=1, max_num_frames_per_episode=0)
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.AtariPreprocessing(env), 27_000)


def _ataris(env_id: str, n: int) -> Any:
    return gymnasium.make_vec(
        env_id, num_envs=n, stack_num=1, reward_clipping=False, use_fire_reset=False
    )


def _one_loop(
    result: Result,
    scale: Scale,
    data: Path,
    name: str,
    make: Callable[[], Any],
    at_most: float | None = None,
) -> None:
    path = data / "record-experience.zarr"
    shutil.rmtree(path, ignore_errors=True)
    plain, recorded = make(), RecordExperience(make(), path)
    n = recorded.writer.metadata["environments"] or 1
    turn = _turn_steps(recorded.writer, scale.record_steps // max(n, 2))
    clock, seeds, steps = Clock(), itertools.count(SEED, n), 0
    for env in (plain, recorded):  # to warm up, and so that turns begin in the middle of a half
        made, _ = _played(env, next(seeds), turn // 2)
        steps += made * (env is recorded)
    recorded.writer._background.finish_tasks()
    for number in range(scale.runs):
        clock.new_run()
        for _ in range(_TURNS):
            seed = next(seeds)
            said = []
            for env in (plain, recorded) if number % 2 else (recorded, plain):
                started = perf_counter()
                made, total = _played(env, seed, turn)
                if env is recorded:
                    recorded.writer._background.finish_tasks()
                    steps += made
                clock.put("recorded" if env is recorded else "plain", [perf_counter() - started])
                said.append((made, total))
            assert said[0] == said[1]  # the same games
        print(f"{name}: run {number + 1} of {scale.runs}", flush=True)
    plain.close()
    recorded.close()
    with mmreplay.open(path) as store:
        assert len(store) == steps
    report = mmreplay.verify(path)
    assert not report.findings, report.findings
    shutil.rmtree(path)
    result.details[f"{name}, steps a turn"] = turn * n
    for which, words in (("plain", "without"), ("recorded", "with it")):
        result.add(f"{name}, {words}", spread(turn * n / clock.by_run(which, np.mean)), "steps/s")
    lost = 100 * (1 - clock.by_run("plain", np.mean) / clock.by_run("recorded", np.mean))
    result.add(f"{name}, speed lost", spread(lost), "%", at_most=at_most)
    more = clock.by_run("recorded", np.mean) - clock.by_run("plain", np.mean)
    result.add(f"{name}, more for a step", spread(more / turn * 1e6), "us")


def _turn_steps(writer: Any, steps: int) -> int:
    """About so many steps, but whole halves of the tail, where frames are compressed."""
    log = writer.files.rows
    spec = log.specs["frames"]
    return steps if spec.is_raw else steps // spec.chunk_rows * spec.chunk_rows or steps


def _played(env: Any, seed: int, steps: int) -> tuple[int, float]:
    """Transitions made in so many steps of a loop, and the rewards of all."""
    rng = np.random.default_rng(seed)
    is_vector = isinstance(env, gymnasium.vector.VectorEnv)
    space = env.single_action_space if is_vector else env.action_space
    shape = (steps, env.num_envs) if is_vector else (steps,)
    actions = rng.integers(space.n, size=shape)
    ends: list[Any] = []
    rewards: list[Any] = []
    env.reset(seed=seed)
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        ends.append(terminated | truncated)
        rewards.append(reward)
        if not is_vector and (terminated or truncated):
            env.reset()
    # The step after an end is the reset of an environment that resets itself.
    waits = int(np.sum(ends[:-1])) if is_vector else 0
    return actions.size - waits, float(np.sum(rewards))
