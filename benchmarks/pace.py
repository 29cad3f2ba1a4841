"""Microseconds of a step, a batch and an opening, with the package of any commit.

Only what both this commit and the one it is held against offer is called.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

__all__ = ["pace"]

_EPISODE = 250
_FLOATS = 17
_ROWS = 100  # at least, however many environments there are
_OPENED = 30


class _Case(NamedTuple):
    """What is written and sampled: images of a codec, or vectors if None."""

    name: str
    codec: str | None
    environments: int = 1


_CASES = (
    _Case("raw", "raw"),
    _Case("lz4", "lz4"),
    _Case("zstd", "zstd"),
    _Case("17 floats", None),
    _Case("raw, 8 environments", "raw", 8),
    _Case("lz4, 8 environments", "lz4", 8),
    _Case("17 floats, 8 environments", None, 8),
    _Case("raw, 256 environments", "raw", 256),
    _Case("lz4, 256 environments", "lz4", 256),
    _Case("17 floats, 256 environments", None, 256),
)


def pace(root: str, path: str, frames: str, steps: int) -> dict[str, float]:
    """Microseconds by what was done, with the package in `root`.

    Args:
        root: where the package lies.
        path: of the stores that are written, one after the other.
        frames: a file of images, (n, height, width) uint8.
        steps: of each store, of all its environments together.
    """
    sys.path.insert(0, root)
    import numpy as np

    started = perf_counter()
    import mmreplay

    out = {"import": (perf_counter() - started) * 1e6}
    assert Path(mmreplay.__file__).is_relative_to(root)
    images = np.load(frames)
    vectors = np.random.default_rng(0).standard_normal((1_000, _FLOATS), np.float32)
    for case in _CASES:
        shutil.rmtree(path, ignore_errors=True)
        source = vectors if case.codec is None else images
        out[f"step: {case.name}"] = _write(mmreplay, path, case, source, steps)
        with mmreplay.load(path, stack=None if case.codec is None else 4, n_step=3) as data:
            out[f"sample of 32: {case.name}"] = _sample(data, 32, steps // 20)
        with mmreplay.load(path, stack=None if case.codec is None else 4) as data:
            out[f"sample of 256, n_step 1: {case.name}"] = _sample(data, 256, steps // 80)
            out[f"epoch, a batch of 32: {case.name}"] = _epoch(data, steps // 40)
        out[f"open: {case.name}"] = _median(_OPENED, lambda: _open(mmreplay, path))
        if case.environments == 1 and case.codec != "zstd":
            stack = None if case.codec is None else 4
            with mmreplay.PrioritizedReplayBuffer(path, stack=stack, n_step=3) as buffer:
                out[f"prioritized, 32 and their update: {case.name}"] = _learn(buffer, steps // 20)
    shutil.rmtree(path)
    return out


def _median(times: int, call: Callable[[], object]) -> float:
    """Microseconds of a call, without the first fifth of the times."""
    import numpy as np

    taken = np.empty(max(times, 20))
    for number in range(len(taken)):
        started = perf_counter()
        call()
        taken[number] = perf_counter() - started
    return float(np.median(taken[len(taken) // 5 :])) * 1e6


def _write(mmreplay: Any, path: str, case: _Case, source: Any, steps: int) -> float:
    import numpy as np

    n, several = case.environments, case.environments > 1
    field = mmreplay.Field(source.shape[1:], str(source.dtype), case.codec or "raw")
    action = mmreplay.Field((6,), "float32") if case.codec is None else mmreplay.Field((), "int64")
    writer = mmreplay.create(path, field, action, lanes=n if several else None, flush_s=0)
    # Made beforehand: a learner has them, and to stack them takes longer than to store them.
    given = [np.stack([source[(7 * e + t) % len(source)] for e in range(n)]) for t in range(20)]
    acts = np.zeros((n, *action.shape), action.dtype)
    rewards, none = np.ones(n), np.zeros(n, np.bool_)
    taken = np.empty(max(steps // n, _ROWS))
    with writer:
        for number in range(len(taken)):
            frame = given[number % len(given)] if several else source[number % len(source)]
            if number % _EPISODE == 0:
                writer.reset(frame)
            if several:
                started = perf_counter()
                writer.step(acts, rewards, frame, none, none)
            else:
                started = perf_counter()
                writer.step(acts[0], 1.0, frame)
            taken[number] = perf_counter() - started
    return float(np.median(taken)) * 1e6


def _sample(data: Any, batch: int, times: int) -> float:
    kept = data.sample(batch)
    return _median(times, lambda: data.sample(batch, out=kept))


def _epoch(data: Any, times: int) -> float:
    batches = iter(data.batches(32, epochs=None))
    return _median(times, lambda: next(batches))


def _open(mmreplay: Any, path: str) -> None:
    with mmreplay.open(path) as store:
        assert len(store)


def _learn(buffer: Any, times: int) -> float:
    def update() -> None:
        batch = buffer.sample(32)
        buffer.update_priorities(batch.id, batch.reward + 1)

    return _median(times, update)
