"""`sample`, in units of R: one `np.take` of the same frames from RAM into a kept array.

R is timed beside every batch, with that batch's own frames, on the same core. Stacks of 4, batches
of 32 with all their arrays. Three ways a store can have been written: through one writer at the
speed of environments, from eight environments together by `mmreplay.record`, and through one
writer at full speed, which falls back to a quicker compressor. To sample the recording of eight
environments may not take longer than to sample the same with a lane for each of them.

A compressed batch is held against R and the decodes alone of its chunks, by numcodecs into one
array that is kept. They are those of another batch, so that neither finds in the processor's cache
what the other has just left there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import mmreplay
from benchmarks.decodes import Decodes, places
from benchmarks.experience import (
    CODECS,
    ENVIRONMENT_SPEED,
    Layout,
    Tape,
    check_whole,
    one_lane,
    own_lanes,
    read_all,
    read_tape,
    recorded,
)
from benchmarks.naive import check_batch
from benchmarks.peers import installed as peers
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, Spread, one_core, spread
from mmreplay.storage.shard_column import ShardColumn

__all__ = ["run"]

BATCH = 32
LARGE = 256
STACK = 4
# In units of R: raw, lz4 that was sealed in peace, lz4 in haste, zstd.
_BOUNDS = {
    1: {"raw": 2.0, "lz4": 9.0, "haste": 12.0, "zstd": 20.0},
    3: {"raw": 3.0, "lz4": 14.0, "haste": 14.0, "zstd": 24.0},
}
_FRESH = 0.5
_GATHER = 1.3
_DECODES = 1.3
_CHECK_EVERY = 50


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    name: str
    codec: str
    path: Path
    layout: Layout
    in_haste: bool = False


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game after the other: a tape takes most of a gigabyte."""
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        result.details[f"{game} rows"] = len(tape)
        cases = _cases(data, game, tape, scale, result)
        clock = Clock()
        with one_core():
            for number in range(scale.runs):
                clock.new_run()
                _one_run(clock, cases, tape, scale, number)
                print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
        _report(result, clock, game, cases)
        for codec in ("lz4", "raw"):
            _beside_lanes(result, data, game, codec, tape, scale)
        if game == scale.games[0] and peers.is_installed():
            _beside_peer(result, tape, cases[0], scale)


def _cases(data: Path, game: str, tape: Tape, scale: Scale, result: Result) -> list[_Case]:
    cases = []
    for codec in CODECS:
        path, _ = one_lane(data, game, codec, tape, ENVIRONMENT_SPEED)
        cases.append(_Case(f"one writer, {codec}", codec, path, Layout.ONE))
    for codec in CODECS:
        path = recorded(data, game, codec, scale)
        cases.append(_Case(f"{scale.envs} environments, {codec}", codec, path, Layout.VECTOR))
    path, counts = one_lane(data, game, "lz4", tape, None)
    result.details[f"{game} full speed"] = counts
    name = "one writer at full speed, lz4"
    cases.append(_Case(name, "lz4", path, Layout.ONE, in_haste=True))
    return cases


