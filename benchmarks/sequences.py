"""`sample_sequences(16, 64)`, in units of what its compressed chunks take to decode, and no more.

The decodes are those of other windows of the same length, so that neither finds in the processor's
cache what the other has just left there; each chunk is decoded once, checksums already checked.
Raw frames are held against one `np.take` of the same number of frames from RAM instead. Drawing
alone is timed on a buffer of short episodes that grows by a step before every draw.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks.decodes import Decodes, places
from benchmarks.experience import (
    ENVIRONMENT_SPEED,
    Layout,
    Tape,
    one_lane,
    read_all,
    read_tape,
    recorded,
)
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core, runs_of
from mmreplay.sampling.draws import Windows, WindowSampler
from mmreplay.storage.shard_column import ShardColumn

__all__ = ["run"]

BATCH = 16
LENGTH = 64
STACK = 4
EPISODES = (5_000, 100_000)
_STEPS = 10  # of each of these episodes
_BOUND = 1.5
_CHECK_EVERY = 50


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    name: str
    path: Path
    layout: Layout
    is_raw: bool


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game after the other, then drawing alone."""
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        cases = _cases(data, game, tape, scale)
        one_run = functools.partial(_one_run, tape=tape, rounds=scale.rounds)
        clock = runs_of(game, cases, scale.runs, one_run)
        for case in sorted(cases, key=lambda one: one.name):
            _report(result, clock, game, case)
    clock = Clock()
    with one_core():
        for _ in range(scale.runs):
            clock.new_run()
            for n_episodes in EPISODES:
                _draw(clock, data, n_episodes, scale.rounds)
    for n_episodes in EPISODES:
        name = f"drawing {BATCH} windows alone, {n_episodes:,} episodes, a new row before each"
        result.add(name, clock.microseconds(str(n_episodes)), "us")


def _cases(data: Path, game: str, tape: Tape, scale: Scale) -> list[_Case]:
    cases = []
    for codec in ("raw", "lz4", "zstd"):
        path, _ = one_lane(data, game, codec, tape, ENVIRONMENT_SPEED)
        cases.append(_Case(f"one writer, {codec}", path, Layout.ONE, codec == "raw"))
    path = recorded(data, game, "lz4", scale)
    cases.append(_Case(f"{scale.envs} environments, lz4", path, Layout.VECTOR, False))
    return cases


def _one_run(clock: Clock, case: _Case, number: int, *, tape: Tape, rounds: int) -> None:
    with mmreplay.load(case.path, stack=STACK, seed=number) as opened:
        read_all(opened.store)
        column = opened.store.live.columns["frames"]
        decodes = Decodes(column) if isinstance(column, ShardColumn) else None
        batch = opened.sample_sequences(BATCH, LENGTH)
        others = mmreplay.load(case.path, stack=STACK, seed=1000 + number)
        room = np.ones((BATCH, LENGTH + STACK, *tape.frames.shape[1:]), np.uint8)
        for turn in range(rounds):
            how = f"{case.name}, out="
            kept = clock.time(how, lambda: opened.sample_sequences(BATCH, LENGTH, out=batch))
            fresh = clock.time(case.name, lambda: opened.sample_sequences(BATCH, LENGTH))
            if turn % _CHECK_EVERY == 0:
                _check(kept, tape, case)
                _check(fresh, tape, case)
            ids = others.sample_sequences(BATCH, LENGTH).id[:, 0]
            if decodes is not None:
                frames = places(others.store, ids, np.arange(1 - STACK, LENGTH + 1))
                alone = functools.partial(_decode, decodes.chunks(frames))
            else:
                rows = tape.window(tape.places(ids, case.layout), STACK - 1, LENGTH)
                alone = functools.partial(tape.frames.take, rows, 0, room, "clip")
            clock.time(f"{case.name}, alone", alone)
        others.close()


def _decode(chunks: list[tuple[Any, int, Any]]) -> None:
    for shard, chunk, room in chunks:
        shard.decode(chunk, room)


def _check(batch: mmreplay.SequenceBatch, tape: Tape, case: _Case) -> None:
    assert batch.mask.all()
    at = tape.places(batch.id, case.layout).reshape(-1)
    rows = tape.window(at, STACK - 1, 1)
    shape = (BATCH, LENGTH, STACK, *tape.frames.shape[1:])
    assert np.array_equal(batch.observation, tape.frames[rows[:, :STACK]].reshape(shape))
    assert np.array_equal(batch.next_observation, tape.frames[rows[:, 1:]].reshape(shape))
    assert np.array_equal(batch.action.reshape(-1), tape.actions[at])
    assert np.array_equal(batch.reward.reshape(-1), tape.rewards[at])


def _report(result: Result, clock: Clock, game: str, case: _Case) -> None:
    base, what = ("np.take", None) if case.is_raw else ("its decodes alone", _BOUND)
    alone = f"{case.name}, alone"
    name = f"{game}: {case.name}"
    result.add(f"{name}, out=", clock.microseconds(f"{case.name}, out="), "us")
    result.add(f"{name}, {base}", clock.microseconds(alone), "us")
    ratio = clock.ratio(f"{case.name}, out=", alone)
    result.add(f"{name}, out=, by {base}", ratio, "times", at_most=what)
    ratio = clock.ratio(case.name, alone)
    result.add(f"{name}, without out=, by {base}", ratio, "times")


def _draw(clock: Clock, data: Path, n_episodes: int, rounds: int) -> None:
    """Of a store that is written while it is sampled: the index is another one every time."""
    path, frame, draws = data / "draws.zarr", np.zeros(1, np.uint8), np.random.default_rng(0)
    shutil.rmtree(path, ignore_errors=True)
    sampler, numbers = WindowSampler(Windows(_STEPS // 2)), draws.random(BATCH)
    fields = {"frame": mmreplay.Field((1,)), "action": mmreplay.Field((), "int64")}
    with mmreplay.ReplayBuffer(path, **fields, flush_s=0) as buffer:
        look = buffer.store.live.look
        for step in range(n_episodes * _STEPS + rounds):
            if step % _STEPS == 0:
                buffer.reset(frame)
            buffer.step(0, 0.0, frame, step % _STEPS == _STEPS - 1)
            if step >= n_episodes * _STEPS:
                assert look(lambda index: index.n_transitions) == step + 1
                call = functools.partial(look, lambda index: sampler.draw(index, numbers))
                ids = clock.time(str(n_episodes), call)
                assert np.isin([ids, ids + _STEPS // 2 - 1], buffer.ids).all()
    shutil.rmtree(path)
