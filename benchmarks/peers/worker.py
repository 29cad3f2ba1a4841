"""The process of one library: it does what it is told, a line of JSON each, and answers likewise.

``python -m benchmarks.peers.worker NAME SETUP SOURCE``, where SOURCE is a folder of frames, or
the numbers of environments and ticks. What libraries print goes to standard error.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.peers.catalogue import Entry, named
from benchmarks.peers.peer import Peer, Setup
from benchmarks.peers.steps import STACK, Frames, Step, Ticks
from tests.support.processes import memory_group
from tests.support.processes.usage import resident

__all__ = ["Consumer"]

_WARM = 10
"""Calls that are made before times are kept: the first ones compile, or touch new memory."""
_CHECKED = 128


class Consumer:
    """What trains on a batch: a fixed amount of work in one thread, which lets others run."""

    def __init__(self) -> None:
        """Matrices that stay in the cache."""
        rng = np.random.default_rng(0)
        self._a, self._b = rng.standard_normal((2, 128, 128), np.float32)
        self._out = np.empty_like(self._a)

    def work(self, amount: int) -> None:
        """Multiply them so many times."""
        for _ in range(amount):
            np.matmul(self._a, self._b, out=self._out)

    def amount(self, seconds: float) -> int:
        """How much work takes so long on this machine, when nothing else runs."""
        times = []
        for _ in range(50):
            started = perf_counter()
            self.work(20)
            times.append(perf_counter() - started)
        return max(1, round(seconds / (min(times) / 20)))


class _Worker:
    def __init__(self, entry: Entry, setup: Setup, source: Frames | Ticks) -> None:
        self._entry, self._setup, self._source = entry, setup, source
        self._consumer = Consumer()
        self._peer: Peer
        self._done = 0
        self._base: dict[str, int] = {}

    def join(self, group: str) -> None:
        memory_group.join(Path(group))

    def prepare(self) -> None:
        """Import the library, and let it make what it makes once, with a buffer of no use."""
        self._entry.make(self._throwaway())
        gc.collect()
        self._base = resident()

    def make(self) -> float:
        """Make the buffer, or open it if its files are there; milliseconds."""
        started = perf_counter()
        self._peer = self._entry.make(self._setup)
        return (perf_counter() - started) * 1e3

    def _throwaway(self) -> Setup:
        return dataclasses.replace(
            self._setup,
            folder=Path(tempfile.mkdtemp(dir=self._setup.folder.parent, prefix="throwaway-")),
            capacity=max(self._setup.n_envs, 1) * 1024,
            closed=False,
        )

    def fill(self, n: int) -> list[float]:
        """Add the next `n` steps, or ticks; the seconds of each that was not made to warm up."""
        seconds = []
        for call in self._calls(n):
            started = perf_counter()
            call()
            seconds.append(perf_counter() - started)
        return seconds[_WARM:]

    def finish(self) -> None:
        """For what takes whole episodes: nothing more comes."""
        finish: Callable[[], None] | None = getattr(self._peer, "finish", None)
        if finish is not None:
            finish()

    def _calls(self, n: int) -> Any:
        source, start = self._source, self._done
        self._done += n
        if isinstance(source, Ticks):
            for t in range(start, start + n):
                seen, following = source.observations[t : t + 2]
                tick = (seen, following, source.actions[t], source.rewards[t], source.never)
                yield lambda tick=tick: self._peer.extend(tick)
            return
        for block in source.steps(start, start + n):
            for step in block:
                yield lambda step=step: self._peer.append(step)

    def skip(self, n: int) -> None:
        """So many steps were added before, of which the last ones may be lost."""
        self._done = n if self._peer.promise.has_newest else len(self._peer)

    def check(self) -> int:
        """Compare batches with the steps; returns how many transitions there are."""
        for _ in range(4):
            plain = self._peer.plain(self._peer.sample(_CHECKED))
            assert len(plain.action) == _CHECKED
            if isinstance(self._source, Ticks):
                self._source.check(plain)
            else:
                self._source.check(plain, self._peer.promise, self._done)
        return len(self._peer)

    def first(self, n: int) -> float:
        """Milliseconds of the first batch."""
        started = perf_counter()
        self._peer.sample(n)
        return (perf_counter() - started) * 1e3

    def sample(self, n: int, rounds: int, most_s: float) -> list[float]:
        """Seconds of each of so many batches, fewer if that takes too long."""
        seconds: list[float] = []
        self._peer.sample(n)
        until = perf_counter() + most_s
        while len(seconds) < rounds and (len(seconds) < 3 or perf_counter() < until):
            started = perf_counter()
            self._peer.sample(n)
            seconds.append(perf_counter() - started)
        return seconds

    def batches(self, n: int, seconds: float) -> float:
        """Batches a second, over so many seconds after the first."""
        self._peer.sample(n)
        count, started = 0, perf_counter()
        while (taken := perf_counter() - started) < seconds:
            self._peer.sample(n)
            count += 1
        return count / taken

    def loop(self, turns: int, amount: int) -> float:
        """Milliseconds of a turn: four steps added, a batch of 32, and the work on it."""
        steps: list[Step] = []
        assert isinstance(self._source, Frames)
        for block in self._source.steps(self._done, self._done + turns * 4):
            steps += block
        self._done += turns * 4
        append, sample, work = self._peer.append, self._peer.sample, self._consumer.work
        started = perf_counter()
        for turn in range(turns):
            for step in steps[turn * 4 : turn * 4 + 4]:
                append(step)
            sample(32)
            work(amount)
        return (perf_counter() - started) / turns * 1e3

    def memory(self) -> dict[str, int]:
        """Resident bytes, and how many of them came since the buffer was made."""
        gc.collect()
        now = resident()
        return {**now, **{f"{kind}_more": now[kind] - self._base[kind] for kind in now}}

    def save(self) -> float:
        """Seconds."""
        started = perf_counter()
        self._peer.save()
        return perf_counter() - started

    def close(self) -> None:
        close: Callable[[], None] | None = getattr(self._peer, "close", None)
        if close is not None:
            close()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # of libraries about each other
    name, setup, source = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    folder, shape = Path(setup.pop("folder")), tuple(setup.pop("shape"))
    steps: Frames | Ticks = (
        Ticks(*map(int, source.split(","))) if "," in source else Frames(Path(source))
    )
    worker = _Worker(named(name), Setup(folder, shape=shape, **setup), steps)
    assert STACK == 4
    for line in sys.stdin:
        call, arguments = json.loads(line)
        print(json.dumps(getattr(worker, call)(**arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
