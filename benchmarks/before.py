"""Import, `step`, batches, an epoch and `open` beside those of an earlier commit, in turns.

The earlier commit is the last one with a kind of lane for many environments beside that for one.
Its package is taken out of the repository, and each of the two is timed in fresh processes, one
after the other, the order turned round each time. A ratio is taken within each pair.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from benchmarks import fresh
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
    pairs: list[dict[str, dict[str, float]]] = []
    store = data / "pace.zarr"
    for number in range(scale.pairs):
        pair = {}
        for side in sorted(sides, reverse=number % 2 == 1):
            arguments = {"root": sides[side], "path": store, "frames": frames}
            pair[side] = fresh.call("pace", **arguments, steps=scale.pace_steps)
            shutil.rmtree(store, ignore_errors=True)
        pairs.append(pair)
        print(f"pair {number + 1} of {scale.pairs}", flush=True)
    for what in pairs[0]["now"]:
        for side in sides:
            result.add(f"{what}, {side}", spread([one[side][what] for one in pairs]), "us")
        ratios = spread([one["now"][what] / one["before"][what] for one in pairs])
        result.add(f"{what}, now by before", ratios, "times", at_most=_at_most(what))


def _take_out(commit: str, target: Path) -> None:
    """The package as it was at a commit."""
    command = ["git", "archive", commit, "mmreplay"]
    packed = subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(target, filter="data")
