"""Stores of hundreds of millions of rows: opening, looking, sampling, priorities, appending.

They hold the same recorded steps again and again, and are in the page cache. Long and short ones
are sampled in turns, in one process, and both have been sampled for a while before: what is
compared is the time of a batch that needs chunks nobody has read yet with that of one whose chunks
have been.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks import fresh
from benchmarks.experience import Tape, play, read_tape, recorded
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core, spread

__all__ = ["run"]

BATCH = 32
_STACK = 4
_SHORT_TIMES = 8
_OPEN_S, _RESIDENT_MB, _SAMPLE, _PRIORITIES, _INFO_S = 2.0, 300.0, 1.5, 2.0, 1.0
_APPENDED = 2_000
_FEW = 65_536  # rows of a lane that needs shorter chunk files


def run(result: Result, scale: Scale, data: Path) -> None:
    """Stores of few and of many rows, then priorities, then a writer."""
    game = scale.games[0]
    tape = read_tape(recorded(data, game, "raw", scale))
    folder = data / "long"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    short = _repeated(tape, folder, _SHORT_TIMES, scale)
    long = _repeated(tape, folder, scale.long_times, scale)
    times = scale.long_times // scale.long_lanes
    stores = [_repeated(tape, folder / str(n), times, scale) for n in range(scale.long_lanes)]
    rows = scale.base_rows * np.array([_SHORT_TIMES, scale.long_times, times * len(stores)])
    cases = {
        f"{rows[0]:,} rows": [short],
        f"{rows[1]:,} rows": [long],
        f"{rows[2]:,} rows in {len(stores)} stores": stores,
    }
    for name, paths in cases.items():
        _looked_at(result, name, paths, scale)
    _sampled(result, cases, scale)
    _prioritized(result, tape, folder, scale)
    _appended(result, {name: paths[0] for name, paths in itertools.islice(cases.items(), 2)}, tape)
    shutil.rmtree(folder)


def _write(path: Path, tape: Tape, scale: Scale, times: int) -> None:
    """A lane that holds the first rows of the tape so many times over."""
    frame = mmreplay.Field(tape.frames.shape[1:], "uint8", "lz4")
    action = mmreplay.Field((), "int64")
    if scale.base_rows < _FEW:
        frame = mmreplay.Field(frame.shape, "uint8", "lz4", 16, 256)
        action = mmreplay.Field((), "int64", chunk=scale.base_rows // 2)
    with mmreplay.create(path, frame, action) as writer:
        for _ in range(times):
            play(tape, writer, 0, scale.base_rows)


def _repeated(tape: Tape, folder: Path, times: int, scale: Scale) -> Path:
    path = folder / f"{times}-times.zarr"
    folder.mkdir(exist_ok=True)
    _write(path, tape, scale, times)
    return path


def _looked_at(result: Result, name: str, paths: list[Path], scale: Scale) -> None:
    """In a fresh process each time; the first one brings the indexes into the page cache."""
    call = functools.partial(
        fresh.call,
        "long_open",
        path=[str(path) for path in paths],
        batch=BATCH,
        batches=scale.long_batches,
    )
    call()
    taken = [call() for _ in range(min(scale.opened, 5))]
    is_long = name.partition(" ")[0] != f"{scale.base_rows * _SHORT_TIMES:,}"
    for what, bound in (
        ("open", _OPEN_S),
        ("first batch", None),
        ("first windows", None),
        ("episodes", None),
        ("a trajectory", None),
    ):
        seconds = spread([one[what] for one in taken])
        result.add(f"{name}: {what}", seconds, "s", at_most=bound if is_long else None)
    resident = spread([one["resident"] / 1e6 for one in taken])
    bound = _RESIDENT_MB if is_long else None
    result.add(f"{name}: more resident, opened", resident, "MB", at_most=bound)
    own = spread([one["anon"] / 1e6 for one in taken])
    what = f"more of its own after {scale.long_batches} batches"
    result.add(f"{name}: {what}", own, "MB", at_most=bound)
    result.add(f"{name}: maps", spread([one["maps"] for one in taken]), "")
    result.add(f"{name}: descriptors", spread([one["descriptors"] for one in taken]), "")
    if len(paths) > 1:
        return
    command = [sys.executable, "-m", "mmreplay_cli", "info", str(paths[0])]
    shown = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        shown.append(time.perf_counter() - started)
        assert f"{taken[0]['transitions']:,} in" in done.stdout
    bound = _INFO_S if is_long else None
    result.add(f"{name}: mmreplay info", spread(shown), "s", at_most=bound)


def _sampled(result: Result, cases: dict[str, list[Path]], scale: Scale) -> None:
    opened = {name: mmreplay.load(paths, stack=_STACK) for name, paths in cases.items()}
    clock = _in_turns(opened, scale)
    for data in opened.values():
        data.close()
    first = next(iter(cases))
    for name in cases:
        result.add(f"{name}: a batch of {BATCH}", clock.microseconds(name), "us")
        if name != first:
            ratio = clock.ratio(name, first)
            result.add(
                f"long by short: a batch of {BATCH}, {name}", ratio, "times", at_most=_SAMPLE
            )


def _in_turns(opened: Mapping[str, mmreplay.Dataset], scale: Scale) -> Clock:
    """Batches of each, once it has been sampled for a while."""
    clock = Clock()
    kept = {name: data.sample(BATCH) for name, data in opened.items()}
    first = next(iter(opened))
    with one_core():
        for name, data in opened.items():
            for _ in range(scale.long_batches * 3):
                data.sample(BATCH, out=kept[name])
        for _ in range(scale.runs):
            clock.new_run()
            for turn in range(scale.long_batches // 2):
                for name, data in opened.items():
                    batch = clock.time(name, functools.partial(data.sample, BATCH, out=kept[name]))
                    if turn % 50 == 0:
                        _check(batch, opened[first])
    return clock


def _check(batch: mmreplay.Batch, short: mmreplay.Dataset) -> None:
    """All rows are those of the base, again and again."""
    ids = (batch.id & ((1 << 40) - 1)) % (len(short) // _SHORT_TIMES)
    expected = short.transitions(ids)
    for one in ("observation", "next_observation", "action", "reward"):
        assert np.array_equal(getattr(batch, one), getattr(expected, one)), one


def _prioritized(result: Result, tape: Tape, folder: Path, scale: Scale) -> None:
    buffers: dict[str, mmreplay.PrioritizedReplayBuffer] = {}
    for times in (_SHORT_TIMES, scale.prioritized_times):
        path = _repeated(tape, folder / "prioritized", times, scale)
        started = time.perf_counter()
        name = f"{times * scale.base_rows:,} rows"
        buffers[name] = mmreplay.PrioritizedReplayBuffer(path, stack=_STACK, flush_s=0)
        result.add(f"{name}: first opening with priorities", time.perf_counter() - started, "s")
    clock, random = Clock(), np.random.default_rng(0)
    with one_core():
        for _ in range(scale.runs):
            clock.new_run()
            for _ in range(scale.long_batches):
                for name, buffer in buffers.items():
                    ids = clock.time(f"{name}, draw", functools.partial(_draw, buffer))
                    errors = random.random(BATCH)
                    clock.time(
                        f"{name}, update",
                        functools.partial(buffer.update_priorities, ids, errors),
                    )
    batches = _in_turns(buffers, scale)
    for buffer in buffers.values():
        buffer.close()
    short, long = buffers
    for name in buffers:
        result.add(f"{name}: by priority, a batch of {BATCH}", batches.microseconds(name), "us")
    ratio = batches.ratio(long, short)
    what = f"long by short: by priority, a batch of {BATCH}"
    result.add(what, ratio, "times", at_most=_PRIORITIES)
    for what in ("draw", "update"):
        text = {"draw": f"ids and weights of {BATCH}", "update": f"update of {BATCH}"}[what]
        for name in buffers:
            result.add(f"{name}: by priority, {text}", clock.microseconds(f"{name}, {what}"), "us")
        ratio = clock.ratio(f"{long}, {what}", f"{short}, {what}")
        result.add(f"long by short: by priority, {text}", ratio, "times", at_most=_PRIORITIES)


def _draw(buffer: mmreplay.PrioritizedReplayBuffer) -> Any:
    draws, sampler = buffer.generator.random(BATCH), buffer.sampler

    def draw(index: Any) -> Any:
        ids, probabilities = sampler.draw(index, draws)
        sampler.weights(probabilities)(0.4)
        return ids

    return buffer.store.live.look(draw)


def _appended(result: Result, paths: dict[str, Path], tape: Tape) -> None:
    """A writer goes on with each; its files are shared, and none of them is written into."""
    clock = Clock()
    buffers = {}
    for name, path in paths.items():
        started = time.perf_counter()
        buffers[name] = mmreplay.ReplayBuffer(path, flush_s=0)
        result.add(f"{name}: open as ReplayBuffer", time.perf_counter() - started, "s")
        buffers[name].reset(tape.frames[0])
    clock.new_run()
    with one_core():
        for row in range(1, min(_APPENDED, len(tape))):
            for name, buffer in buffers.items():
                clock.time(name, functools.partial(buffer.step, 0, 0.0, tape.frames[row]))
    short, long = paths
    for name, buffer in buffers.items():
        buffer.close()
        result.add(f"{name}: a step", clock.microseconds(name), "us")
    result.add("long by short: a step", clock.ratio(long, short), "times")
