"""``python -m benchmarks.gpu STORE [--device cuda] [--seconds 400]``: on a machine with a GPU.

Batches of a window of frames in device memory, beside the same batches sent from the host, in
turns; epochs; and recording a simulator of 4,096 environments of 60 floats in tensors. It needs
mmreplay, torch and a store of frames, which ``--record`` writes beforehand: 30 to 60 MB. What is
timed is compared bit for bit. On ``cpu`` with ``--quick`` it only shows that it works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import mmreplay
from mmreplay import Field, RecordExperience
from mmreplay.adapters.torch import loader, on_device, to_tensors
from mmreplay.batches.batch import arrays_of

Figures = dict[str, dict[str, float]]

STACK, SIDE, WIDTH = 4, 84, 60
_NAMES = {"host": "sent from the host", "all": "all in the window", "quarter": "a quarter in it"}


def record(path: Path, n_frames: int) -> None:
    """Write frames that compress about as those of Atari do: a picture with moving parts."""
    rng = np.random.default_rng(0)
    ground = np.repeat(np.repeat(rng.integers(0, 200, (12, 12), np.uint8), 7, 0), 7, 1)
    frame = Field((SIDE, SIDE), "uint8", "lz4")
    with mmreplay.create(path, frame, Field((), "int64"), flush_s=0) as writer:
        places = rng.integers(0, SIDE - 8, (8, 2))
        for step in range(n_frames):
            picture = ground.copy()
            places = np.clip(places + rng.integers(-2, 3, places.shape), 0, SIDE - 8)
            for y, x in places:
                picture[y : y + 8, x : x + 8] = rng.integers(200, 255, (8, 1), np.uint8)
            if step % 500 == 0:
                writer.reset(picture)
            else:
                writer.step(step % 18, 0.5, picture, terminated=step % 500 == 499)


def measure(store: Path, device: str, seconds: float, *, quick: bool = False) -> Figures:
    """Every figure, in about so many seconds."""
    figures: Figures = {}
    each = seconds / 12
    with mmreplay.load(store, stack=STACK, n_step=3, seed=0, prefetch=0) as data:
        for size in (8,) if quick else (32, 256, 4096):
            _draws(figures, "stacks of 4 frames", data, size, device, each)
        _epochs(figures, store, device, each)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.zarr"
        _recorded(figures, path, device, 64 if quick else 4096, 30 if quick else 60)
        with mmreplay.load(path, stack=None, seed=0) as data:
            for size in (8,) if quick else (256, 32_768):
                _draws(figures, f"{WIDTH} floats", data, size, device, each)
    return figures


def _draws(
    figures: Figures, what: str, data: mmreplay.Dataset, size: int, device: str, seconds: float
) -> None:
    schema = data.schema
    frames = schema.frames.values() if isinstance(schema.frames, dict) else [schema.frames]
    whole = (len(data) + 1000) * 2 * sum(one.row_bytes for one in frames)
    with (
        on_device(data, device, memory=whole) as everything,
        on_device(data, device, memory=whole // 8) as quarter,
    ):
        everything.fill()
        quarter.fill()
        calls: dict[str, Callable[[], Any]] = {
            "host": lambda: to_tensors(data.sample(size), device),
            "all": lambda: everything.sample(size),
            "quarter": lambda: quarter.sample(size),
        }
        _check(data, calls)
        for key, times in _in_turns(calls, device, seconds).items():
            figures[f"{what}, sample({size:,}), {_NAMES[key]}"] = _summary(times)


def _epochs(figures: Figures, store: Path, device: str, seconds: float) -> None:
    with mmreplay.load(store, stack=STACK, seed=0) as data:
        memory = (len(data) + 1000) * 2 * SIDE * SIDE
        with on_device(data, device, memory=memory) as window:
            window.fill()
            through = loader(store, 256, stack=STACK, seed=0, device=device, prefetch=4)
            calls: dict[str, Callable[[], Any]] = {
                "host": lambda: _last(iter(through)),
                "all": lambda: _last(window.batches(256)),
            }
            for key, times in _in_turns(calls, device, seconds).items():
                how = "by a loader that reads ahead" if key == "host" else _NAMES[key]
                figures[f"an epoch of stacks, {how}"] = _summary(times)


class _Simulator(gymnasium.Env[Any, Any]):
    """Isaac Lab's convention: tensors that are written over, resets in the same step."""

    is_vector_env = True
    cfg = types.SimpleNamespace(compute_final_obs=True)

    def __init__(self, n: int, device: str) -> None:
        self.num_envs, self.device = n, device
        self.single_observation_space = spaces.Dict({"policy": spaces.Box(-9, 9, (WIDTH,))})
        self.single_action_space = spaces.Box(-1, 1, (12,))
        self.observation_space, self.action_space = spaces.Box(-9, 9, (n, WIDTH)), spaces.Box(-1, 1)
        self._seen = torch.zeros(n, WIDTH, device=device)
        self._never = torch.zeros(n, dtype=torch.bool, device=device)
        self._n_steps = 0

    def reset(self, **_: Any) -> Any:
        return {"policy": self._seen}, {}

    def step(self, _: Any) -> Any:
        self._n_steps += 1
        final = {"policy": self._seen.uniform_(-1, 1).clone()}
        over = self._never.clone()
        over[self._n_steps % 100 :: 100] = True
        self._seen[over] = 0
        return {"policy": self._seen}, self._seen[:, 0], over, self._never, {"final_obs": final}


