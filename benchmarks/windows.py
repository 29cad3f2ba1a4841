"""`sample_windows`: 50 actions and one image, as a policy of a robot learns from.

It is held against `sample` with one frame per observation, which reads two frames and one action a
step. Beside it is the batch of sequences of 50 steps that has the same in it, with 50 images.
Stores of one writer were written at full speed.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks.experience import (
    Layout,
    Tape,
    one_lane,
    read_all,
    read_tape,
    recorded,
)
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, runs_of

__all__ = ["run"]

BATCH = 32
LENGTH = 50
WINDOWS = {"observation": 0, "action": range(LENGTH)}
_BOUND = 1.3
_CHECK_EVERY = 50


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    name: str
    path: Path
    layout: Layout


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game after the other."""
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        cases = _cases(data, game, tape, scale)
        one_run = functools.partial(_one_run, tape=tape, rounds=scale.rounds)
        clock = runs_of(game, cases, scale.runs, one_run)
        for case in sorted(cases, key=lambda one: one.name):
            _report(result, clock, game, case)


def _cases(data: Path, game: str, tape: Tape, scale: Scale) -> list[_Case]:
    cases = []
    for codec in ("raw", "lz4", "zstd"):
        path, _ = one_lane(data, game, codec, tape, None)
        cases.append(_Case(f"one writer, {codec}", path, Layout.ONE))
    path = recorded(data, game, "lz4", scale)
    cases.append(_Case(f"{scale.envs} environments, lz4", path, Layout.VECTOR))
    return cases


def _one_run(clock: Clock, case: _Case, number: int, *, tape: Tape, rounds: int) -> None:
    with mmreplay.load(case.path, stack=1, seed=number) as opened:
        read_all(opened.store)
        batch, windows = opened.sample(BATCH), opened.sample_windows(BATCH, WINDOWS)
        sequences = opened.sample_sequences(BATCH, LENGTH, boundary="pad")
        for turn in range(rounds):
            calls: dict[str, Any] = {
                "windows, out=": lambda: opened.sample_windows(BATCH, WINDOWS, out=windows),
                "sample, out=": lambda: opened.sample(BATCH, out=batch),
                "windows": lambda: opened.sample_windows(BATCH, WINDOWS),
                "sample": lambda: opened.sample(BATCH),
                "sequences": lambda: opened.sample_sequences(
                    BATCH, LENGTH, boundary="pad", out=sequences
                ),
            }
            order = [*calls]  # a call finds in the cache what the one before it has left there
            random.Random(turn).shuffle(order)
            for what in order:
                found = clock.time(f"{case.name}, {what}", calls[what])
                if turn % _CHECK_EVERY == 0 and what.startswith("windows"):
                    _check(found, tape, case)


def _check(batch: mmreplay.WindowBatch, tape: Tape, case: _Case) -> None:
    at = tape.places(batch.id, case.layout)
    starts = np.append(np.flatnonzero(tape.resets), len(tape))
    lasts = starts[starts.searchsorted(at, "right")] - 2  # rows of the episodes' last steps
    rows = at[:, None] + np.arange(LENGTH)
    assert np.array_equal(batch.mask["action"], rows <= lasts[:, None])
    assert np.array_equal(batch["action"], tape.actions[np.minimum(rows, lasts[:, None])])
    assert np.array_equal(batch["observation"], tape.frames[at])


def _report(result: Result, clock: Clock, game: str, case: _Case) -> None:
    name, what = f"{game}: {case.name}", f"{LENGTH} actions and 1 image"
    by, bound = "by sample with stack=1", _BOUND if "lz4" in case.name else None
    result.add(f"{name}, {what}, out=", clock.microseconds(f"{case.name}, windows, out="), "us")
    for how in (", out=", ""):
        ratio = clock.ratio(f"{case.name}, windows{how}", f"{case.name}, sample{how}")
        result.add(f"{name}, {what}{how}, {by}{how}", ratio, "times", at_most=bound)
    ratio = clock.ratio(f"{case.name}, sequences", f"{case.name}, sample, out=")
    result.add(f"{name}, sequences of {LENGTH}, out=, {by}, out=", ratio, "times")
