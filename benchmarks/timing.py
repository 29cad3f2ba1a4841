"""Clocks and spreads: what is compared is timed in turns, within one run, many times.

Invariant: a figure is the median over several runs of each run's own median (or mean), beside the
lowest and the highest run; a ratio is taken within each run before the runs are compared.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Clock", "Neighbours", "Spread", "one_core", "runs_of", "spread"]

Average = Callable[[npt.NDArray[Any]], Any]
Case = TypeVar("Case")


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """One figure from several runs.

    Attributes:
        median: of the runs.
        low: the lowest run.
        high: the highest run.
        n_runs: how many.
    """

    median: float
    low: float
    high: float
    n_runs: int


def spread(values: Any) -> Spread:
    """Of one value a run."""
    runs = np.asarray(values, np.float64)
    return Spread(float(np.median(runs)), float(runs.min()), float(runs.max()), len(runs))


class Clock:
    """Durations by name, run by run, in seconds."""

    def __init__(self) -> None:
        """No run yet."""
        self._runs: list[dict[str, list[float]]] = []

    def new_run(self) -> None:
        """What is timed from now on belongs to another run."""
        self._runs.append({})

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Call, keep the time it took, and return what it returned."""
        started = perf_counter()
        out = call()
        seconds = perf_counter() - started
        self._runs[-1].setdefault(name, []).append(seconds)
        return out

    def put(self, name: str, seconds: Iterable[float]) -> None:
        """Keep times that were taken elsewhere."""
        self._runs[-1].setdefault(name, []).extend(map(float, seconds))

    def by_run(self, name: str, average: Average = np.median) -> npt.NDArray[np.float64]:
        """One value a run, in seconds; runs that did not time `name` are left out."""
        return np.array([average(np.array(run[name])) for run in self._runs if name in run])

    def microseconds(self, name: str, average: Average = np.median) -> Spread:
        """The figure for `name`, in microseconds."""
        return spread(self.by_run(name, average) * 1e6)

    def ratio(self, name: str, base: str, average: Average = np.median) -> Spread:
        """`name` in units of `base`."""
        return spread(self.by_run(name, average) / self.by_run(base, average))

    def excess(self, name: str, other: str, base: str) -> Spread:
        """How much longer than `other` `name` takes, in units of `base`.

        Of both, what was timed in the same turn is compared, so that what slows a run down falls
        on both.
        """
        runs = [
            np.median(np.subtract(run[name], run[other])) / np.median(run[base])
            for run in self._runs
        ]
        return spread(runs)


class Neighbours:
    """How much of the machine others used since this was made, where the system tells."""

    def __init__(self) -> None:
        """Look for the first time."""
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: of the clock, of all cores together, and of this process with its children."""
        own = os.times()
        try:
            first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
        except OSError:
            return own.elapsed, np.nan, np.nan
        user, nice, system, _idle, _wait, irq, softirq, steal = (int(n) for n in first[:8])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return own.elapsed, busy, sum(own[:4])

    def percent(self) -> float | None:
        """Of all cores' time; None where the system does not tell."""
        wall, busy, own = (b - a for a, b in zip(self._before, self._now(), strict=True))
        if np.isnan(busy) or wall <= 0:
            return None
        return round(100 * max(busy - own, 0.0) / (wall * (os.cpu_count() or 1)), 1)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread on one core, where the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def runs_of(
    what: str, cases: Sequence[Case], n_runs: int, one_run: Callable[[Clock, Case, int], None]
) -> Clock:
    """What `one_run` timed of each case, on one core; the cases of a run come in random order."""
    clock, order = Clock(), [*cases]
    with one_core():
        for number in range(n_runs):
            clock.new_run()
            random.Random(number).shuffle(order)
            for case in order:
                one_run(clock, case, number)
            print(f"{what}: run {number + 1} of {n_runs}", flush=True)
    return clock
