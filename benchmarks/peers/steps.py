"""The experience that every library is given, and what a batch of it must be.

Invariant: the action of a step is its number, so that a batch says which transitions it holds.

Frames are read from their file in blocks, never mapped: the memory of a process is the library's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ACTION", "OBSERVATION", "STACK", "Frames", "Plain", "Promise", "Step", "Ticks", "save"]

STACK = 4
OBSERVATION, ACTION = 17, 6
"""Of the vectors: HalfCheetah's sizes."""
_BLOCK = 256


class Step(NamedTuple):
    """One step of an environment of which frames are stacked, and the frames before and after it.

    Attributes:
        is_first: an episode begins with this step's frame.
        frame: (84, 84) uint8 before it.
        next_frame: (84, 84) uint8 after it.
        stack: (4, 84, 84) uint8, `frame` last; an episode's first frame repeated before it.
        next_stack: (4, 84, 84) uint8, `next_frame` last.
        action: number of the step's row.
        reward: of the step.
        terminated: the episode ended with it.
        truncated: it was cut off after it.
    """

    is_first: bool
    frame: npt.NDArray[np.uint8]
    next_frame: npt.NDArray[np.uint8]
    stack: npt.NDArray[np.uint8]
    next_stack: npt.NDArray[np.uint8]
    action: int
    reward: float
    terminated: bool
    truncated: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """A batch as plain arrays.

    Attributes:
        observation: (B, 4, 84, 84) or (B, 17).
        next_observation: as `observation`.
        action: (B,) numbers of rows.
        reward: (B,).
        terminated: (B,) bool.
    """

    observation: npt.NDArray[Any]
    next_observation: npt.NDArray[Any]
    action: npt.NDArray[Any]
    reward: npt.NDArray[Any]
    terminated: npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Promise:
    """In what a library's batches may differ from the steps.

    Attributes:
        dtype: of observations.
        pads_with_zeros: stacks at an episode's beginning.
        has_final: the next observation of a terminal step is the true one.
        has_cut: that of a truncated step is, which is not called terminal.
        has_newest: that of the newest step of all is.
    """

    dtype: str = "uint8"
    pads_with_zeros: bool = False
    has_final: bool = True
    has_cut: bool = True
    has_newest: bool = True


