"""Import, `step`, batches, an epoch and `open` beside those of an earlier commit, in turns.

The earlier commit is the last one with a kind of lane for many environments beside that for one.
Its package is taken out of the repository. A fresh process of each takes turns with the other,
a fiftieth of a second each, and a ratio is that of two neighbouring slices: a machine that others
use changes its speed from one second to the next.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experience import read_tape, recorded, saved_frames
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import spread

__all__ = ["run"]

ROOT = Path(__file__).parent.parent
_BOUND = 1.03
# One kind of lane has less to look up for many environments, and for vectors nearly all is that.
_MANY, _MANY_STEP = 0.95, 1.1


def _at_most(what: str) -> float:
    """How much of the time before may be taken."""
    if "environments" in what:
        return _MANY_STEP if what.startswith("step") else _MANY
    return _MANY if "floats" in what and not what.startswith("step") else _BOUND


def run(result: Result, scale: Scale, data: Path) -> None:
    """Pairs of processes."""
    game = scale.games[0]
    tape = read_tape(recorded(data, game, "raw", scale))
    frames = saved_frames(data, game, tape)
    earlier = data / "before"
    _take_out(scale.before, earlier)
    result.details["commit"] = scale.before
    sides = {"before": earlier, "now": ROOT}
    runs: list[dict[str, tuple[float, float, float]]] = []
    for number in range(scale.pairs):
        paths = {side: data / f"pace-{side}.zarr" for side in sides}
        arguments = {side: [sides[side], paths[side], frames, scale.pace_steps] for side in sides}
        runs.append(_run(arguments))
        print(f"pair {number + 1} of {scale.pairs}", flush=True)
    for what in runs[0]:
        before, now, ratio = (spread([run[what][i] for run in runs]) for i in range(3))
        result.add(f"{what}, before", before, "us")
        result.add(f"{what}, now", now, "us")
        result.add(f"{what}, now by before", ratio, "times", at_most=_at_most(what))


def _run(arguments: dict[str, list[Any]]) -> dict[str, tuple[float, float, float]]:
    """Medians over the slices of a pair of processes: before, now, and now by before."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for side, given in arguments.items():
            command = [sys.executable, "-m", "benchmarks.pace", *map(str, given)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # an import compiles nothing
            )
            processes[side] = stack.enter_context(process)
        slices: dict[str, list[dict[str, float]]] = {}
        cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
        while True:
            core = next(cores)  # one for both, as neighbours may use one more than another
            for process in processes.values():
                os.sched_setaffinity(process.pid, {core})
            taken = {side: _slice(process) for side, process in processes.items()}
            if taken["now"] is None:
                break
            what = taken["now"][0]
            slices.setdefault(what, []).append({side: one[1] for side, one in taken.items()})
            processes = dict(reversed(processes.items()))
    return {what: _medians(one) for what, one in slices.items()}


def _slice(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def _medians(slices: list[dict[str, float]]) -> tuple[float, float, float]:
    before, now = (np.array([one[side] for one in slices]) for side in ("before", "now"))
    return float(np.median(before)), float(np.median(now)), float(np.median(now / before))


def _take_out(commit: str, target: Path) -> None:
    """The package as it was at a commit."""
    command = ["git", "archive", commit, "mmreplay"]
    packed = subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(target, filter="data")
