"""What recording costs: the same environments stepped with a store behind them and without.

In turns of a few seconds and in one process, so that what else the machine does falls on both. The
loops are those of `mmreplay.record` and `step_only`; the store's making and closing stand apart. A
turn ends in the middle of a tail's half: the seals that it has caused are done by then, and a turn
that records waits for those that are not. The processor time of all threads stands beside the time
by the clock: it tells what recording costs where no core is idle.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import mmreplay
from benchmarks.experience import ENV_IDS, SEED
from benchmarks.results import Result
from benchmarks.scale import Scale
from benchmarks.timing import Clock, spread
from mmreplay.adapters.gymnasium.environments import World, make_world
from mmreplay.adapters.gymnasium.loops import Tally, prepare
from mmreplay.adapters.gymnasium.progress import Meter

__all__ = ["run"]

_LOSS = 1.10
_TURNS = 3


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game, with the codec that is the default."""
    for game in scale.games:
        world = make_world(ENV_IDS[game], scale.envs)
        try:
            _one_game(result, scale, data, game, world)
        finally:
            world.close()


def _one_game(result: Result, scale: Scale, data: Path, game: str, world: World) -> None:
    path = data / f"record-{game}.zarr"
    shutil.rmtree(path, ignore_errors=True)
    loop = prepare(world, None, SEED, life_loss=False)
    clock, steps = Clock(), 0
    fields = world.fields
    started = perf_counter()
    writer = mmreplay.create(path, fields.frame, fields.action, lanes=fields.lanes)
    made_s = perf_counter() - started
    assert isinstance(writer, mmreplay.VectorWriter)
    half = writer.writers[0].specs["frames"].chunk_rows * scale.envs
    turn = max(scale.record_steps // half, 1) * half if scale.record_steps > half else half // 4
    loop.run_plain(half // 4)
    steps += _record(loop, writer, half // 4)
    for number in range(scale.runs):
        clock.new_run()
        for _ in range(_TURNS):
            for with_store in (False, True) if number % 2 else (True, False):
                name = "recorded" if with_store else "plain"
                before, began = process_time(), perf_counter()
                if with_store:
                    steps += _record(loop, writer, turn)
                    _finish_seals(writer)
                else:
                    loop.run_plain(turn)
                clock.put(name, [perf_counter() - began])
                clock.put(f"{name}, processor", [process_time() - before])
        print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
    started = perf_counter()
    writer.close()
    closed_s = perf_counter() - started
    with mmreplay.open(path) as store:
        assert len(store) == steps
    report = mmreplay.verify(path)
    assert not report.findings, report.findings
    shutil.rmtree(path)
    result.details[f"{game} steps a turn"] = turn
    for name, words in (("plain", "nothing recorded"), ("recorded", "recorded")):
        speed = spread(turn / clock.by_run(name))
        result.add(f"{game}: {words}", speed, "steps/s")
    slower = clock.ratio("recorded", "plain")
    result.add(f"{game}: time with a store, by time without", slower, "times", at_most=_LOSS)
    processor = clock.ratio("recorded, processor", "plain, processor")
    result.add(f"{game}: processor time of all threads, the same", processor, "times")
    result.add(f"{game}: making the store", made_s * 1e3, "ms")
    result.add(f"{game}: closing it after {steps:,} steps", closed_s * 1e3, "ms")


def _record(loop: Any, writer: mmreplay.VectorWriter, steps: int) -> int:
    """Transitions recorded."""
    tally = Tally()
    loop.run(writer, steps, tally, Meter(steps, writer.path, None), _never)
    assert tally.steps == steps
    return steps


def _never() -> bool:
    return False


def _finish_seals(writer: mmreplay.VectorWriter) -> None:
    for lane in writer.writers:
        lane._background.submit(_nothing).result()


def _nothing() -> None:
    return