def save(folder: Path, tape: Any, rows: int) -> None:
    """Write the first rows of a tape as the files that `Frames` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tape.frames[:rows].tofile(folder / "frames")
    np.savez(
        folder / "columns.npz",
        rewards=tape.rewards[:rows],
        flags=tape.non_terminals[:rows],
        resets=tape.resets[:rows],
    )
    (folder / "shape.json").write_text(json.dumps(tape.frames.shape[1:]), encoding="utf-8")


class Frames:
    """Steps of one environment; a row is a frame and the step from it, as in a `Tape`."""

    def __init__(self, folder: Path) -> None:
        """Read all but the frames."""
        self._path = folder / "frames"
        self.shape = tuple(json.loads((folder / "shape.json").read_text(encoding="utf-8")))
        with np.load(folder / "columns.npz") as columns:
            self.rewards, self.flags = columns["rewards"], columns["flags"]
            self.resets = columns["resets"].astype(np.bool_)
        self.rows = len(self.resets)
        before_reset = np.append(self.resets[1:], True)
        self.numbers = np.flatnonzero(~before_reset)
        """Rows from which there is a step."""
        last = np.append(before_reset[1:], False)
        last[-2:] = False  # what goes on after the rows that were saved
        self.terminated = (self.flags == 0) & ~before_reset
        self.truncated = last & ~self.terminated & ~before_reset

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Frames of any rows, each read by itself."""
        size = int(np.prod(self.shape))
        out = np.empty((len(rows), size), np.uint8)
        with self._path.open("rb", buffering=0) as file:
            for frame, row in zip(out, rows.tolist(), strict=True):
                file.seek(row * size)
                file.readinto(memoryview(frame))
        return out.reshape(-1, *self.shape)

    def steps(self, start: int, stop: int) -> Iterator[list[Step]]:
        """Steps number `start` to `stop`, in blocks that are made when they are asked for."""
        for begin in range(start, stop, _BLOCK):
            numbers = self.numbers[begin : min(begin + _BLOCK, stop)]
            low = max(int(numbers[0]) - STACK, 0)
            frames = self.read(np.arange(low, int(numbers[-1]) + 2))
            yield [self._step(row, frames, low) for row in numbers.tolist()]

    def _step(self, row: int, frames: npt.NDArray[np.uint8], low: int) -> Step:
        def stack(newest: int) -> npt.NDArray[np.uint8]:
            first = newest - STACK + 1
            begun = np.flatnonzero(self.resets[max(first + 1, 0) : newest + 1])
            if not len(begun) and first >= 0:
                return frames[first - low : newest + 1 - low]
            at = np.arange(first, newest + 1)
            return frames[np.maximum(at, max(first + 1, 0) + int(begun[-1])) - low]

        return Step(
            bool(self.resets[row]),
            frames[row - low],
            frames[row + 1 - low],
            stack(row),
            stack(row + 1),
            row,
            float(self.rewards[row]),
            bool(self.terminated[row]),
            bool(self.truncated[row]),
        )

    def check(self, batch: Plain, promise: Promise, n_steps: int) -> None:
        """Compare every value of a batch with the first steps; AssertionError where they differ."""
        rows = batch.action.astype(np.int64)
        assert batch.observation.shape == (len(rows), STACK, *self.shape)
        assert batch.next_observation.shape == batch.observation.shape
        assert batch.observation.dtype == batch.next_observation.dtype == promise.dtype
        assert np.isin(rows, self.numbers[:n_steps]).all(), "no steps"
        begins = np.flatnonzero(self.resets)
        for frames, newest, before in (
            (batch.observation, rows, 0),
            (batch.next_observation, rows + 1, 1),
        ):
            wanted = newest[:, None] + np.arange(1 - STACK, 1)
            begin = begins[begins.searchsorted(rows, "right") - 1][:, None]
            expected = self.read(np.maximum(wanted, begin).ravel()).reshape(*frames.shape)
            if promise.pads_with_zeros:
                expected[wanted < begin] = 0
            same = (frames == expected).reshape(len(rows), -1).all(1)
            if before and not promise.has_final:
                same |= self.terminated[rows]
            if before and not promise.has_cut:
                same |= self.truncated[rows]
            if before and not promise.has_newest:
                same |= rows == self.numbers[n_steps - 1]
            assert same.all(), f"frames of rows {rows[~same].tolist()}"
        assert np.array_equal(batch.reward, self.rewards[rows])
        same = batch.terminated == self.terminated[rows]
        if not promise.has_cut:
            same |= self.truncated[rows]
        assert same.all(), f"terminations of rows {rows[~same].tolist()}"


class Ticks:
    """Steps of many environments at once, with random numbers for observations; no episode ends."""

    def __init__(self, n_envs: int, ticks: int) -> None:
        """All of them, some megabytes."""
        rng = np.random.default_rng(0)
        self.n_envs, self.ticks = n_envs, ticks
        self.observations = rng.standard_normal((ticks + 1, n_envs, OBSERVATION), np.float32)
        self.actions = rng.standard_normal((ticks, n_envs, ACTION), np.float32)
        self.actions[..., 0] = np.arange(ticks * n_envs).reshape(ticks, n_envs)
        self.rewards = rng.standard_normal((ticks, n_envs), np.float32)
        self.never = np.zeros(n_envs, np.bool_)

    def check(self, batch: Plain) -> None:
        """As `Frames.check`."""
        tick, env = np.divmod(batch.action.astype(np.int64), self.n_envs)
        assert batch.observation.dtype == batch.next_observation.dtype == np.float32
        assert np.array_equal(batch.observation, self.observations[tick, env])
        assert np.array_equal(batch.next_observation, self.observations[tick + 1, env])
        assert np.array_equal(batch.reward, self.rewards[tick, env])
        assert not batch.terminated.any()