def _recorded(figures: Figures, path: Path, device: str, n: int, n_steps: int) -> None:
    """The time that recording adds to a step."""
    env = _Simulator(n, device)
    actions = torch.zeros(n, 12, device=device)
    recorder = RecordExperience(env, path)
    recorder.reset()
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(n_steps):
        times["with"].append(_time(lambda: recorder.step(actions), device))
        times["without"].append(_time(lambda: env.step(actions), device))
    recorder.close()
    added = [one - statistics.median(times["without"]) for one in times["with"][n_steps // 4 :]]
    figures[f"recording a step of {n:,} environments of {WIDTH} floats"] = _summary(added)


def _check(data: mmreplay.Dataset, calls: dict[str, Callable[[], Any]]) -> None:
    """Raise if one of these draws another batch from the same random state."""
    state, found = data.state_dict(), {}
    for key, call in calls.items():
        data.load_state_dict(state)
        found[key] = arrays_of(call())
    for key, arrays in found.items():
        for name, expected in found["host"].items():
            if not torch.equal(arrays[name], expected):
                raise AssertionError(f"{key}: {name} differs from the host's")


def _in_turns(
    calls: dict[str, Callable[[], Any]], device: str, seconds: float
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {key: [] for key in calls}
    for call in calls.values():
        call()
    until = perf_counter() + seconds
    while perf_counter() < until or len(times["host"]) < 2:
        for key, call in calls.items():
            times[key].append(_time(call, device))
    return times


def _time(call: Callable[[], Any], device: str) -> float:
    """Milliseconds until it is done on the device."""
    start = perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (perf_counter() - start)


def _last(batches: Iterator[Any]) -> Any:
    batch = None
    for batch in batches:  # noqa: B007 (the last one)
        pass
    return batch


def _summary(times: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(times, (10, 50, 90)).tolist()
    return {"ms": middle, "low": low, "high": high, "n": len(times)}


def main(arguments: list[str] | None = None) -> int:
    """Measure, or record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--record", type=int, metavar="FRAMES", help="write the store first")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--quick", action="store_true", help="small: only to see that it works")
    parser.add_argument("--out", type=Path, help="a JSON file of the figures")
    options = parser.parse_args(arguments)
    if options.record:
        record(options.store, options.record)
        if options.out is None:
            return 0
    figures = measure(options.store, options.device, options.seconds, quick=options.quick)
    about = {"device": options.device, "torch": torch.__version__}
    if options.device == "cuda":
        about["device"] = torch.cuda.get_device_name()
    for name, one in figures.items():
        print(f"{name:70} {one['ms']:10.3f} ms ({one['low']:.3f} to {one['high']:.3f})")
    if options.out is not None:
        options.out.write_text(json.dumps({"about": about, "figures": figures}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
