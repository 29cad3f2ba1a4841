"""What is measured in a process of its own: what an import, an opening and long work take there.

``python -m benchmarks.fresh NAME ARGUMENTS`` calls one of the functions below and prints what it
returns as JSON. Nothing but the standard library is imported before the function asks for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

__all__ = ["call", "die"]

STARTED = 50
_KILLED = -signal.SIGKILL


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Run a function of this module in a fresh process; returns what it returned."""
    done = _run(name, arguments)
    if done.returncode:
        raise RuntimeError(f"{name}: exit status {done.returncode}: {done.stderr}")
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def die(name: str, **arguments: Any) -> dict[str, Any]:
    """As `call`, for a function that ends in a kill -9 of its own process."""
    done = _run(name, arguments)
    if done.returncode != _KILLED:
        raise RuntimeError(f"{name}: exit status {done.returncode}: {done.stderr}")
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def _run(name: str, arguments: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.fresh", name, json.dumps(arguments, default=str)]
    here = Path(__file__).parent.parent
    env = dict(os.environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an import is not a compilation of all modules
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=here, env=env)


def _since(started: float) -> float:
    return (perf_counter() - started) * 1e3


# ---------------------------------------------------------------- opening


def load(path: str, batch: int) -> dict[str, Any]:
    """Import, open a store read-only, and sample once."""
    started = perf_counter()
    import numpy as np  # noqa: F401

    numpy_ms = _since(started)
    started = perf_counter()
    import mmreplay

    import_ms = _since(started)
    from tests.support.processes.usage import resident

    before = resident()
    started = perf_counter()
    data = mmreplay.load(path)
    n_transitions = len(data)
    open_ms = _since(started)
    opened = resident()
    started = perf_counter()
    data.sample(batch)
    return {
        "numpy_ms": numpy_ms,
        "import_ms": import_ms,
        "open_ms": open_ms,
        "sample_ms": _since(started),
        "transitions": n_transitions,
        "rows": _rows(data.store),
        "before": before,
        "opened": opened,
        "sampled": resident(),
    }


def _rows(store: Any) -> int:
    """Rows of a lane of one environment, steps of all environments of one of many."""
    return sum(lane.rows * lane.environments for lane in store.lanes)


def fill_sb3(path: str, steps: int, *, ours: bool) -> dict[str, int]:
    """Memory taken by a replay buffer of stable-baselines3, or ours in its place."""
    from benchmarks.stable_baselines3 import filled
    from tests.support.processes.usage import resident

    filled(f"{path}-first", STARTED, ours=ours)  # with what both import
    before = resident()
    buffer = filled(path, steps, ours=ours)
    after = resident()
    assert buffer.size() == steps
    return {key: after[key] - before[key] for key in before}


def reopen(path: str) -> dict[str, float]:
    """Open a closed store for writing, and close it as it was."""
    import mmreplay

    started = perf_counter()
    buffer = mmreplay.ReplayBuffer(path)
    open_ms = _since(started)
    buffer.close()
    return {"open_ms": open_ms}


def write_and_die(path: str, frames: str, steps: int) -> None:
    """Open a store for writing, append an episode, the same in all environments; be killed."""
    import numpy as np

    import mmreplay
    from tests.support.processes.usage import resident

    source = np.load(frames)
    before = resident()
    started = perf_counter()
    buffer = mmreplay.ReplayBuffer(path)
    open_ms = _since(started)
    opened = resident()
    writer: Any = buffer.writer
    if isinstance(writer, mmreplay.VectorWriter):
        n = len(writer)
        none, shape = np.zeros(n, np.bool_), (n, *source.shape[1:])
        writer.reset(np.broadcast_to(source[0], shape))
        for step in range(1, steps + 1):
            frame = np.broadcast_to(source[step % len(source)], shape)
            writer.step(np.full(n, step % 7), np.full(n, step), frame, none, none)
    else:
        writer.reset(source[0])
        for step in range(1, steps + 1):
            writer.step(step % 7, float(step), source[step % len(source)])
    out = {
        "open_ms": open_ms,
        "before": before,
        "opened": opened,
        "rows": _rows(buffer.store.refresh()),
        "transitions": len(buffer),
    }
    print(json.dumps(out), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


# ---------------------------------------------------------------- memory


class _Watch:
    """Resident memory over the course of something, at 41 points of it."""

    def __init__(self, total: int) -> None:
        self._points = [total * i // 40 for i in range(41)]
        self.taken: list[dict[str, int]] = []

    def at(self, done: int) -> None:
        """Look, if it is time."""
        from tests.support.processes.usage import resident

        if len(self.taken) < len(self._points) and done >= self._points[len(self.taken)]:
            self.taken.append({"at": done, **resident()})


def record(path: str, env: str, steps: int, envs: int, codec: str) -> dict[str, Any]:
    """Record, and watch."""
    import mmreplay

    watch = _Watch(steps)
    done = mmreplay.record(
        env, path, steps, envs=envs, codec=codec, progress=lambda p: watch.at(p.steps)
    )
    with mmreplay.open(path) as store:
        assert len(store) == steps == done.steps
    return {"taken": watch.taken}


def sample(path: str, batches: int, batch: int) -> dict[str, Any]:
    """Sample from a closed store, and watch."""
    import mmreplay

    watch = _Watch(batches)
    with mmreplay.load(path) as data:
        kept = data.sample(batch)
        for number in range(batches):
            watch.at(number)
            data.sample(batch, out=kept)
        watch.at(batches)
    return {"taken": watch.taken}


def epoch(path: str, batch: int) -> dict[str, Any]:
    """Go through a closed store once, shuffled, and watch."""
    import mmreplay

    with mmreplay.load(path) as data:
        n_batches = -(-len(data) // batch)
        data.sample(batch)
        watch = _Watch(n_batches)
        watch.at(0)
        for number, _ in enumerate(data.batches(batch), 1):
            watch.at(number)
    return {"taken": watch.taken}


def pack(path: str, target: str, codec: str | None) -> dict[str, float]:
    """Pack a store; resident memory before and at the peak, of all processes, in MB."""
    import mmreplay
    from mmreplay.maintenance import pack as _  # noqa: F401 (imported before it is looked at)
    from tests.support.processes.usage import resident

    before, peak = sum(resident().values()), 0

    def look(_done: int, _total: int) -> None:
        nonlocal peak
        peak = max(peak, sum(resident().values()) + _own_of_children())

    made = mmreplay.pack(path, target, codec, progress=look)
    assert not made.left_out
    return {"before": before / 1e6, "peak": peak / 1e6}


def _own_of_children() -> int:
    """Bytes that the children of this process have for themselves: the others are its own, too."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii") for pid in pids]
    lines = "".join(texts).splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def compress_again(path: str, target: str, codec: str, runs: int) -> dict[str, Any]:
    """Seconds of packs, and of the codec alone."""
    from benchmarks import pack

    return pack.compress_again(Path(path), Path(target), codec, runs)


def exchange_out(source: str, target: str, format: str) -> dict[str, float]:
    """Export a store; resident memory at the peak, in MB."""
    import mmreplay

    return _peak_of(lambda look: mmreplay.export_dataset(source, format, target, progress=look))


def exchange_in(source: str, target: str, format: str) -> dict[str, float]:
    """Import it again; resident memory at the peak, in MB."""
    import mmreplay

    return _peak_of(lambda look: mmreplay.import_dataset(format, source, target, progress=look))


def _peak_of(call: Callable[[Callable[[int, int], None]], Any]) -> dict[str, float]:
    """Of what the process has and of the pages of files that it maps, at each call of progress."""
    from tests.support.processes.usage import resident

    peak = 0

    def look(_done: int, _total: int) -> None:
        nonlocal peak
        peak = max(peak, sum(resident().values()))

    call(look)
    return {"peak": peak / 1e6}


def train(path: str, frames: str, steps: int, capacity: int, codec: str) -> dict[str, Any]:
    """Step a buffer that evicts, sample from it all along, and watch."""
    import numpy as np

    import mmreplay

    source = np.load(frames)
    watch = _Watch(steps)
    buffer = mmreplay.ReplayBuffer(
        path,
        capacity,
        frame=mmreplay.Field(source.shape[1:], "uint8", codec),
        action=mmreplay.Field((), "int64"),
    )
    with buffer:
        buffer.reset(source[0])
        kept = None
        for number in range(steps):
            ended = number % 1_000 == 999
            buffer.step(number % 7, 1.0, source[(number + 1) % len(source)], ended)
            if ended:
                buffer.reset(source[0])
            if number % 50 == 49:
                kept = buffer.sample(32, out=kept)
            watch.at(number)
        watch.at(steps)
        assert len(buffer) == min(steps, capacity)
    return {"taken": watch.taken}


# ---------------------------------------------------------------- very long stores


def long_open(path: list[str], batch: int, batches: int) -> dict[str, Any]:
    """Open, look at it, and sample: seconds of each, and what the process takes."""
    import mmreplay
    from tests.support.processes.usage import usage

    before = usage(Path(path[0]) / "episodes")
    out: dict[str, Any] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started = perf_counter()
        found = call()
        out[name] = perf_counter() - started
        return found

    with timed("open", lambda: mmreplay.load(path)) as data:
        now = usage(Path(path[0]) / "episodes")
        out["resident"] = now.anon + now.file - before.anon - before.file
        timed("first batch", lambda: data.sample(batch))
        timed("first windows", lambda: data.sample_sequences(batch, 20))
        timed("episodes", lambda: data.episodes)
        timed("a trajectory", lambda: data.trajectory(-1))
        kept = data.sample(batch)
        for _ in range(batches):
            kept = data.sample(batch, out=kept)
        now = usage(Path(path[0]) / "episodes")
        out["transitions"] = len(data)
    out |= {"anon": now.anon - before.anon, "maps": now.maps, "descriptors": now.descriptors}
    return out


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        *(load, reopen, write_and_die, record, sample, epoch, pack, train, fill_sb3),
        *(long_open, exchange_out, exchange_in, compress_again),
    )
}

if __name__ == "__main__":
    print(json.dumps(_FUNCTIONS[sys.argv[1]](**json.loads(sys.argv[2]))))
