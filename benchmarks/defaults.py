"""What the codec, the frames of an inner chunk and the length of a shard cost, and what they save.

The frames are those of Pong, seen in three ways: 84x84 gray, 64x64x3 in colour, and 3x224x224 in
colour; played by a policy that follows the ball, read from the emulator's memory, and by a random
one, which loses. All stores of some frames are packed from one raw store, so that each chunk is
compressed as a writer who is not in haste does it. What compressing costs is timed by itself, as a
writer leaves it to another thread. Batches have stacks of 4; all stores are sampled in turns, in
one process.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from benchmarks.ahead import computing
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core, spread
from mmreplay.format import compression
from mmreplay.reading.lane_reader import LaneReader

__all__ = ["run"]

SHAPES: dict[str, tuple[int, ...]] = {
    "84x84": (84, 84),
    "64x64x3": (64, 64, 3),
    "3x224x224": (3, 224, 224),
}
POLICIES = ("follows the ball", "random")
_LARGE = "3x224x224"
_LARGE_PART = 8  # of the other frames there are so many times more
_STACK = 4
_BATCHES = (32, 256)
_AHEAD = (0, 1, 2, 4)
_COMPUTED_MS = 1
_BALL_Y, _PADDLE_Y = 54, 51  # in the emulator's memory
_MIDDLE = 6  # of the paddle, below where it begins
_UP, _DOWN = 2, 3
_ENCODED = 32  # chunks that are compressed by themselves

Frames = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """How frames are kept; None as a store has it by itself."""

    name: str
    codec: Any
    chunk: int | None = None
    shard: int | None = None


def _blosc(cname: str, level: int) -> dict[str, Any]:
    return {
        "name": "blosc",
        "configuration": {
            "cname": cname,
            "clevel": level,
            "shuffle": "noshuffle",
            "typesize": 1,
            "blocksize": 0,
        },
    }


_INNER = (4, 8, 16, 32)
_SHARDS = (256, 1024, 4096)
KEPT = (
    _Kept("raw", "raw"),
    _Kept("lz4, as it is", "lz4"),
    *(_Kept(f"lz4, {n} frames a chunk", "lz4", n) for n in _INNER),
    *(_Kept(f"zstd, {n} frames a chunk", "zstd", n) for n in _INNER),
    _Kept("plain lz4 instead of lz4hc", _blosc("lz4", 5)),
    _Kept("zstd:3", "zstd:3"),
    _Kept("zstd:9", "zstd:9"),
)
KEPT_IN_SHARDS = tuple(_Kept(f"lz4, {n:,} frames a shard", "lz4", 16, n) for n in _SHARDS)


def run(result: Result, scale: Scale, data: Path) -> None:
    """Each policy, each kind of frames; then reading ahead."""
    folder = data / "defaults"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for policy in POLICIES[: scale.default_runs]:
        seen, ends, score = _played(policy, scale.seen_frames)
        result.add(f"{policy}: points in 1,000 steps", score, "")
        for kind, frames in seen.items():
            source = folder / "source.zarr"
            _write(source, frames, ends)
            kept = (*KEPT, *KEPT_IN_SHARDS) if kind == "84x84" else KEPT
            paths = {one: folder / f"{number}.zarr" for number, one in enumerate(kept)}
            for one, path in paths.items():
                given = {"chunk_frames": one.chunk, "shard_frames": one.shard}
                mmreplay.pack(source, path, one.codec, **given)
            _compare(result, f"{kind}, {policy}", paths, frames, scale)
            if (kind, policy) == ("84x84", POLICIES[0]):
                _ahead(result, paths, scale)
            for path in (source, *paths.values()):
                shutil.rmtree(path)
            print(f"{kind}, {policy}: done", flush=True)
    folder.rmdir()


# ---------------------------------------------------------------- frames


def _played(policy: str, n: int) -> tuple[dict[str, Frames], npt.NDArray[np.bool_], float]:
    """Frames by kind, (n, ...) each, where episodes end, (n,), and points in a thousand steps.

    Of large frames there are only the first ones.
    """
    import cv2
    import gymnasium

    from mmreplay.recording import atari

    atari.register()
    env: Any = gymnasium.make("ALE/Pong-v5", frameskip=2, repeat_action_probability=0.0)
    random = np.random.default_rng(0)
    sizes = {kind: n // _LARGE_PART if kind == _LARGE else n for kind in SHAPES}
    seen = {kind: np.empty((sizes[kind], *shape), np.uint8) for kind, shape in SHAPES.items()}
    ends, points = np.zeros(n, np.bool_), 0.0
    picture, _ = env.reset(seed=0)
    for number in range(n):
        small = cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA)
        seen["84x84"][number] = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
        seen["64x64x3"][number] = cv2.resize(picture, (64, 64), interpolation=cv2.INTER_AREA)
        if number < sizes[_LARGE]:
            large = cv2.resize(picture, (224, 224), interpolation=cv2.INTER_AREA)
            seen[_LARGE][number] = large.transpose(2, 0, 1)
        memory = env.unwrapped.ale.getRAM().tolist()
        action = int(random.integers(env.action_space.n))
        if policy != "random":
            action = _UP if memory[_BALL_Y] < memory[_PADDLE_Y] + _MIDDLE else _DOWN
        picture, reward, terminated, truncated, _ = env.step(action)
        points += float(reward)
        if terminated or truncated:
            ends[number] = True
            picture, _ = env.reset()
    env.close()
    return seen, ends, points * 1000 / n


def _write(path: Path, frames: Frames, ends: npt.NDArray[np.bool_]) -> None:
    """A raw store of all frames; each episode ends where one of the game does."""
    field = mmreplay.Field(frames.shape[1:], "uint8", "raw")
    with mmreplay.create(path, field, mmreplay.Field((), "int64"), flush_s=0) as writer:
        begins = True
        for frame, is_last in zip(frames, ends, strict=False):
            if begins:
                writer.reset(frame)
            else:
                writer.step(0, 0.0, frame, bool(is_last))
            begins = bool(is_last)


# ---------------------------------------------------------------- what they cost


def _compare(
    result: Result, what: str, paths: dict[_Kept, Path], frames: Frames, scale: Scale
) -> None:
    """Bytes, compressing, batches of both sizes, and an epoch, of each store."""
    for one, path in paths.items():
        files = [at.stat() for at in (path / "frames").glob("c.*")]
        size = sum(min(about.st_size, about.st_blocks * 512) for about in files)
        result.add(f"{what}: {one.name}: bytes a frame", size / len(frames), "B")
        if one.codec != "raw":
            result.add(f"{what}: {one.name}: compressing a frame", _encoding(path, frames), "us")
    clock = Clock()
    opened = {one: mmreplay.load(path, stack=_STACK) for one, path in paths.items()}
    with one_core():
        for data in opened.values():
            _check(data, frames)
        for _ in range(scale.default_runs):
            clock.new_run()
            for one, data in opened.items():
                for size in _BATCHES:
                    batch = data.sample(size)
                    for _ in range(max(scale.default_rounds * 32 // size, 1)):
                        call = functools.partial(data.sample, size, out=batch)
                        clock.time(f"{one.name}, {size}", call)
                clock.time(f"{one.name}, epoch", functools.partial(_epoch, data))
    n_transitions = len(next(iter(opened.values())))
    for one, data in opened.items():
        data.close()
        name = f"{what}: {one.name}"
        for size in _BATCHES:
            taken = clock.microseconds(f"{one.name}, {size}")
            result.add(f"{name}: a batch of {size}", taken, "us")
        each = spread(clock.by_run(f"{one.name}, epoch") * 1e6 / n_transitions)
        result.add(f"{name}: a transition of an epoch", each, "us")


def _encoding(path: Path, frames: Frames) -> Any:
    """Microseconds that compressing a frame takes a writer's thread."""
    spec = LaneReader(path).rows.specs["frames"]
    codec = compression.make_codec(spec.codec or {})
    n_chunks = min(_ENCODED, len(frames) // spec.inner_rows)
    starts = np.linspace(0, len(frames) - spec.inner_rows, n_chunks, dtype=int).tolist()
    chunks = [frames[start : start + spec.inner_rows].reshape(-1) for start in starts]
    clock = Clock()
    for _ in range(3):
        clock.new_run()
        for chunk in chunks:
            clock.time("encode", functools.partial(compression.encode, codec, chunk))
    return spread(clock.by_run("encode", np.mean) * 1e6 / spec.inner_rows)


def _check(data: mmreplay.Dataset, frames: Frames) -> None:
    """Every frame is the one that was seen, whatever keeps it."""
    for batch in _batches(data, 64):
        assert np.array_equal(batch.next_observation[:, -1], frames[batch.id + 1])


def _epoch(data: mmreplay.Dataset) -> None:
    for _ in _batches(data, 256):
        pass


def _batches(data: mmreplay.Dataset, size: int) -> Iterator[Any]:
    return data.batches(size)


# ---------------------------------------------------------------- reading ahead


def _ahead(result: Result, paths: dict[_Kept, Path], scale: Scale) -> None:
    """How much of its time a loop waits that computes for a millisecond a batch of 32."""
    by_name = {one.name: path for one, path in paths.items()}
    clock, compute = Clock(), computing(_COMPUTED_MS)
    cases = [(name, n) for name in ("raw", "lz4, as it is", "zstd:9") for n in _AHEAD]
    for _ in range(scale.default_runs):
        clock.new_run()
        for name, n in cases:
            with mmreplay.load(by_name[name], stack=_STACK, prefetch=n) as data:
                for number in range(scale.default_rounds + 10):
                    if number < 10:  # until the threads are at work
                        data.sample(32)
                        compute()
                        continue
                    clock.time(f"{name}, {n}, wait", functools.partial(data.sample, 32))
                    clock.time(f"{name}, {n}, compute", compute)
    for name, n in cases:
        waits = clock.by_run(f"{name}, {n}, wait", np.sum)
        computes = clock.by_run(f"{name}, {n}, compute", np.sum)
        share = spread(100 * waits / (waits + computes))
        result.add(f"a loop of {_COMPUTED_MS} ms a batch waits, {name}, prefetch={n}", share, "%")
