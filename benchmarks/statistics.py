"""Statistics of states and actions beside images that nobody asks for: against numpy's, in RAM.

Numpy is given the columns as arrays of 64 bits, and has to hold them whole.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np

import mmreplay
from benchmarks.experience import made
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core, spread
from mmreplay.storage.shard_column import ShardColumn

__all__ = ["run"]

STATE, ACTION, EPISODE = 17, 6, 1_000
FIELDS = {"observation.state": "state", "action": "action"}
LEVELS = (0.01, 0.99)


def run(result: Result, scale: Scale, data: Path) -> None:
    """One store of states, images and actions."""
    n = scale.vector_rows
    rng = np.random.default_rng(0)
    rows = {
        "state": rng.standard_normal((n, STATE), np.float32) * 3 + 100,
        "action": rng.standard_normal((n, ACTION), np.float32),
    }
    path = made(data / f"statistics-{n}.zarr", lambda there: _write(there, **rows))
    clock, decoded, real = Clock(), 0, ShardColumn._decode_chunk

    def decode(*arguments):
        nonlocal decoded
        decoded += 1
        return real(*arguments)

    with (
        mock.patch.object(ShardColumn, "_decode_chunk", decode),
        one_core(),
        mmreplay.load(path) as opened,
    ):
        for number in range(scale.runs):
            clock.new_run()
            found = clock.time("ours", lambda: opened.statistics([*FIELDS], LEVELS))
            expected = clock.time("numpy", lambda: _numpy(rows))
            print(f"run {number + 1} of {scale.runs}", flush=True)
        tracemalloc.start()
        opened.statistics([*FIELDS], LEVELS)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    off = max(_check(found[name], expected[key], rows[key]) for name, key in FIELDS.items())
    what = f"{n:,} rows of {STATE} + {ACTION} floats"
    result.add(what, spread(clock.by_run("ours")), "s", at_most=2)
    result.add(f"{what}, by numpy's in RAM", clock.ratio("ours", "numpy"), "times")
    result.add("of these, images decoded", decoded, "", at_most=0)
    result.add("of these, memory at the peak", peak / 1e6, "MB", at_most=100)
    result.add("of these, quantiles off by", 100 * off, "% of rank", at_most=0.5)


def _write(path: Path, state: np.ndarray, action: np.ndarray) -> None:
    frame = {
        "state": mmreplay.Field((STATE,), "float32"),
        "image": mmreplay.Field((84, 84), "uint8", "lz4"),
    }
    image = np.zeros((84, 84), np.uint8)
    with mmreplay.create(path, frame, mmreplay.Field((ACTION,), "float32")) as writer:
        assert isinstance(writer, mmreplay.Writer)
        last = len(state) - 1
        for row in range(last + 1):
            if row % EPISODE == 0:
                writer.reset({"state": state[row], "image": image})
            following = {"state": state[min(row + 1, last)], "image": image}
            writer.step(action[row], 0.0, following, truncated=row % EPISODE == EPISODE - 1)


def _numpy(rows: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, ...]]:
    out: dict[str, tuple[np.ndarray, ...]] = {}
    for name, values in rows.items():
        wide = values.astype(np.float64)
        bounds = wide.min(0), wide.max(0)
        out[name] = (wide.mean(0), wide.std(0), *bounds, np.quantile(wide, LEVELS, axis=0))
    return out


def _check(
    found: mmreplay.Statistics, expected: tuple[np.ndarray, ...], values: np.ndarray
) -> float:
    """Hold statistics against numpy's; returns how far in rank the quantiles are off."""
    mean, std, low, high, _ = expected
    assert found.count == len(values)
    assert np.allclose(found.mean, mean, rtol=1e-6, atol=0)
    assert np.allclose(found.std, std, rtol=1e-6, atol=0)
    assert np.array_equal(found.min, low)
    assert np.array_equal(found.max, high)
    ranks = (values < found.quantiles[:, None]).mean(1)
    return float(np.abs(ranks - np.array(LEVELS)[:, None]).max())
