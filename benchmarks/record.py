"""What recording costs: the same environments stepped with a store behind them and without.

In turns of a few seconds and in one process, so that what else the machine does falls on both; the
two of a pair play the same games. One loop is that of `mmreplay.record`, the other writes nothing;
the store is made and closed outside of both. A turn ends in the middle of a half of a tail: the
seals that it has caused are done by then, and a turn that records waits for those that are not. The
processor time of all threads stands beside the time by the clock: it tells what recording costs
where no core is idle.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from time import perf_counter, process_time

from gymnasium.vector import VectorEnv

import mmreplay
from benchmarks.experience import ENV_IDS, SEED
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, spread
from mmreplay.recording.autoreset import StepReader
from mmreplay.recording.environments import World, make_world
from mmreplay.recording.policies import Actor
from mmreplay.recording.progress import Meter
from mmreplay.recording.recorder import Loop
from mmreplay.writing.env_fields import spaces_of

__all__ = ["run"]

_LOST = 6.0
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
    clock, steps = Clock(), 0
    fields = world.fields
    started = perf_counter()
    writer = mmreplay.create(path, fields.frame, fields.action, lanes=fields.lanes)
    made_s = perf_counter() - started
    assert isinstance(writer, mmreplay.VectorWriter)
    half = writer.files.rows.specs["frames"].chunk_rows * scale.envs
    turn = scale.record_steps // half * half or scale.record_steps
    seeds = itertools.count(SEED, scale.envs)
    # To warm up, and so that the turns begin in the middle of a half.
    steps += _record(_loop(world, next(seeds)), writer, min(half // 2, turn))
    _Plain(world, next(seeds)).run(turn // 2)
    for number in range(scale.runs):
        clock.new_run()
        for _ in range(_TURNS):
            seed = next(seeds)
            for with_store in (False, True) if number % 2 else (True, False):
                name = "recorded" if with_store else "plain"
                loop = _loop(world, seed) if with_store else _Plain(world, seed)
                before, began = process_time(), perf_counter()
                if isinstance(loop, Loop):
                    steps += _record(loop, writer, turn)
                    _finish_seals(writer)
                else:
                    loop.run(turn)
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
    lost = 100 * (1 - clock.by_run("plain") / clock.by_run("recorded"))
    result.add(f"{game}: speed lost to recording", spread(lost), "%", at_most=_LOST)
    more = 100 * (clock.by_run("recorded, processor") / clock.by_run("plain, processor") - 1)
    result.add(f"{game}: more processor time, of all threads", spread(more), "%")
    result.add(f"{game}: making the store", made_s * 1e3, "ms")
    note = f"after {steps:,} steps"
    result.add(f"{game}: closing it", closed_s * 1e3, "ms", note=note)


def _loop(world: World, seed: int) -> Loop:
    """One whose environments were all reset: a recording cannot begin while one of them waits."""
    return Loop(world, None, seed, life_loss=False)


class _Plain:
    """The same games with the same actions, of which nothing is recorded."""

    def __init__(self, world: World, seed: int) -> None:
        env = self._env = world.env
        assert isinstance(env, VectorEnv)
        self._reader = StepReader(env, world.fields)
        self._actor = Actor(None, *spaces_of(env), seed, world.n_envs)
        observations, _ = env.reset(seed=seed)
        self._actions = self._actor.act(observations, None)

    def run(self, steps: int) -> None:
        """Make at least so many steps."""
        env, reader, actor, actions = self._env, self._reader, self._actor, self._actions
        for _ in range(0, steps, len(actions)):
            result = env.step(actions)
            step = reader.read(*result)
            actions = actor.act(result[0], step.ignored)


def _record(loop: Loop, writer: mmreplay.VectorWriter, steps: int) -> int:
    """Transitions recorded."""
    meter = Meter(steps, writer.path, None)
    loop.run(writer, steps, meter)
    assert meter.steps == steps
    return steps


def _finish_seals(writer: mmreplay.VectorWriter) -> None:
    writer._background.finish_tasks()
