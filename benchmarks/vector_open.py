"""Stores of many environments: opening and sampling them, beside a store of one environment.

A draw may not cost more with many environments, or many episodes; many processes' lanes in one
store have to be made and opened quickly, too.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from pathlib import Path
from typing import Any, Self

import numpy as np

import mmreplay
from benchmarks.experience import made
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core
from benchmarks.vector_append import ACTION, OBSERVATION

__all__ = ["run"]

BATCH = 256
_LOAD_MS = 50.0
_NAMED = 64
_NAMED_CREATE_S, _NAMED_LOAD_S = 1.5, 0.1
_FRAME = mmreplay.Field((OBSERVATION,), "float32")
_ACTION = mmreplay.Field((ACTION,), "float32")
_LONG, _SHORT = 1_000, 10
_WINDOW, _EPISODE = 8, 200
_FEW_EPISODES, _SHORTEST = 100, 2


def run(result: Result, scale: Scale, data: Path) -> None:
    """Load and sample, in turns; then the lanes of many processes."""
    widths = (1, *scale.widths)
    paths = {
        n: made(data / f"vector-{n}.zarr", _writer(n, scale.vector_rows, _LONG)) for n in widths
    }
    short = made(data / "vector-short.zarr", _writer(scale.widths[0], scale.vector_rows, _SHORT))
    clock = Clock()
    with one_core(), contextlib.ExitStack() as stack:
        episodes = _growing_episodes(stack, data, scale)
        for number in range(scale.runs):
            clock.new_run()
            for n in widths:
                for _ in range(5):
                    opened = clock.time(f"load {n}", functools.partial(mmreplay.load, paths[n]))
                    opened.close()
            stores = {str(n): mmreplay.load(paths[n], stack=None, seed=number) for n in widths}
            stores["short"] = mmreplay.load(short, stack=None, seed=number)
            for _ in range(scale.rounds * 5):
                for name, opened in stores.items():
                    clock.time(f"sample {name}", functools.partial(opened.sample, BATCH))
            for opened in stores.values():
                opened.close()
            _grow(clock, data, scale)
            _draw(clock, "episodes", episodes, _SHORTEST, scale)
            _name(clock, data)
            print(f"run {number + 1} of {scale.runs}", flush=True)
    result.details["transitions"] = scale.vector_rows
    for n in scale.widths:
        load = clock.microseconds(f"load {n}")
        result.add(f"{n} environments: load", load, "us", at_most=_LOAD_MS * 1e3)
        ratio = clock.ratio(f"sample {n}", "sample 1")
        what = f"{n} environments: sample({BATCH}), by that of one"
        result.add(what, ratio, "times", at_most=1.5)
    few, many = scale.widths[0], scale.widths[-1]
    ratio = clock.ratio("sample short", f"sample {few}")
    what = f"episodes of {_SHORT} steps: sample({BATCH}), by that of {_LONG:,}"
    result.add(what, ratio, "times", at_most=1.5)
    of = {"growing": "growing", "evicting": "growing, with eviction"}
    for kind, said in of.items():
        _add(result, clock, kind, f"{many} environments, {said}", (many, few), _WINDOW)
    counts = scale.vector_rows, _FEW_EPISODES
    _add(result, clock, "episodes", f"{counts[0]:,} episodes, growing", counts, _SHORTEST)
    create, load = clock.microseconds("named create"), clock.microseconds("named load")
    at_most = _NAMED_CREATE_S * 1e6
    result.add(f"{_NAMED} named lanes: create all", create, "us", at_most=at_most)
    result.add(f"{_NAMED} named lanes: load", load, "us", at_most=_NAMED_LOAD_S * 1e6)


def _writer(n: int, rows: int, length: int) -> Any:
    def write(path: Path) -> None:
        """As many transitions of `n` environments, in episodes of `length`."""
        rng = np.random.default_rng(0)
        frames = rng.standard_normal((8, n, OBSERVATION), np.float32)
        actions = rng.standard_normal((n, ACTION), np.float32)
        rewards, none = np.ones(n, np.float32), np.zeros(n, np.bool_)
        many: Any = mmreplay.create(path, _FRAME, _ACTION, lanes=None if n == 1 else n)
        one = n == 1
        with many as writer:
            writer.reset(frames[0, 0] if one else frames[0])
            for t in range(rows // n):
                following, over = frames[t % 8], t % length == length - 1
                if one:
                    writer.step(actions[0], 1.0, following[0], truncated=over)
                    if over:
                        writer.reset(following[0])
                    continue
                writer.step(actions, rewards, following, none, ~none if over else none)
                if over:
                    writer.reset(following)

    return write


def _add(
    result: Result, clock: Clock, kind: str, what: str, of: tuple[int, int], window: int
) -> None:
    """What `_draw` has timed, of the larger one by the smaller one."""
    many, few = of
    calls = {
        kind: f"sample({BATCH})",
        f"{kind} windows": f"sample_sequences({BATCH}, {window})",
    }
    for name, call in calls.items():
        ratio = clock.ratio(f"{name} {many}", f"{name} {few}")
        result.add(f"{what}: {call}, by that of {few:,}", ratio, "times", at_most=1.5)


def _grow(clock: Clock, data: Path, scale: Scale) -> None:
    """Buffers of few and of many environments, with as many transitions; then such that evict."""
    widths = (scale.widths[0], scale.widths[-1])
    steps, kept = 20 + scale.rounds, 16
    for kind, capacity in (("growing", None), ("evicting", kept * widths[-1])):
        with contextlib.ExitStack() as stack:
            growing = {}
            for n in widths:
                one = _Growing(data / f"{kind}-{n}.zarr", n, capacity)
                growing[n] = stack.enter_context(one)
                one.fill(steps * widths[-1] // n)
            _draw(clock, kind, growing, _WINDOW, scale)


def _growing_episodes(stack: contextlib.ExitStack, data: Path, scale: Scale) -> dict[int, _Growing]:
    """Buffers of as many transitions, in few episodes and in many."""
    n, rows, growing = scale.widths[0], _SHORTEST * scale.vector_rows, {}
    for n_episodes in (_FEW_EPISODES, scale.vector_rows):
        path = data / f"episodes-{n_episodes}.zarr"
        one = _Growing(path, n, length=rows // n_episodes)
        growing[n_episodes] = stack.enter_context(one)
        one.fill(rows // n)
    return growing


def _draw(clock: Clock, kind: str, growing: dict[int, _Growing], window: int, scale: Scale) -> None:
    """Sample in turns from buffers that grow between any two batches."""
    for _ in range(scale.rounds):
        for n, one in growing.items():
            one.fill(1)
            clock.time(f"{kind} {n}", functools.partial(one.buffer.sample, BATCH))
            one.fill(1)
            draw = functools.partial(one.buffer.sample_sequences, BATCH, window)
            clock.time(f"{kind} windows {n}", draw)


class _Growing:
    """A buffer of `n` environments, made at a path and removed in the end.

    Its episodes are of `length` steps; by default some end with each step, and others begin.
    """

    def __init__(
        self, path: Path, n: int, capacity: int | None = None, length: int | None = None
    ) -> None:
        self._path, self._n, self._capacity, self._length = path, n, capacity, length
        self._rng, self._steps = np.random.default_rng(0), 0
        self._frames = np.zeros((n, OBSERVATION), np.float32)
        self._actions, self._rewards = np.zeros((n, ACTION), np.float32), np.zeros(n, np.float32)

    def __enter__(self) -> Self:
        shutil.rmtree(self._path, ignore_errors=True)
        self.buffer = mmreplay.ReplayBuffer(
            self._path,
            frame=_FRAME,
            action=_ACTION,
            lanes=self._n,
            capacity=self._capacity,
            stack=None,
            flush_s=0,
        )
        self.buffer.reset(self._frames)
        return self

    def fill(self, steps: int) -> None:
        """So many steps of all environments."""
        none = np.zeros(self._n, np.bool_)
        for _ in range(steps):
            self._steps += 1
            if self._length is None:
                over = self._rng.random(self._n) < 1 / _EPISODE
            else:
                over = ~none if self._steps % self._length == 0 else none
            self.buffer.step(self._actions, self._rewards, self._frames, over, none)
            if over.any():
                self.buffer.reset(self._frames, over)

    def __exit__(self, *_: object) -> None:
        self.buffer.close()
        shutil.rmtree(self._path)


def _name(clock: Clock, data: Path) -> None:
    """Make and load a store of the lanes of many processes."""
    path = data / "named.zarr"
    shutil.rmtree(path, ignore_errors=True)

    def create() -> None:
        for number in range(_NAMED):
            writer = mmreplay.create(path, _FRAME, _ACTION, lane=f"actor-{number}", flush_s=0)
            writers.append(writer)

    writers: list[Any] = []
    clock.time("named create", create)
    for writer in writers:
        writer.close()
    mmreplay.load(path).close()
    for _ in range(3):
        opened = clock.time("named load", lambda: mmreplay.load(path))
        opened.close()
    shutil.rmtree(path)
