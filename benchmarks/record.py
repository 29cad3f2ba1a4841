"""What recording costs: the same environments stepped with a store behind them and without.

In turns, so that what else the machine does falls on both. The seconds with a store have its
closing in them. The processor time of all threads stands beside the time by the clock: it tells
what recording costs where no core is idle.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import process_time

import mmreplay
from benchmarks.experience import ENV_IDS
from benchmarks.results import Result
from benchmarks.scale import Scale
from benchmarks.timing import Spread, spread
from mmreplay.adapters.gymnasium import step_only

__all__ = ["run"]

_LOSS = 10.0


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game, with the codec that is the default."""
    for game in scale.games:
        clocks: dict[bool, list[float]] = {False: [], True: []}
        processors: dict[bool, list[float]] = {False: [], True: []}
        for number in range(scale.runs):
            for with_store in (False, True) if number % 2 else (True, False):
                before = process_time()
                clocks[with_store].append(_run(data, game, scale, number, with_store=with_store))
                processors[with_store].append(process_time() - before)
            print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
        for with_store, words in ((False, "nothing recorded"), (True, "recorded")):
            speed = spread([scale.record_steps / s for s in clocks[with_store]])
            result.add(f"{game}: {words}", speed, "steps/s")
        lost = _lost(clocks)
        note = "medians compared; lowest and highest of the pairs"
        what = f"{game}: speed lost to recording"
        result.add(what, lost, "%", at_most=_LOSS, note=note)
        result.add(f"{game}: processor time of all threads, share of it", _lost(processors), "%")


def _lost(seconds: dict[bool, list[float]]) -> Spread:
    """How much of the time with a store is not in the time without, in percent."""
    pairs = [100 * (1 - a / b) for a, b in zip(seconds[False], seconds[True], strict=True)]
    medians = 100 * (1 - spread(seconds[False]).median / spread(seconds[True]).median)
    return Spread(medians, min(pairs), max(pairs), len(pairs))


def _run(data: Path, game: str, scale: Scale, seed: int, *, with_store: bool) -> float:
    """Seconds."""
    steps, envs = scale.record_steps, scale.envs
    if not with_store:
        return step_only(ENV_IDS[game], steps, envs=envs, seed=seed)
    path = data / f"record-{game}.zarr"
    shutil.rmtree(path, ignore_errors=True)
    done = mmreplay.record(ENV_IDS[game], path, steps, envs=envs, seed=seed)
    with mmreplay.open(path) as store:
        assert len(store) == steps == done.steps
    shutil.rmtree(path)
    return done.seconds
