"""`buffer.step` at full speed, and beside it the `add` of stable-baselines3's ReplayBuffer.

Every step is timed by itself: the median is what a step costs, the mean has the seals in it (the
writer's share of compressing and publishing). Where raw files grow, the machine now and then takes
milliseconds for a fresh page; for raw frames such stalls are cut at 2 ms. The longest stall is
that of very many steps of one buffer, which are gone through as often as it takes.
"""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from benchmarks.experience import CODECS, Layout, Tape, check_whole, read_tape, recorded
from benchmarks.peers import installed as peers
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread

__all__ = ["run"]

STACK = 4
STALL_S = 2e-3
_MEDIAN_US = 6.0
_STALL_MS = 30.0
_MEAN_US = {"raw": 9.0, "lz4": 15.0}

Seconds = npt.NDArray[np.float64]


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every codec and the peer, in turns."""
    game = scale.games[0]
    tape = _cut(read_tape(recorded(data, game, "raw", scale)), scale.append_steps)
    clock = Clock()
    with_peer = peers.is_installed()
    waits: dict[str, list[float]] = {codec: [] for codec in CODECS}
    closes: dict[str, list[float]] = {codec: [] for codec in CODECS}
    for number in range(scale.runs):
        clock.new_run()
        for codec in CODECS:
            path = data / f"append-{codec}.zarr"
            steps, closed_s = _one_run(path, codec, tape, waits, check=number == 0)
            clock.put(codec, steps)
            closes[codec].append(closed_s)
        if with_peer:
            peer = peers.StackedBuffer(tape, scale.peer_rows, STACK)
            clock.put("peer", peer.fill(perf_counter))
            clock.put("peer, full", peer.fill(perf_counter))
            del peer
        print(f"run {number + 1} of {scale.runs}", flush=True)
    result.details["game"] = game
    result.details["steps"] = tape.n_transitions
    for codec in CODECS:
        result.add(f"{codec}: median", clock.microseconds(codec), "us", at_most=_MEDIAN_US)
        bound = _MEAN_US.get(codec)
        if codec == "raw":
            clipped = clock.microseconds(codec, lambda s: np.minimum(s, STALL_S).mean())
            result.add("raw: mean, stalls cut at 2 ms", clipped, "us", at_most=bound)
        plain = clock.microseconds(codec, np.mean)
        result.add(f"{codec}: mean", plain, "us", at_most=None if codec == "raw" else bound)
        for percent in (99, 99.9):
            part = clock.microseconds(codec, functools.partial(np.percentile, q=percent))
            result.add(f"{codec}: {percent} % of the steps take at most", part, "us")
        result.add(f"{codec}: slowest step", spread(clock.by_run(codec, np.max) * 1e3), "ms")
        if codec != "raw":
            note = "steps that had to wait for a shard to be published"
            result.add(f"{codec}: waiting in a run", spread(waits[codec]), "ms", note=note)
        result.add(f"{codec}: close", spread(closes[codec]), "s")
    result.add("fsyncs by the thread that steps", 0, "calls", at_most=0, note="asserted")
    for name, words in (("peer", "its memory fresh"), ("peer, full", "full")) * with_peer:
        what = f"{peers.NAME}.add, {words}"
        result.add(f"{what}: median", clock.microseconds(name), "us")
        result.add(f"{what}: mean", clock.microseconds(name, np.mean), "us")
    slowest_ms = _many_steps(data / "append-many.zarr", tape, scale.stall_steps).max() * 1e3
    what = f"lz4: slowest of {scale.stall_steps:,} steps, no flush timer"
    result.add(what, slowest_ms, "ms", at_most=_STALL_MS)


def _cut(tape: Tape, steps: int) -> Tape:
    """The first `steps` transitions of a tape."""
    transitions = np.cumsum(tape.resets == 0)
    return tape.first(int(transitions.searchsorted(min(steps, transitions[-1]))) + 1)


def _one_run(
    path: Path, codec: str, tape: Tape, waits: dict[str, list[float]], *, check: bool
) -> tuple[Seconds, float]:
    """Seconds of every step, and of the close."""
    shutil.rmtree(path, ignore_errors=True)
    with _watched_syncs() as syncs:
        buffer = _buffer(path, codec, tape)
        syncs.clear()
        began, ended = _steps(buffer, tape)
        assert len(buffer) == len(began)
        during = [one for one in syncs if one[0] == threading.get_ident()]
        assert not during, f"a step called fsync: {during}"
        started = perf_counter()
        buffer.close()
        closed_s = perf_counter() - started
    slow = (ended - began) > 1e-3
    waited = 0.0
    for _, sync_began, sync_ended in syncs:
        both = np.minimum(ended[slow], sync_ended) - np.maximum(began[slow], sync_began)
        waited += float(both[both > 0].sum())
    waits[codec].append(waited * 1e3)
    if check:
        with mmreplay.open(path) as store:
            check_whole(store, tape, Layout.ONE)
    shutil.rmtree(path)
    return ended - began, closed_s


def _buffer(path: Path, codec: str, tape: Tape, **how: Any) -> mmreplay.ReplayBuffer:
    return mmreplay.ReplayBuffer(
        path,
        frame=mmreplay.Field(tape.frames.shape[1:], "uint8", codec),
        action=mmreplay.Field((), "int64"),
        stack=STACK,
        **how,
    )


def _many_steps(path: Path, tape: Tape, n: int) -> Seconds:
    """Seconds of each of so many steps with lz4, flushed by nothing."""
    shutil.rmtree(path, ignore_errors=True)
    seconds = np.empty(0)
    with _buffer(path, "lz4", tape, flush_s=0) as buffer:
        while len(seconds) < n:
            began, ended = _steps(buffer, tape)
            seconds = np.append(seconds, ended - began)
            assert len(buffer) == len(seconds)
    shutil.rmtree(path)
    return seconds[:n]


def _steps(buffer: mmreplay.ReplayBuffer, tape: Tape) -> tuple[Seconds, Seconds]:
    """When every step began and ended."""
    actions, rewards = tape.actions.tolist(), tape.rewards.tolist()
    resets, flags = tape.resets.tolist(), tape.non_terminals.tolist()
    frames, clock = tape.frames, perf_counter
    began, ended = np.zeros(tape.n_transitions), np.zeros(tape.n_transitions)
    step, n = buffer.step, 0
    for row in range(len(tape)):
        frame = frames[row]
        if resets[row]:
            buffer.reset(frame)
            continue
        action, reward, terminated = actions[row - 1], rewards[row - 1], not flags[row - 1]
        start = clock()
        step(action, reward, frame, terminated)
        stop = clock()
        began[n] = start
        ended[n] = stop
        n += 1
    assert n == tape.n_transitions
    return began, ended


@contextmanager
def _watched_syncs() -> Iterator[list[tuple[int, float, float]]]:
    """Every fsync and fdatasync meanwhile: the thread, when it began and when it ended."""
    calls: list[tuple[int, float, float]] = []
    kept = {name: getattr(os, name) for name in ("fsync", "fdatasync") if hasattr(os, name)}

    def watching(sync: Any) -> Any:
        def call(descriptor: int) -> None:
            began = perf_counter()
            sync(descriptor)
            calls.append((threading.get_ident(), began, perf_counter()))

        return call

    for name, sync in kept.items():
        setattr(os, name, watching(sync))
    try:
        yield calls
    finally:
        for name, sync in kept.items():
            setattr(os, name, sync)
