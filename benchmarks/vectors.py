"""Small float observations: against numpy's fancy indexing of the same five arrays in RAM.

What most offline datasets are: observation, next observation, action, reward and flag as five
arrays. Numpy is given the indices; drawing them counts for mmreplay alone. `numpy.take` is quicker
than indexing and stands beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mmreplay
from benchmarks.experience import frames_of, made
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core

__all__ = ["run"]

BATCH = 256
OBSERVATION = 17
ACTION = 6
EPISODE = 1_000
_BOUND = 3.0


def run(result: Result, scale: Scale, data: Path) -> None:
    """One store, with one frame a batch row and with the stack axis of one."""
    played = _rows(scale.vector_rows)
    path = made(data / f"vectors-{scale.vector_rows}.zarr", lambda there: _write(there, *played))
    has_step = np.append(played[-1][1:], 1) == 0
    frames, actions, rewards, flags, resets = (one[has_step] for one in played)
    rows = frames, actions, rewards, flags, resets
    following = np.roll(played[0], -1, axis=0)[has_step]
    clock = Clock()
    with one_core():
        for number in range(scale.runs):
            clock.new_run()
            for stack in (None, 1):
                with mmreplay.load(path, stack=stack, seed=number) as opened:
                    _one_run(clock, opened, stack, scale.rounds * 5, rows, following)
            print(f"run {number + 1} of {scale.runs}", flush=True)
    result.details["rows"] = len(frames)
    for stack in (None, 1):
        fancy, take = f"numpy {stack}", f"take {stack}"
        result.add(f"numpy, indexing, beside stack={stack}", clock.microseconds(fancy), "us")
        result.add(f"numpy, take, beside stack={stack}", clock.microseconds(take), "us")
        for how in ("out=", "without out="):
            name = f"stack={stack}, {how}"
            result.add(name, clock.microseconds(name), "us")
            ratio = clock.ratio(name, fancy)
            result.add(f"{name}, by numpy's indexing", ratio, "times", at_most=_BOUND)
            result.add(f"{name}, by numpy's take", clock.ratio(name, take), "times")


Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _rows(n: int) -> Rows:
    """Frames, actions, rewards, flags and resets of episodes of 1,000 steps, all truncated.

    An episode has a row more than steps, that of its final observation.
    """
    rng = np.random.default_rng(0)
    frames = rng.standard_normal((n, OBSERVATION), np.float32)
    actions = rng.standard_normal((n, ACTION), np.float32)
    rewards = rng.standard_normal(n, np.float32)
    resets = np.arange(n) % (EPISODE + 1) == 0
    last = np.append(resets[1:], True)
    actions[last] = 0
    rewards[last] = 0
    return frames, actions, rewards, np.ones(n, np.uint8), resets.astype(np.uint8)


def _write(path: Path, *rows: np.ndarray) -> None:
    frames, actions, rewards, _, resets = rows
    gains, begins = rewards.tolist(), resets.tolist()
    with mmreplay.create(
        path,
        frame=mmreplay.Field((OBSERVATION,), "float32", "raw"),
        action=mmreplay.Field((ACTION,), "float32"),
    ) as writer:
        assert isinstance(writer, mmreplay.Writer)
        for row in range(len(resets)):
            if begins[row]:
                writer.reset(frames[row])
            else:
                writer.step(actions[row - 1], gains[row - 1], frames[row])


def _one_run(
    clock: Clock,
    opened: mmreplay.Dataset,
    stack: int | None,
    rounds: int,
    rows: Rows,
    following: np.ndarray,
) -> None:
    frames, actions, rewards, flags, _ = rows
    lane = opened.store.lanes[0]
    assert np.array_equal(frames_of(lane)[:], frames)  # also touches every page
    assert np.array_equal(lane.actions[:], actions)
    assert np.array_equal(lane.rewards[:], rewards)
    kept = opened.sample(BATCH)
    rng = np.random.default_rng(0)

    def fancy() -> tuple[np.ndarray, ...]:
        ids = batch.id
        return frames[ids], following[ids], actions[ids], rewards[ids], flags[ids]

    def take() -> tuple[np.ndarray, ...]:
        # Others of the same number: those of the batch are in the cache by now.
        columns = (frames, following, actions, rewards, flags)
        return tuple(one.take(others, axis=0) for one in columns)

    for _ in range(rounds):
        for how in ("out=", "without out="):
            if how == "out=":
                batch = clock.time(f"stack={stack}, {how}", lambda: opened.sample(BATCH, out=kept))
            else:
                batch = clock.time(f"stack={stack}, {how}", lambda: opened.sample(BATCH))
            expected = clock.time(f"numpy {stack}", fancy)
            others = rng.integers(0, len(frames), BATCH)
            clock.time(f"take {stack}", take)
            shape = (BATCH, OBSERVATION)
            assert np.array_equal(batch.observation.reshape(shape), expected[0])
            assert np.array_equal(batch.next_observation.reshape(shape), expected[1])
            assert np.array_equal(batch.action, expected[2])
            assert np.array_equal(batch.reward, expected[3])
            assert np.array_equal(batch.non_terminal, expected[4] != 0)
            assert np.all(batch.discount == np.float32(0.99))
