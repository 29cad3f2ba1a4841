"""What recording costs: the same environments stepped with a store behind them and without.

In turns, so that what else the machine does falls on both. The seconds with a store have its
closing in them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

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
        plain_s, recorded_s = [], []
        for number in range(scale.runs):
            turns = [False, True] if number % 2 else [True, False]
            for with_store in turns:
                if with_store:
                    recorded_s.append(_record(data, game, scale, seed=number))
                else:
                    seconds = step_only(
                        ENV_IDS[game], scale.record_steps, envs=scale.envs, seed=number
                    )
                    plain_s.append(seconds)
            print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
        steps = scale.record_steps
        speeds = [spread([steps / s for s in seconds]) for seconds in (plain_s, recorded_s)]
        result.add(f"{game}: nothing recorded", speeds[0], "steps/s")
        result.add(f"{game}: recorded", speeds[1], "steps/s")
        pairs = [100 * (1 - a / b) for a, b in zip(plain_s, recorded_s, strict=True)]
        low, high = min(pairs), max(pairs)
        loss = 100 * (1 - speeds[1].median / speeds[0].median)
        result.add(
            f"{game}: speed lost to recording",
            Spread(loss, low, high, scale.runs),
            "%",
            at_most=_LOSS,
            note="of the medians; lowest and highest of the pairs",
        )


def _record(data: Path, game: str, scale: Scale, seed: int) -> float:
    path = data / f"record-{game}.zarr"
    shutil.rmtree(path, ignore_errors=True)
    done = mmreplay.record(ENV_IDS[game], path, scale.record_steps, envs=scale.envs, seed=seed)
    with mmreplay.open(path) as store:
        assert len(store) == scale.record_steps == done.steps
    shutil.rmtree(path)
    return done.seconds