class _Turn:
    """One store with one setting, and R for the batches that it gives."""

    def __init__(self, case: _Case, tape: Tape, data: Any, how: str) -> None:
        self.case, self.tape, self.data, self.how = case, tape, data, how
        self.n_step: int = data.settings.n_step
        self.name = f"{case.name}, n_step {self.n_step}, {how}"
        self.size = LARGE if how == "256" else BATCH
        self.batch = self.data.sample(self.size)
        self.ids, self.random = data.ids, np.random.default_rng(0)
        # Filled with ones: memory that was never touched would be slow the first time.
        self.kept = np.ones((self.size, STACK + 1, *tape.frames.shape[1:]), np.uint8)
        self.gathered = np.ones((self.size, 2 * STACK, *tape.frames.shape[1:]), np.uint8)
        column = self.data.store.live.columns["frames"]
        is_held = how == "kept" and self.n_step == 1 and isinstance(column, ShardColumn)
        self.decodes = Decodes(column) if is_held else None

    def step(self, clock: Clock) -> None:
        """One batch, and what it is held against."""
        if self.how == "fresh":
            self.batch = clock.time(self.name, lambda: self.data.sample(BATCH))
        else:
            clock.time(self.name, lambda: self.data.sample(self.size, out=self.batch))
        if self.how == "256":
            rows = self._gather_rows()
            column = self.data.store.live.columns["frames"]
            clock.time(f"{self.name}, gather", lambda: column.take(rows, self.gathered))
            return
        if self.decodes is not None:
            others = self.random.choice(self.ids, self.size)
            wanted = places(self.data.store, others, np.arange(1 - STACK, 2))
            payloads = self.decodes.payloads(wanted)
            clock.time(f"{self.name}, decodes", lambda: _decode(payloads))
        at = self.tape.places(self.batch.id, self.case.layout)
        rows = self.tape.window(at, STACK - 1, 1)
        frames = self.tape.frames
        # mode="clip": otherwise numpy copies the whole output once more.
        clock.time(f"{self.name}, R", lambda: frames.take(rows, axis=0, out=self.kept, mode="clip"))

    def _gather_rows(self) -> Any:
        """Where the frames lie that an n-step batch reads: two stacks a transition.

        Of other transitions than the batch's, whose frames it has just left in the processor's
        cache.
        """
        ids = self.random.choice(self.ids, self.size)
        steps = self.data.store.live.look(lambda index: index.steps(ids, self.n_step, back=True))
        back = np.arange(1 - STACK, 1)
        stacks = np.broadcast_to(back, (len(ids), STACK)), steps.left[:, None] + back
        return steps.frames(np.concatenate(stacks, 1))

    def check(self) -> None:
        """The batch that is there now."""
        check_batch(self.batch, self.tape, self.case.layout, stack=STACK, n_step=self.n_step)


def _decode(payloads: list[tuple[Any, Any, Any]]) -> None:
    for decompress, payload, room in payloads:
        decompress(payload, room)


