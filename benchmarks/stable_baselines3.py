"""`DiskReplayBuffer` beside stable-baselines3's own: single calls, a whole DQN training, memory.

Both models train on Breakout, a few hundred steps of one and then of the other, so that what slows
the machine down falls on both. It needs stable-baselines3, which only benchmarks of it do.
"""

from __future__ import annotations

import functools
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fresh
from benchmarks.experience import ENV_IDS
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread

__all__ = ["filled", "run"]

STACK = 4
ENVS = 4
BATCH = 256
_OURS, _THEIRS = "DiskReplayBuffer", "its own"
_STEPS = 400  # of a model, then of the other one
_STARTS = 1_000


def run(result: Result, scale: Scale, data: Path) -> None:
    """Calls, training, memory."""
    _calls(result, scale, data / "sac.zarr")
    _training(result, scale, data / "dqn.zarr")
    taken = {}
    for kind in (_OURS, _THEIRS):
        path = data / "filled.zarr"
        shutil.rmtree(path, ignore_errors=True)
        taken[kind] = fresh.call("fill_sb3", path=path, ours=kind == _OURS, steps=scale.peer_rows)
        result.add(f"{kind}: anonymous memory", taken[kind]["anon"] / 1e6, "MB")
    ratio = taken[_OURS]["anon"] / taken[_THEIRS]["anon"]
    result.add("memory by optimize_memory_usage's", ratio, "times", at_most=0.1)


def _calls(result: Result, scale: Scale, path: Path) -> None:
    """Steps of four environments with seventeen numbers and six actions; batches of them."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    from mmreplay.adapters.stable_baselines3 import DiskReplayBuffer

    shutil.rmtree(path, ignore_errors=True)
    space, actions = spaces.Box(-9, 9, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
    given: dict[str, Any] = {"n_envs": ENVS, "device": "cpu"}
    buffers = {
        _OURS: DiskReplayBuffer(scale.append_steps, space, actions, path=path, **given),
        _THEIRS: ReplayBuffer(scale.append_steps, space, actions, **given),
    }
    draws = np.random.default_rng(0)
    over, infos = np.zeros(ENVS, np.bool_), [{"TimeLimit.truncated": False}] * ENVS
    seen = draws.normal(size=(ENVS, 17)).astype("float32")
    clock = Clock()
    for _ in range(scale.runs):
        clock.new_run()
        for _ in range(scale.append_steps // ENVS // scale.runs):
            after = draws.normal(size=(ENVS, 17)).astype("float32")
            action, reward = draws.normal(size=(ENVS, 6)).astype("float32"), draws.normal(size=ENVS)
            for name, buffer in buffers.items():
                step = functools.partial(buffer.add, seen, after, action, reward, over, infos)
                clock.time(f"{name}: add", step)
            seen = after
        for _ in range(scale.rounds):
            for name, buffer in buffers.items():
                clock.time(f"{name}: sample", functools.partial(buffer.sample, BATCH))
    for call, bound in (("add", 100), ("sample", None)):
        for name in buffers:
            figure = clock.microseconds(f"{name}: {call}")
            limit = bound if name == _OURS else None
            what = f"SAC, {ENVS} environments, {name}: {call}"
            result.add(what, figure, "us", at_most=limit)
    buffers[_OURS].close()


def _training(result: Result, scale: Scale, path: Path) -> None:
    import ale_py  # noqa: F401  registers the games
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    from mmreplay.adapters.stable_baselines3 import DiskReplayBuffer

    shutil.rmtree(path, ignore_errors=True)
    torch.set_num_threads(1)
    ours = {
        "replay_buffer_class": DiskReplayBuffer,
        "replay_buffer_kwargs": {"path": path},
    }
    models = {}
    for name, given in ((_OURS, ours), (_THEIRS, {})):
        env = VecFrameStack(make_atari_env(ENV_IDS["breakout"], seed=0), STACK)
        models[name] = DQN(
            "CnnPolicy", env, buffer_size=20_000, learning_starts=_STARTS, seed=0, device="cpu",
            **given,  # type: ignore[arg-type]
        )  # fmt: skip
        models[name].learn(_STARTS)
    clock = Clock()
    for number in range(scale.runs):
        clock.new_run()
        order = list(models)
        random.Random(number).shuffle(order)
        for name in order * max(scale.rounds // 50, 1):
            learn = functools.partial(models[name].learn, _STEPS, reset_num_timesteps=False)
            clock.time(name, learn)
        print(f"DQN: run {number + 1} of {scale.runs}", flush=True)
    for name in models:
        per_s = spread(_STEPS / clock.by_run(name, np.mean))
        result.add(f"DQN on Breakout, {name}: steps", per_s, "1/s")
    ratio = clock.ratio(_OURS, _THEIRS, np.mean)
    result.add("DQN on Breakout, time of a step by that with its own", ratio, "times", at_most=1.05)
    models[_OURS].replay_buffer.close()


def filled(path: str, steps: int, *, ours: bool) -> Any:
    """A buffer of so many steps with stacks of four frames of 84x84."""
    from gymnasium import spaces

    from benchmarks.peers.installed import replay_buffer
    from mmreplay.adapters.stable_baselines3 import DiskReplayBuffer

    space, actions = spaces.Box(0, 255, (STACK, 84, 84), np.uint8), spaces.Discrete(4)
    if ours:
        buffer: Any = DiskReplayBuffer(steps, space, actions, path=path, device="cpu")
    else:
        buffer = replay_buffer(steps, space, actions)
    frames = np.random.default_rng(0).integers(0, 256, (97, 84, 84), np.uint8)
    seen = np.zeros((1, STACK, 84, 84), np.uint8)
    seen[0, -1] = frames[0]
    none, infos = np.zeros(1), [{"TimeLimit.truncated": False}]
    for step in range(1, steps + 1):
        after = np.concatenate([seen[:, 1:], frames[step % 97][None, None]], 1)
        buffer.add(seen, after, none, none, none, infos)
        seen = after
    for _ in range(20):
        buffer.sample(BATCH)
    return buffer
