"""The measurements, in turns between the processes of all libraries.

One process of each library is filled with the same steps; then each of them samples, and trains, in
turns, run by run; then each saves, goes on, and is killed, and a new process opens what is left.
Vectors and limits of memory have processes of their own. What is held against each other with the
least memory takes turns, too, in a new process each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import sizes
from benchmarks.experience import read_tape, recorded
from benchmarks.peers import steps
from benchmarks.peers.catalogue import Entry, entries, named
from benchmarks.peers.ours import can_prefetch
from benchmarks.peers.peer import Setup
from benchmarks.peers.session import Session, SessionError
from benchmarks.peers.steps import OBSERVATION, Frames
from benchmarks.peers.worker import Consumer
from benchmarks.results import Result
from benchmarks.timing import Clock, spread
from mmreplay.system.checked_reads import allocated_bytes
from tests.support.processes import memory_group
from tests.support.processes.memory_group import MemoryGroup

__all__ = ["FULL", "QUICK", "Sizes", "run"]

GAME = "breakout"
BATCHES = (32, 256)
CONSUMERS_MS = (1, 5)
_FRAMES, _VECTORS = "frames", "vectors"
_LEAST_BYTES = 48 << 20
"""With less memory a process could not even work."""
# What is to be shown of mmreplay, by the others.
_RAW_FASTER = 1.7
_RAW_BYTES = 0.25
_LZ4_TIME = 1.0
_LZ4_BYTES = 0.1
_LARGER = {  # with less memory than data, by what, and at least how many times as fast
    ("mmreplay raw", "numpy.memmap, by hand"): 50.0,
    ("mmreplay raw", "preadv, by hand"): 0.9,
    ("mmreplay lz4", "mmreplay lz4"): 0.8,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of everything.

    Attributes:
        name: ``full`` or ``quick``.
        recording: how the game is recorded.
        rows: of the recording that are given to the libraries.
        runs: of everything that is done in turns.
        rounds: batches in a turn.
        turn_s: the longest that a turn of batches takes.
        loop_turns: batches in a turn of a training loop, each with four steps.
        after: steps between the save and the kill.
        n_envs: that give vectors together.
        ticks: steps of all of them.
        ratios: raw frames, in units of the memory that a process may take more.
        limited_s: of sampling with that limit.
        limited_runs: of those that are held against each other with the last ratio.
    """

    name: str
    recording: sizes.Scale
    rows: int
    runs: int
    rounds: int
    turn_s: float
    loop_turns: int
    after: int
    n_envs: int
    ticks: int
    ratios: tuple[float, ...]
    limited_s: float
    limited_runs: int


FULL = Sizes(
    "full",
    sizes.FULL,
    rows=40_000,
    runs=5,
    rounds=200,
    turn_s=0.5,
    loop_turns=50,
    after=500,
    n_envs=256,
    ticks=400,
    ratios=(0.5, 1, 2, 5),
    limited_s=4,
    limited_runs=3,
)
QUICK = Sizes(
    "quick",
    sizes.QUICK,
    rows=800,
    runs=2,
    rounds=10,
    turn_s=0.1,
    loop_turns=5,
    after=20,
    n_envs=256,
    ticks=32,
    ratios=(1,),
    limited_s=0.1,
    limited_runs=1,
)


def run(result: Result, sizes: Sizes, data: Path) -> None:
    """Everything; `data` keeps the recorded game."""
    compared = entries(ahead=can_prefetch())
    source = _source(sizes, data)
    folder = data / "stores"
    shutil.rmtree(folder, ignore_errors=True)
    _Frames(result, sizes, compared, source, folder).run()
    _vectors(result, sizes, compared, folder)
    shutil.rmtree(folder)
    _bounds(result, compared)
    result.details["libraries"] = [one.name for one in compared]


def _source(sizes: Sizes, data: Path) -> Path:
    """The frames of the game, as a file that each process reads."""
    source = data / f"{GAME}-{sizes.rows}"
    if not source.exists():
        path = recorded(data.parent / sizes.recording.name, GAME, "raw", sizes.recording)
        steps.save(source, read_tape(path), sizes.rows)
    return source