def _one_run(clock: Clock, cases: list[_Case], tape: Tape, scale: Scale, number: int) -> None:
    """One store after the other, as a training loop has one, in another order every run."""
    settings = [(case, n_step) for case in cases for n_step in (1, 3)]
    random.Random(number).shuffle(settings)
    for case, n_step in settings:
        opened = mmreplay.load(case.path, stack=STACK, n_step=n_step, seed=n_step)
        with opened:
            if number == 0 and n_step == 1:
                check_whole(opened.store, tape, case.layout)
            else:  # touch every page of the maps, which are this object's own
                read_all(opened.store)
            turns = [_Turn(case, tape, opened, how) for how in ("kept", "fresh")]
            _take_turns(clock, turns, scale.rounds)
            if n_step > 1 and not case.in_haste:
                _take_turns(clock, [_Turn(case, tape, opened, "256")], scale.rounds // 4 + 1)


def _take_turns(clock: Clock, turns: list[_Turn], rounds: int) -> None:
    for number in range(rounds):
        for turn in turns:
            turn.step(clock)
            if number % _CHECK_EVERY == 0 or number == rounds - 1:
                turn.check()


def _report(result: Result, clock: Clock, game: str, cases: list[_Case]) -> None:
    base = _every_r(clock, cases)
    result.add(f"{game}: R", base, "us", note="one np.take of (32, 5) frames from RAM")
    for case in cases:
        for n_step in (1, 3):
            name = f"{case.name}, n_step {n_step}, "
            bound = _BOUNDS[n_step]["haste" if case.in_haste else case.codec]
            kept = clock.ratio(f"{name}kept", f"{name}kept, R")
            result.add(f"{game}: {name}out=", kept, "R", at_most=bound)
            more = clock.excess(f"{name}fresh", f"{name}kept", f"{name}kept, R")
            result.add(f"{game}: {name}without out=, more", more, "R", at_most=_FRESH)
    for case in cases:
        if not case.in_haste:
            name = f"{case.name}, n_step 3, 256"
            ratio = clock.ratio(name, f"{name}, gather")
            what = f"{game}: {case.name}, n_step 3, batch {LARGE}, by the frames' gather alone"
            result.add(what, ratio, "times", at_most=_GATHER)
    for case in cases:
        if case.codec != "raw":
            name = f"{case.name}, n_step 1, kept"
            decodes = f"{name}, decodes"
            alone = clock.by_run(decodes) + clock.by_run(f"{name}, R")
            ratio = spread(clock.by_run(name) / alone)
            what = f"{game}: {case.name}, out=, by its decodes alone + R"
            result.add(what, ratio, "times", at_most=_DECODES)
            us = clock.microseconds(decodes)
            result.add(f"{game}: {case.name}, its decodes alone", us, "us")
    for case in cases:
        us = clock.microseconds(f"{case.name}, n_step 1, kept")
        result.add(f"{game}: {case.name}, n_step 1, a batch", us, "us")


def _every_r(clock: Clock, cases: list[_Case]) -> Spread:
    names = [
        f"{case.name}, n_step {n}, {how}, R"
        for case in cases
        for n in (1, 3)
        for how in ("kept", "fresh")
    ]
    return spread(np.median([clock.by_run(name) for name in names], axis=0) * 1e6)


def _beside_peer(result: Result, tape: Tape, case: _Case, scale: Scale) -> None:
    """Batches of stacks that a peer keeps in RAM, and ours from raw frames on disk, in turns."""
    peer = peers.StackedBuffer(tape, scale.peer_rows, STACK)
    peer.fill(perf_counter)
    clock = Clock()
    with one_core(), mmreplay.load(case.path, stack=STACK) as opened:
        read_all(opened.store)
        for _ in range(scale.runs):
            clock.new_run()
            for _ in range(scale.rounds):
                clock.time("peer", lambda: peer.sample(BATCH))
                clock.time("ours", lambda: opened.sample(BATCH))
    result.add(f"{peers.NAME}.sample({BATCH}), from RAM", clock.microseconds("peer"), "us")
    result.add(f"beside it: {case.name}, without out=", clock.microseconds("ours"), "us")


def _beside_lanes(
    result: Result, data: Path, game: str, codec: str, tape: Tape, scale: Scale
) -> None:
    """The recording of all environments together, and each in a lane of its own, in turns."""
    paths = {
        Layout.VECTOR: recorded(data, game, codec, scale),
        Layout.LANES: own_lanes(data, game, codec, tape),
    }
    clock = Clock()
    with one_core(), contextlib.ExitStack() as stack:
        opened = {
            layout: stack.enter_context(mmreplay.load(path, stack=STACK, seed=0))
            for layout, path in paths.items()
        }
        for layout, one in opened.items():
            check_whole(one.store, tape, layout)
        kept = {layout: one.sample(BATCH) for layout, one in opened.items()}
        for _ in range(scale.runs):
            clock.new_run()
            for turn in range(scale.rounds):
                for layout in sorted(opened, key=lambda one: one.name, reverse=turn % 2 == 1):
                    batch = kept[layout]
                    sample = functools.partial(opened[layout].sample, BATCH, out=batch)
                    clock.time(layout.name, sample)
                    if turn % _CHECK_EVERY == 0:
                        check_batch(batch, tape, layout, stack=STACK)
    what, together, apart = f"{game}: in turns, {codec}", Layout.VECTOR.name, Layout.LANES.name
    result.add(f"{what}, {scale.envs} environments", clock.microseconds(together), "us")
    result.add(f"{what}, {scale.envs} lanes", clock.microseconds(apart), "us")
    name = f"{what}, {scale.envs} environments by {scale.envs} lanes"
    result.add(name, clock.ratio(together, apart), "times", at_most=1.0)
