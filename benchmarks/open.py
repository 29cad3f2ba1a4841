"""Opening a store: closed, and live after its writer was killed; each time in a fresh process.

The page cache is warm. Importing is no part of it and stands apart. Before each opening of the
live store its writer has appended 9,000 steps, more than a tail holds, and has killed itself with
SIGKILL.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks import fresh
from benchmarks.experience import (
    SAVED_FRAMES,
    Tape,
    read_tape,
    recorded,
    repeated,
    saved_frames,
)
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Spread, spread

__all__ = ["run"]

BATCH = 32
_CLOSED_MS = 100.0
_CLOSED_MB = 60.0
_WRITTEN_MS = 300.0  # closed by its last writer, or killed with him
_APPENDED = 9_000


def run(result: Result, scale: Scale, data: Path) -> None:
    """Stores of a million rows."""
    game, rows = scale.games[0], scale.open_rows
    tape = read_tape(recorded(data, game, "raw", scale))
    stores = {
        "lz4, one lane": repeated(data, game, "lz4", tape, rows, 1),
        f"lz4, {scale.envs} environments": repeated(data, game, "lz4", tape, rows, scale.envs),
        "raw, one lane": repeated(data, game, "raw", tape, rows, 1),
    }
    result.details["rows"] = rows
    imports: list[dict[str, Any]] = []
    for name, path in stores.items():
        imports += _closed(result, name, path, scale)
    result.add("import numpy", spread([one["numpy_ms"] for one in imports]), "ms")
    result.add("import mmreplay after that", spread([one["import_ms"] for one in imports]), "ms")
    frames = saved_frames(data, game, tape)
    for name, path in stores.items():
        if not name.startswith("raw"):
            _killed(result, name, path, frames, tape, scale)


def _megabytes(taken: list[dict[str, Any]], after: str) -> Spread:
    """How much more was resident than before."""
    return spread([(sum(one[after].values()) - sum(one["before"].values())) / 1e6 for one in taken])


def _closed(result: Result, name: str, path: Path, scale: Scale) -> list[dict[str, Any]]:
    fresh.call("load", path=path, batch=BATCH)  # brings what it reads into the page cache
    taken = [fresh.call("load", path=path, batch=BATCH) for _ in range(scale.opened)]
    assert len({one["rows"] for one in taken}) == 1
    opened = spread([one["open_ms"] for one in taken])
    result.add(f"closed, {name}: open", opened, "ms", at_most=_CLOSED_MS)
    result.add(
        f"closed, {name}: more resident", _megabytes(taken, "opened"), "MB", at_most=_CLOSED_MB
    )
    result.add(f"closed, {name}: first batch", spread([one["sample_ms"] for one in taken]), "ms")
    result.add(f"closed, {name}: more resident after it", _megabytes(taken, "sampled"), "MB")
    written = [fresh.call("reopen", path=path)["open_ms"] for _ in range(scale.opened)]
    result.add(f"closed, {name}: open as ReplayBuffer", spread(written), "ms", at_most=_WRITTEN_MS)
    return taken


def _killed(result: Result, name: str, path: Path, frames: Path, tape: Tape, scale: Scale) -> None:
    live = path.with_name("killed-" + path.name)
    shutil.rmtree(live, ignore_errors=True)
    shutil.copytree(path, live)
    n_envs = 1 if "one lane" in name else scale.envs
    steps = max(2, min(_APPENDED, scale.open_rows) // n_envs)
    arguments = {"path": live, "frames": frames, "steps": steps}
    died = fresh.die("write_and_die", **arguments)
    reading, writing = [], []
    for _ in range(scale.opened):
        before = died
        one = fresh.call("load", path=live, batch=BATCH)
        assert (one["rows"], one["transitions"]) == (before["rows"], before["transitions"])
        _check_newest(live, tape, steps, n_envs)
        reading.append(one)
        died = fresh.die("write_and_die", **arguments)
        assert died["transitions"] == before["transitions"] + steps * n_envs
        writing.append(died)
    note = "recovers it"
    for how, taken in (("for reading", reading), (f"as ReplayBuffer, which {note}", writing)):
        times = spread([one["open_ms"] for one in taken])
        result.add(f"killed, {name}: open {how}", times, "ms", at_most=_WRITTEN_MS)
        result.add(
            f"killed, {name}: more resident, opened {how}", _megabytes(taken, "opened"), "MB"
        )
    shutil.rmtree(live)


def _check_newest(path: Path, tape: Tape, steps: int, n_envs: int) -> None:
    """The steps that were committed just before the kill."""
    source = tape.frames[:SAVED_FRAMES]
    newest = np.arange(max(1, steps - 50), steps + 1).repeat(n_envs)
    with mmreplay.open(path) as store:
        batch = store.transitions(store.ids[-len(newest) :], stack=None)
    assert np.array_equal(batch.next_observation, source[newest % len(source)])
    assert np.array_equal(batch.reward, newest)
    assert np.array_equal(batch.action, newest % 7)