class _Frames:
    """All that is measured with frames of which stacks are sampled."""

    def __init__(
        self,
        result: Result,
        sizes: Sizes,
        compared: Sequence[Entry],
        source: Path,
        folder: Path,
    ) -> None:
        self._result, self._sizes, self._compared = result, sizes, compared
        self._source, self._folder = source, folder
        frames = Frames(source)
        self._shape, self._n = frames.shape, len(frames.numbers)
        self._raw_bytes = self._n * int(np.prod(self._shape))
        self._clock = Clock()
        consumer = Consumer()
        self._work = {ms: consumer.amount(ms / 1e3) for ms in CONSUMERS_MS}
        loops = sizes.loop_turns * 4 * len(CONSUMERS_MS) * sizes.runs
        self._filled = self._n - loops - sizes.after

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            sessions = {one.name: stack.enter_context(self._open(one)) for one in self._compared}
            self._fill(sessions)
            for number in range(self._sizes.runs):
                self._clock.new_run()
                self._turns(sessions, number)
                print(f"frames: run {number + 1} of {self._sizes.runs}", flush=True)
            self._report()
            self._keep(sessions)
        for one in self._compared:
            self._resume(one)
        if reason := memory_group.unavailable():
            self._result.details["limits"] = reason
            print(f"no limits of memory: {reason}")
            return
        for one in self._compared:
            self._limits(one)
        self._larger()

    def _setup(self, entry: Entry, *, closed: bool = False, where: str = "") -> Setup:
        folder = self._folder / _folder_of(entry.name + where)
        folder.mkdir(parents=True, exist_ok=True)
        return Setup(folder, self._n, self._shape, closed=closed)

    def _open(self, entry: Entry, **where: Any) -> Session:
        return Session(entry, self._setup(entry, **where), str(self._source))

    def _fill(self, sessions: dict[str, Session]) -> None:
        for one in sessions.values():
            one.tell("prepare")  # all import at the same time
        for one in sessions.values():
            one.answer()
        for name, one in sessions.items():
            one.ask("make")
            seconds = np.array(one.ask("fill", n=self._filled))
            one.ask("finish")
            one.ask("check")
            if one.entry.appends:
                self._result.add(f"{name}: append, median", np.median(seconds) * 1e6, "us")
                self._result.add(f"{name}: append, mean", np.mean(seconds) * 1e6, "us")

    def _turns(self, sessions: dict[str, Session], number: int) -> None:
        order = list(sessions.items())
        random.Random(number).shuffle(order)
        sizes = self._sizes
        for n in BATCHES:
            for name, one in order:
                seconds = one.ask("sample", n=n, rounds=sizes.rounds, most_s=sizes.turn_s)
                self._clock.put(f"{name}: sample {n}", seconds)
        for ms in CONSUMERS_MS:
            for name, one in order:
                if one.entry.appends:
                    taken = one.ask("loop", turns=sizes.loop_turns, amount=self._work[ms])
                    self._clock.put(f"{name}: loop, {ms} ms", [taken])

    def _report(self) -> None:
        add, clock = self._result.add, self._clock
        for one in self._compared:
            for n in BATCHES:
                add(f"{one.name}: sample {n}", clock.microseconds(f"{one.name}: sample {n}"), "us")
            base = f"{self._compared[0].name}: sample 32"
            add(
                f"{one.name}: sample 32, by raw",
                clock.ratio(f"{one.name}: sample 32", base),
                "times",
            )
            for ms in CONSUMERS_MS:
                if one.appends:
                    name = f"{one.name}: loop, {ms} ms"
                    add(name, spread(clock.by_run(name)), "ms")

    def _keep(self, sessions: dict[str, Session]) -> None:
        """Memory; then each is saved, goes on, and is killed."""
        for name, one in sessions.items():
            count = one.ask("check")
            taken = one.ask("memory")
            add = self._result.add
            add(f"{name}: anonymous", taken["anon_more"] / 1e6, "MB")
            add(f"{name}: mapped", taken["file_more"] / 1e6, "MB")
            add(f"{name}: whole process", (taken["anon"] + taken["file"]) / 1e6, "MB")
            if not one.entry.on_disk:
                add(f"{name}: bytes a transition", taken["anon_more"] / count, "B")
            if one.entry.saves:
                add(f"{name}: save", one.ask("save"), "s")
            if one.entry.appends:
                one.ask("fill", n=self._sizes.after)
            one.die()

    def _resume(self, entry: Entry) -> None:
        """A new process opens what the killed one left."""
        written = self._n if entry.appends else self._filled
        add = self._result.add
        with self._open(entry) as one:
            one.ask("prepare")
            add(f"{entry.name}: open", one.ask("make"), "ms")
            add(f"{entry.name}: first batch", one.ask("first", n=32), "ms")
            one.ask("skip", n=written)
            count = one.ask("check")
            add(f"{entry.name}: lost by a kill", written - count, "transitions")
            one.ask("close")
        disk = sum(allocated_bytes(self._setup(entry).folder).values())
        add(f"{entry.name}: disk", disk / 1e6, "MB")
        if entry.on_disk:
            add(f"{entry.name}: bytes a transition", disk / count, "B")

    def _limits(self, entry: Entry) -> None:
        """Sampling while the process may have so much memory; what is in files begins uncached."""
        for ratio in self._sizes.ratios:
            if ratio == self._sizes.ratios[-1] and any(entry.name in pair for pair in _LARGER):
                continue
            rate, note = self._rate(entry, ratio)
            what = f"{entry.name}: limit, {ratio:g} times the memory"
            self._result.add(what, rate, "batches/s", note=note)

    def _larger(self) -> None:
        """Those that are held against each other, with the last ratio, in turns."""
        ratio = self._sizes.ratios[-1]
        names = dict.fromkeys(name for pair in _LARGER for name in pair)
        rates: dict[str, list[float]] = {name: [] for name in [*names, "resident"]}
        notes = dict.fromkeys(rates, "")
        for _ in range(self._sizes.limited_runs):
            for name in names:
                rate, note = self._rate(named(name), ratio)
                rates[name].append(rate)
                notes[name] = note or notes[name]
            rates["resident"].append(self._limited(named("mmreplay lz4"), None))
        add = self._result.add
        for name in names:
            what = f"{name}: limit, {ratio:g} times the memory"
            add(what, spread(rates[name]), "batches/s", note=notes[name])
        for (ours, other), bound in _LARGER.items():
            is_own = ours == other
            base = np.array(rates["resident" if is_own else other])
            if base.all():  # else it was killed
                what = f"{ours}'s batches, data / memory {ratio:g}, by "
                what += "its own with memory for all" if is_own else f"those of {other}"
                add(what, spread(np.array(rates[ours]) / base), "times", at_least=bound)

    def _rate(self, entry: Entry, ratio: float) -> tuple[float, str]:
        """Batches a second, and what a reader should know."""
        try:
            return self._limited(entry, max(int(self._raw_bytes / ratio), _LEAST_BYTES)), ""
        except SessionError as error:  # its own error, where it noticed first
            print(error)
            return 0.0, "killed by the kernel" if error.was_killed else "gave up"

    def _limited(self, entry: Entry, limit: int | None) -> float:
        where = {} if entry.on_disk else {"where": " limited"}
        folder = self._setup(entry, **where).folder
        if not entry.on_disk:
            shutil.rmtree(folder)
        _uncache(folder)
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(MemoryGroup("mmreplay-peers", limit)) if limit else None
            one = stack.enter_context(self._open(entry, closed=entry.on_disk, **where))
            one.ask("prepare")
            if group is not None:
                one.ask("join", group=str(group.path))
            one.ask("make")
            if not entry.on_disk:
                one.ask("fill", n=self._filled)
            rate: float = one.ask("batches", n=32, seconds=self._sizes.limited_s)
        return rate


