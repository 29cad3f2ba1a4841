"""Derived columns: adding one to a million rows, updating 256 values, and batches that have two.

The time of the function that works out the values is taken off. An update is held against an update
of as many priorities, in the same buffer and by the same ids, and a batch against one of the same
store without the columns.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import mmreplay
from benchmarks.experience import light_rows, made, recorded
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core

__all__ = ["run"]

BATCH, UPDATE, STACK = 32, 256, 4
LENGTHS = (1_000, 20)
_RATE, _SECONDS, _UPDATE, _BATCH = 1e6, 1.0, 2.0, 1.1
_FLOAT = mmreplay.Field((), "float32")


def run(result: Result, scale: Scale, data: Path) -> None:
    """Add, update, sample."""
    _add(result, scale, data)
    _update(result, scale, data)
    _sample(result, scale, data)


def _rows(data: Path, n: int, length: int) -> Path:
    """A copy of such a store, as it is changed."""
    kept = light_rows(data, n, length)
    copy = kept.with_name(f"{kept.stem}-copy.zarr")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kept, copy)
    return copy


class _ToGo:
    """The sum of rewards from each step on; `seconds` are those it took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, trajectory: Any) -> Any:
        rewards = trajectory.reward
        started = perf_counter()
        out = rewards[::-1].cumsum()[::-1]
        self.seconds += perf_counter() - started
        return out


def _add(result: Result, scale: Scale, data: Path) -> None:
    n = scale.priority_rows
    for length in LENGTHS:
        path, clock = _rows(data, n, length), Clock()
        rewards = (np.arange(n) % 7).astype("float32")
        togo = rewards.reshape(-1, length)[:, ::-1].cumsum(1)[:, ::-1].reshape(-1)
        for _ in range(scale.runs):
            clock.new_run()
            function = _ToGo()
            started = perf_counter()
            mmreplay.add_column(path, "togo", function, replace=True)
            clock.put("function", [perf_counter() - started - function.seconds])
            clock.time("array", partial(mmreplay.add_column, path, "x", rewards, replace=True))
            with mmreplay.open(path) as store:
                found = store.transitions(store.ids, stack=None).extras
                assert np.array_equal(found["togo"], togo)
                assert np.array_equal(found["x"], rewards)
        what = f"{n:,} rows in episodes of {length:,}: add_column of a float"
        seconds = clock.by_run("function")
        rate = float(np.median(n / seconds))
        result.add(f"{what} by a function of a trajectory", rate, "rows/s", at_least=_RATE)
        if length == LENGTHS[0]:
            array = float(np.median(clock.by_run("array")))
            result.add(f"{what} from an array", array, "s", at_most=_SECONDS)
        shutil.rmtree(path)


def _update(result: Result, scale: Scale, data: Path) -> None:
    path, random, clock = _rows(data, scale.priority_rows, 1_000), np.random.default_rng(0), Clock()
    mmreplay.add_column(path, "value", np.zeros(scale.priority_rows), _FLOAT)
    wide = mmreplay.Field((256,), "float16")
    mmreplay.add_column(path, "latent", iter([([0], np.zeros((1, 256), "float16"))]), wide)
    with one_core(), mmreplay.PrioritizedReplayBuffer(path, stack=None, flush_s=0) as buffer:
        every, latent = buffer.ids, random.random((UPDATE, 256)).astype("float16")
        buffer.update(every, value=np.zeros(every.size))
        for _ in range(scale.runs):
            clock.new_run()
            for turn in range(scale.rounds * 5):
                ids = random.choice(every, UPDATE, replace=False)
                values = random.random(UPDATE, np.float32)
                clock.time("priorities", partial(buffer.update_priorities, ids, values))
                clock.time("value", partial(buffer.update, ids, value=values))
                clock.time("latent", partial(buffer.update, ids, latent=latent))
                if turn % 50 == 0:
                    found = buffer.transitions(ids).extras
                    assert np.array_equal(found["value"], values)
                    assert np.array_equal(found["latent"], latent)
    what = f"{scale.priority_rows:,} rows: update of {UPDATE}"
    result.add(f"{what} priorities", clock.microseconds("priorities"), "us")
    result.add(f"{what} floats", clock.microseconds("value"), "us")
    ratio = clock.ratio("value", "priorities")
    result.add(f"{what} floats, by that of priorities", ratio, "times", at_most=_UPDATE)
    result.add(f"{what} latents of 512 bytes", clock.microseconds("latent"), "us")
    shutil.rmtree(path)


def _with_columns(source: Path, there: Path) -> None:
    mmreplay.snapshot(source, there)
    with mmreplay.open(there) as store:
        values = np.arange(len(store), dtype="float32")
    for name in ("value", "target"):
        mmreplay.add_column(there, name, values)


def _sample(result: Result, scale: Scale, data: Path) -> None:
    for game in scale.games:
        write = partial(_with_columns, recorded(data, game, "raw", scale))
        path, clock = made(data / f"{game}-raw-columns.zarr", write), Clock()
        with (
            one_core(),
            mmreplay.load(path, stack=STACK, columns=[]) as plain,
            mmreplay.load(path, stack=STACK) as both,
        ):
            kept = {"without": plain.sample(BATCH), "with": both.sample(BATCH)}
            for _ in range(scale.runs):
                clock.new_run()
                for turn in range(scale.rounds * 5):
                    # In turn first: the other finds the same frames in the processor's cache.
                    for name, one in (("without", plain), ("with", both))[:: 1 - turn % 2 * 2]:
                        clock.time(name, partial(one.sample, BATCH, out=kept[name]))
            assert np.array_equal(kept["with"].id, kept["without"].id)
            ranks = both.ids.searchsorted(kept["with"].id)
            assert np.array_equal(kept["with"].extras["value"], ranks)
        what = f"{game}: a batch of {BATCH} with stacks of {STACK}, raw"
        result.add(f"{what}, with two derived columns", clock.microseconds("with"), "us")
        ratio = clock.ratio("with", "without")
        result.add(f"{what}, with two columns by without", ratio, "times", at_most=_BATCH)
