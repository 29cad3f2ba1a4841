"""How much of its time a training loop waits for batches, with and without `prefetch`.

The loop computes for about 1 or 2 ms a batch of 32: elementwise numpy in one thread, always the
same amount, which releases the interpreter lock as training does. Its share of waiting is the time
in `sample` by all of its time. Threads take processor time from the loop where there is none to
spare, so what the computing takes beside them is shown, too. Nothing is kept on one core here.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import mmreplay
from benchmarks.experience import (
    CODECS,
    ENVIRONMENT_SPEED,
    Layout,
    Tape,
    one_lane,
    read_all,
    read_tape,
    recorded,
)
from benchmarks.naive import check_batch
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread

__all__ = ["computing", "run"]

BATCH = 32
STACK = 4
_AHEAD = (0, 1, 2)
_COMPUTED_MS = (1, 2)
_AT_MOST = {1: 15.0, 2: 5.0}  # percent that a loop may wait with prefetch=2, if compressed
_CHECK_EVERY = 50
_WARM_UP = 10
_TRIED, _TRIALS = 50, 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    codec: str
    path: Path
    n: int
    ms: int

    @property
    def name(self) -> str:
        return f"{self.codec}, {self.ms} ms a batch, prefetch={self.n}"


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game after the other."""
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        paths = {c: one_lane(data, game, c, tape, ENVIRONMENT_SPEED)[0] for c in CODECS}
        cases = [
            _Case(codec, path, n, ms)
            for codec, path in paths.items()
            for ms in _COMPUTED_MS
            for n in _AHEAD
        ]
        clock = Clock()
        for number in range(scale.runs):
            clock.new_run()
            compute = {ms: computing(ms) for ms in _COMPUTED_MS}
            random.Random(number).shuffle(cases)
            for case in cases:
                _loop(clock, case, compute[case.ms], tape, scale.rounds)
            print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
        _report(result, clock, game, list(paths))


def computing(ms: float) -> Callable[[], None]:
    """A computation of that many milliseconds, if nothing else runs."""
    values = np.ones(1 << 14)

    def compute(times: int) -> None:
        for _ in range(times):
            np.sqrt(values, out=values)

    def seconds(times: int) -> float:
        start = perf_counter()
        compute(times)
        return perf_counter() - start

    each = min(seconds(_TRIED) for _ in range(_TRIALS)) / _TRIED
    return functools.partial(compute, max(round(ms / 1000 / each), 1))


def _loop(clock: Clock, case: _Case, compute: Callable[[], None], tape: Tape, rounds: int) -> None:
    with mmreplay.load(case.path, stack=STACK, prefetch=case.n) as data:
        read_all(data.store)
        for number in range(-_WARM_UP, rounds):
            batch: Any = None  # as it goes when the loop takes the next one
            if number < 0:
                batch = data.sample(BATCH)
                compute()
                continue
            batch = clock.time(f"{case.name}, wait", lambda: data.sample(BATCH))
            clock.time(f"{case.name}, compute", compute)
            if number % _CHECK_EVERY == 0 or number == rounds - 1:
                check_batch(batch, tape, Layout.ONE, stack=STACK, n_step=1)


def _report(result: Result, clock: Clock, game: str, codecs: list[str]) -> None:
    for codec in codecs:
        for ms in _COMPUTED_MS:
            for n in _AHEAD:
                name = f"{codec}, {ms} ms a batch, prefetch={n}"
                waits = clock.by_run(f"{name}, wait", np.sum)
                computes = clock.by_run(f"{name}, compute", np.sum)
                bound = _AT_MOST[ms] if n == _AHEAD[-1] and codec != "raw" else None
                share = spread(100 * waits / (waits + computes))
                result.add(f"{game}: {name}, waits", share, "%", at_most=bound)
                result.add(f"{game}: {name}, a wait", clock.microseconds(f"{name}, wait"), "us")
            name = f"{codec}, {ms} ms a batch, prefetch="
            slower = clock.ratio(f"{name}{_AHEAD[-1]}, compute", f"{name}0, compute", np.mean)
            what = f"{game}: {codec}, {ms} ms a batch, computing beside threads, by without"
            result.add(what, slower, "times")
