"""Microseconds of a step, a batch and an opening, with the package of any commit.

``python -m benchmarks.pace ROOT PATH FRAMES STEPS`` takes one slice of the measurement for every
line that it reads, and prints what was timed and the microseconds. Whoever asks can so let two
packages take turns every few hundredths of a second: what slows the machine down slows both.
Only what both this commit and the one it is held against offer is called.
"""

from __future__ import annotations

import functools
import json
import logging
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

__all__ = ["pace"]

_EPISODE = 250
_FLOATS = 17
_ROWS = 100  # at least, however many environments there are
_SLICE_S = 0.02
_FEW = 2  # slices: only to see that it works
_PAUSE_S, _PAUSE_FRAMES = 0.06, 512
"""A writer in a hurry compresses less, and how often it is in a hurry varies from run to run: the
pauses keep the compressed data, which is read afterwards, the same."""

Slice = tuple[str, float]


class _Case(NamedTuple):
    """What is written and sampled: images of a codec, or vectors if None."""

    name: str
    codec: str | None
    environments: int = 1


_CASES = (
    _Case("raw", "raw"),
    _Case("lz4", "lz4"),
    _Case("zstd", "zstd"),
    _Case("17 floats", None),
    _Case("raw, 8 environments", "raw", 8),
    _Case("lz4, 8 environments", "lz4", 8),
    _Case("17 floats, 8 environments", None, 8),
    _Case("raw, 256 environments", "raw", 256),
    _Case("lz4, 256 environments", "lz4", 256),
    _Case("17 floats, 256 environments", None, 256),
)


def pace(root: str, path: str, frames: str, steps: int) -> Iterator[Slice]:
    """What was done and its microseconds, slice by slice, with the package in `root`.

    Args:
        root: where the package lies.
        path: of the stores that are written, one after the other.
        frames: a file of images, (n, height, width) uint8.
        steps: of each store, of all its environments together.
    """
    sys.path.insert(0, root)
    import numpy as np

    started = perf_counter()
    import mmreplay

    yield "import", (perf_counter() - started) * 1e6
    assert Path(mmreplay.__file__).is_relative_to(root)
    logging.getLogger("mmreplay").setLevel(logging.ERROR)  # a buffer says that it resumes
    images = np.load(frames)
    vectors = np.random.default_rng(0).standard_normal((1_000, _FLOATS), np.float32)
    slices = max(steps // 400, _FEW)
    for case in _CASES:
        shutil.rmtree(path, ignore_errors=True)
        source = vectors if case.codec is None else images
        stack = None if case.codec is None else 4
        yield from _write(mmreplay, path, case, source, steps, slices)
        load = functools.partial(mmreplay.load, path, stack=stack)
        measured = {
            "sample of 32": functools.partial(_sample, load, 32, n_step=3),
            "sample of 256, n_step 1": functools.partial(_sample, load, 256),
            "epoch, a batch of 32": functools.partial(_epoch, load),
            "open": functools.partial(_open, mmreplay, path),
        }
        if case.environments == 1 and case.codec != "zstd":
            buffer = functools.partial(mmreplay.PrioritizedReplayBuffer, path, stack=stack)
            measured["prioritized, 32 and their update"] = functools.partial(_learn, buffer)
        for what, times in measured.items():
            yield from _slices(f"{what}: {case.name}", times(), slices)
    shutil.rmtree(path)


def _slices(what: str, times: Iterator[float], slices: int) -> Iterator[Slice]:
    """The median of what a slice has time for, `slices` times."""
    for _ in range(3):
        next(times)
    for _ in range(slices):
        taken, end = [], perf_counter() + _SLICE_S
        while not taken or perf_counter() < end:
            taken.append(next(times))
        yield what, statistics.median(taken) * 1e6
    times.close()  # type: ignore[attr-defined]


def _write(
    mmreplay: Any, path: str, case: _Case, source: Any, steps: int, slices: int
) -> Iterator[Slice]:
    import numpy as np

    n, several = case.environments, case.environments > 1
    field = mmreplay.Field(source.shape[1:], str(source.dtype), case.codec or "raw")
    action = mmreplay.Field((6,), "float32") if case.codec is None else mmreplay.Field((), "int64")
    writer = mmreplay.create(path, field, action, lanes=n if several else None, flush_s=0)
    # Made beforehand: a learner has them, and to stack them takes longer than to store them.
    given = [np.stack([source[(7 * e + t) % len(source)] for e in range(n)]) for t in range(20)]
    acts = np.zeros((n, *action.shape), action.dtype)
    rewards, none = np.ones(n), np.zeros(n, np.bool_)
    rows = max(steps // n, _ROWS)
    is_patient = case.codec in ("lz4", "zstd") and slices > _FEW
    taken = []
    with writer:
        for number in range(rows):
            frame = given[number % len(given)] if several else source[number % len(source)]
            if number % _EPISODE == 0:
                writer.reset(frame)
            if several:
                started = perf_counter()
                writer.step(acts, rewards, frame, none, none)
            else:
                started = perf_counter()
                writer.step(acts[0], 1.0, frame)
            taken.append(perf_counter() - started)
            if is_patient and number * n % _PAUSE_FRAMES < n:
                sleep(_PAUSE_S)
            if len(taken) == rows // slices:
                yield f"step: {case.name}", statistics.median(taken) * 1e6
                taken = []
        if is_patient:
            sleep(1)


def _times(call: Callable[[], object]) -> Iterator[float]:
    """Seconds of a call, again and again."""
    while True:
        started = perf_counter()
        call()
        yield perf_counter() - started


def _sample(load: Callable[..., Any], batch: int, **settings: int) -> Iterator[float]:
    with load(**settings) as data:
        kept = data.sample(batch)
        yield from _times(lambda: data.sample(batch, out=kept))


def _epoch(load: Callable[..., Any]) -> Iterator[float]:
    with load() as data:
        batches = iter(data.batches(32, epochs=None))
        yield from _times(lambda: next(batches))


def _open(mmreplay: Any, path: str) -> Iterator[float]:
    def opened() -> None:
        with mmreplay.open(path) as store:
            assert len(store)

    return _times(opened)


def _learn(opened: Callable[..., Any]) -> Iterator[float]:
    with opened(n_step=3) as buffer:

        def update() -> None:
            batch = buffer.sample(32)
            buffer.update_priorities(batch.id, batch.reward + 1)

        yield from _times(update)


if __name__ == "__main__":
    _taken = pace(*sys.argv[1:4], int(sys.argv[4]))
    for _ in sys.stdin:
        print(json.dumps(next(_taken, None)), flush=True)