def _folder_of(name: str) -> str:
    """As a folder."""
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def _uncache(folder: Path) -> None:
    """Let the system forget what it has of these files in memory: others paid for that."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _vectors(result: Result, sizes: Sizes, compared: Sequence[Entry], folder: Path) -> None:
    """Steps of many environments at once, and batches of their vectors."""
    source = f"{sizes.n_envs},{sizes.ticks}"
    capacity = sizes.n_envs * sizes.ticks
    clock = Clock()
    with contextlib.ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for one in compared:
            if one.vectors:
                own = folder / _folder_of(f"{one.name} vectors")
                own.mkdir(parents=True)
                setup = Setup(own, capacity, (OBSERVATION,), n_envs=sizes.n_envs)
                sessions[one.name] = stack.enter_context(Session(one, setup, source))
        for session in sessions.values():
            session.tell("prepare")
        for session in sessions.values():
            session.answer()
        for name, session in sessions.items():
            session.ask("make")
            seconds = np.array(session.ask("fill", n=sizes.ticks))
            session.ask("finish")
            session.ask("check")
            if session.entry.extends:
                result.add(f"{name}: vectors, append 256", np.mean(seconds) * 1e6, "us")
        for number in range(sizes.runs):
            clock.new_run()
            order = list(sessions.items())
            random.Random(number).shuffle(order)
            for n in BATCHES:
                for name, session in order:
                    seconds = session.ask("sample", n=n, rounds=sizes.rounds, most_s=sizes.turn_s)
                    clock.put(f"{name}: vectors, sample {n}", seconds)
            print(f"vectors: run {number + 1} of {sizes.runs}", flush=True)
    for name in sessions:
        for n in BATCHES:
            what = f"{name}: vectors, sample {n}"
            result.add(what, clock.microseconds(what), "us")


def _bounds(result: Result, compared: Sequence[Entry]) -> None:
    """What is to be shown, held against the figures of this run."""
    found = {one.what: one.median for one in result.figures}
    buffers = [one.name for one in compared if one.kind == "buffer"]
    raw, lz4 = "mmreplay raw", "mmreplay lz4"

    def ratio(what: str, one: str, other: str) -> float:
        return found[f"{one}: {what}"] / found[f"{other}: {what}"]

    fastest = min(buffers, key=lambda name: found[f"{name}: sample 32"])
    result.add(
        "the fastest replay buffer's sample 32, by mmreplay raw's",
        ratio("sample 32", fastest, raw),
        "times",
        at_least=_RAW_FASTER,
        note=fastest,
    )
    result.add(
        "mmreplay raw's bytes a transition, by that buffer's",
        ratio("bytes a transition", raw, fastest),
        "times",
        at_most=_RAW_BYTES,
        note=fastest,
    )
    for name in ("cpprb", "TorchRL, memory"):
        result.add(
            f"mmreplay lz4's sample 32, by that of {name}",
            ratio("sample 32", lz4, name),
            "times",
            at_most=_LZ4_TIME,
        )
        result.add(
            f"mmreplay lz4's bytes a transition, by those of {name}",
            ratio("bytes a transition", lz4, name),
            "times",
            at_most=_LZ4_BYTES,
        )
