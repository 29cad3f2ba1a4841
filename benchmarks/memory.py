"""Resident memory while recording and while sampling: it does not grow.

Each in a fresh process that looks at itself 41 times. Anonymous memory is the process's own; what
is mapped from files is page cache, which the system takes back when it needs it, and for raw frames
it comes with the pages that are read. Growth is counted from a quarter of the way, after
everything has been touched once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fresh
from benchmarks.experience import CODECS, ENV_IDS, read_tape, recorded, saved_frames
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Spread

__all__ = ["run"]

BATCH = 32
_GROWTH_MB = 16.0
"""What counts as no growth: the allocator's own ups and downs, beside hundreds of megabytes."""


def run(result: Result, scale: Scale, data: Path) -> None:
    """Recording, sampling, and a training loop that does both."""
    game = scale.games[0]
    tape = read_tape(recorded(data, game, "raw", scale))
    frames = saved_frames(data, game, tape)
    del tape
    path = data / f"memory-{game}.zarr"
    for codec in ("lz4", "raw"):
        shutil.rmtree(path, ignore_errors=True)
        taken = fresh.call(
            "record",
            path=path,
            env=ENV_IDS[game],
            steps=scale.memory_steps,
            envs=scale.envs,
            codec=codec,
        )
        _report(result, f"recording {scale.memory_steps:,} steps, {codec}", taken)
        shutil.rmtree(path)
    for codec in CODECS:
        there = recorded(data, game, codec, scale)
        taken = fresh.call("sample", path=there, batches=scale.memory_batches, batch=BATCH)
        _report(result, f"sampling {scale.memory_batches:,} batches, {codec}", taken)
    for codec in ("lz4", "raw"):
        taken = fresh.call(
            "train",
            path=path,
            frames=frames,
            steps=scale.memory_steps,
            capacity=scale.memory_steps // 4,
            codec=codec,
        )
        _report(result, f"a buffer that evicts, {scale.memory_steps:,} steps, {codec}", taken)
        shutil.rmtree(path)


def _report(result: Result, what: str, out: dict[str, Any]) -> None:
    taken = out["taken"]
    result.details[what] = taken
    settled = taken[len(taken) // 4 :]
    for kind, words in (("anon", "anonymous"), ("file", "mapped files")):
        values = [one[kind] / 1e6 for one in settled]
        ends = Spread(values[-1], min(values), max(values), 1)
        note = f"{taken[0][kind] / 1e6:.0f} at the start, {values[0]:.0f} after a quarter"
        result.add(f"{what}: {words} at the end", ends, "MB", note=note)
    totals = [(one["anon"] + one["file"]) / 1e6 for one in settled]
    result.add(f"{what}: growth", _growth(totals), "MB", at_most=_GROWTH_MB)
    own = _growth([one["anon"] / 1e6 for one in settled])
    result.add(f"{what}: growth of anonymous memory", own, "MB")
    result.add(f"{what}: peak", max(totals), "MB")


def _growth(looks: list[float]) -> float:
    """From the first half to the second one, by their medians.

    A single look may fall on a moment when all columns map their next files.
    """
    half = max(1, len(looks) // 2)
    return float(np.median(looks[-half:]) - np.median(looks[:half]))
