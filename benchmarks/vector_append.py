"""A step of a vector environment, and beside it the `add` of stable-baselines3's ReplayBuffer.

Observations of 60 float32 and actions of 8, of 16 to 4,096 environments. The medians are those of
single calls; the means have seals, new chunk files and the resets of ended episodes in them. What
creating the store takes, of time and of disk, is measured with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from benchmarks.peers import installed as peers
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread
from mmreplay.system.checked_reads import allocated_bytes

__all__ = ["ACTION", "OBSERVATION", "run"]

OBSERVATION = 60
ACTION = 8
_POOL = 8  # batches of random numbers, used again and again
_EPISODE = 500  # steps, on average
_MEDIAN, _MEAN = 1.5, 3.0
_CREATE_S, _CREATE_BYTES = 0.3, 256 << 20

Seconds = npt.NDArray[np.float64]


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every number of environments, in turns with the peer."""
    with_peer = peers.is_installed()
    clock = Clock()
    created: dict[int, list[float]] = {n: [] for n in scale.widths}
    used: dict[int, list[float]] = {n: [] for n in scale.widths}
    for number in range(scale.runs):
        clock.new_run()
        for n in scale.widths:
            steps = max(scale.vector_cells // n, 50)
            tape = _Tape(n, steps)
            if with_peer:
                clock.put(f"peer {n}", peers.fill_vectors(tape.calls(), OBSERVATION, ACTION, n))
            path = data / f"vector-append-{n}.zarr"
            calls, whole, create_s, size = _fill(path, tape)
            clock.put(f"step {n}", calls)
            clock.put(f"whole {n}", whole)
            created[n].append(create_s)
            used[n].append(size / 2**20)
        print(f"run {number + 1} of {scale.runs}", flush=True)
    for n in scale.widths:
        result.add(f"{n} environments: create", spread(created[n]), "s", at_most=_CREATE_S)
        most = _CREATE_BYTES / 2**20
        result.add(f"{n} environments: disk at once", spread(used[n]), "MiB", at_most=most)
        result.add(f"{n} environments: step, median", clock.microseconds(f"step {n}"), "us")
        mean = clock.microseconds(f"whole {n}", np.mean)
        result.add(f"{n} environments: step and resets, mean", mean, "us")
        if not with_peer:
            continue
        what = f"{n} environments: {peers.NAME}.add"
        result.add(f"{what}, median", clock.microseconds(f"peer {n}"), "us")
        ratio = clock.ratio(f"step {n}", f"peer {n}")
        result.add(f"{n} environments: median, by the peer's", ratio, "times", at_most=_MEDIAN)
        ratio = clock.ratio(f"whole {n}", f"peer {n}", np.mean)
        result.add(f"{n} environments: mean, by the peer's", ratio, "times", at_most=_MEAN)


class _Tape:
    """What `steps` steps of `n` environments give."""

    def __init__(self, n: int, steps: int) -> None:
        rng = np.random.default_rng(n)
        self.n, self.steps = n, steps
        self.frames = rng.standard_normal((_POOL, n, OBSERVATION), np.float32)
        self.actions = rng.standard_normal((_POOL, n, ACTION), np.float32)
        self.rewards = rng.standard_normal((_POOL, n), np.float32)
        self.over = rng.random((steps, n)) < 1 / _EPISODE
        self.going_on = np.zeros(n, np.bool_)

    def calls(self) -> list[tuple[Any, ...]]:
        """(observations, next observations, actions, rewards, over) of each step."""
        pool = [
            (self.frames[i], self.frames[(i + 1) % _POOL], self.actions[i], self.rewards[i])
            for i in range(_POOL)
        ]
        return [(*pool[t % _POOL], self.over[t]) for t in range(self.steps)]


def _fill(path: Path, tape: _Tape) -> tuple[Seconds, Seconds, float, int]:
    """Seconds of each step, and with the resets after it; of creating; bytes on disk at once."""
    shutil.rmtree(path, ignore_errors=True)
    started = perf_counter()
    writer: Any = mmreplay.create(
        path,
        mmreplay.Field((OBSERVATION,), "float32"),
        mmreplay.Field((ACTION,), "float32"),
        lanes=tape.n,
    )
    create_s = perf_counter() - started
    size = sum(allocated_bytes(path).values())
    calls, whole = np.zeros(tape.steps), np.zeros(tape.steps)
    going_on, clock = tape.going_on, perf_counter
    step: Callable[..., None] = writer.step
    writer.reset(tape.frames[0])
    for t, (_, following, actions, rewards, over) in enumerate(tape.calls()):
        start = clock()
        step(actions, rewards, following, over, going_on)
        stop = clock()
        if over.any():
            writer.reset(following, over)
        calls[t], whole[t] = stop - start, clock() - start
    writer.close()
    with mmreplay.load(path, stack=None) as dataset:
        assert len(dataset) == tape.n * tape.steps
        last = dataset.transitions(dataset.store.ids[-1:])
        assert np.array_equal(last.next_observation[0], tape.frames[tape.steps % _POOL][-1])
    shutil.rmtree(path)
    return calls, whole, create_s, size
