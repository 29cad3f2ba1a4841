"""Real experience to measure with: games recorded once, and the stores that are made of them.

Invariant: a store made here holds exactly the rows of its tape, and the tape is read by
zarr-python, not by mmreplay.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

import mmreplay
from benchmarks.scale import Scale
from mmreplay.reading.column_views import ColumnView, LaneView

__all__ = [
    "CODECS",
    "ENVIRONMENT_SPEED",
    "ENV_IDS",
    "SAVED_FRAMES",
    "Tape",
    "check_whole",
    "frames_of",
    "made",
    "one_lane",
    "play",
    "read_tape",
    "recorded",
    "repeated",
    "saved_frames",
]

ENV_IDS = {"mspacman": "ALE/MsPacman-v5", "breakout": "ALE/Breakout-v5"}
CODECS = ("raw", "lz4", "zstd")
SAVED_FRAMES = 8_192
SEED = 0
ENVIRONMENT_SPEED = 8_000
"""Rows a second that a paced writer stays below: more than eight games on two cores give."""

_LANE_SHIFT = 40
_PART = 4_096


@dataclasses.dataclass(frozen=True, slots=True)
class Tape:
    """Everything that was recorded of a game, in RAM, the lanes one after the other.

    Attributes:
        frames: (rows, 84, 84) uint8, contiguous.
        actions: (rows,) int64.
        rewards: (rows,) float32.
        non_terminals: (rows,) uint8.
        resets: (rows,) uint8.
        lanes: first row of each lane, and the number of rows at the end.
    """

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float32]
    non_terminals: npt.NDArray[np.uint8]
    resets: npt.NDArray[np.uint8]
    lanes: tuple[int, ...]

    def __len__(self) -> int:
        """Rows."""
        return len(self.resets)

    @property
    def n_transitions(self) -> int:
        """Rows that are followed by a row of the same episode."""
        return len(self) - int(self.resets.sum())

    def places(self, ids: npt.NDArray[np.int64], *, one_lane: bool) -> npt.NDArray[np.int64]:
        """Rows of the tape of transition ids, of a store with its lanes or of one lane."""
        if one_lane:
            return ids
        return np.array(self.lanes)[ids >> _LANE_SHIFT] + (ids & ((1 << _LANE_SHIFT) - 1))

    def window(
        self, places: npt.NDArray[np.int64], before: int, after: int
    ) -> npt.NDArray[np.int64]:
        """(B, before + 1 + after) rows around `places`, none before its episode's first."""
        starts = np.flatnonzero(self.resets)
        begin = starts[starts.searchsorted(places, "right") - 1]
        rows = places[:, None] + np.arange(-before, after + 1)
        return np.maximum(rows, begin[:, None])


def recorded(data: Path, game: str, codec: str, scale: Scale) -> Path:
    """A game recorded by `mmreplay.record` with a random policy; made if it is not there."""
    path = data / f"{game}-lanes-{codec}.zarr"

    def record(there: Path) -> None:
        mmreplay.record(ENV_IDS[game], there, scale.steps, envs=scale.envs, codec=codec, seed=SEED)

    return made(path, record)


def read_tape(path: Path) -> Tape:
    """All rows of a closed store, read by zarr-python."""
    names = sorted(one.name for one in path.glob("lane-*")) or [""]
    groups: list[Any] = [zarr.open_group(path / name, mode="r", zarr_format=3) for name in names]
    lengths = [group["resets"].shape[0] for group in groups]
    bounds = np.concatenate(([0], np.cumsum(lengths)))

    def column(name: str) -> npt.NDArray[Any]:
        first = groups[0][name]
        out = np.empty((int(bounds[-1]), *first.shape[1:]), first.dtype)
        for group, (start, stop) in zip(groups, itertools.pairwise(bounds.tolist()), strict=True):
            for row in range(start, stop, _PART):
                end = min(row + _PART, stop)
                out[row:end] = group[name][row - start : end - start]
        return out

    return Tape(
        column("frames"),
        column("actions"),
        column("rewards"),
        column("non_terminals"),
        column("resets"),
        tuple(bounds.tolist()),
    )


def play(tape: Tape, writer: Any, start: int, stop: int, rows_per_s: float | None = None) -> None:
    """Write rows [start, stop) of a tape, and again from its beginning where it ends.

    Args:
        tape: what to write.
        writer: takes `reset` and `step`.
        start: the first row; an episode starts there whatever the tape says.
        stop: the row after the last one.
        rows_per_s: not faster than that; None for as fast as it goes.
    """
    actions, rewards = tape.actions.tolist(), tape.rewards.tolist()
    resets, flags = tape.resets.tolist(), tape.non_terminals.tolist()
    began = time.perf_counter()
    for count, row in enumerate(range(start, stop)):
        i = row % len(tape)
        if count == 0 or resets[i]:
            writer.reset(tape.frames[i])
        else:
            writer.step(actions[i - 1], rewards[i - 1], tape.frames[i], not flags[i - 1])
        if rows_per_s is not None and count % 64 == 0:
            ahead = count / rows_per_s - (time.perf_counter() - began)
            if ahead > 0:
                time.sleep(ahead)


def one_lane(
    data: Path, game: str, codec: str, tape: Tape, rows_per_s: float | None
) -> tuple[Path, dict[str, int]]:
    """The tape written through one `Writer`; made if it is not there.

    Returns:
        path, and how many chunks were encoded in haste ("fast") and in all ("chunks").
    """
    speed = "full-speed" if rows_per_s is None else "paced"
    path = data / f"{game}-one-{speed}-{codec}.zarr"
    beside = path.with_suffix(".json")

    def write(there: Path) -> None:
        with (
            _counted_encodes() as counts,
            mmreplay.create(
                there,
                frame=mmreplay.Field(tape.frames.shape[1:], "uint8", codec),
                action=mmreplay.Field((), "int64"),
            ) as writer,
        ):
            play(tape, writer, 0, len(tape), rows_per_s)
        beside.write_text(json.dumps(counts), encoding="utf-8")

    return made(path, write), json.loads(beside.read_text(encoding="utf-8"))


def repeated(data: Path, game: str, codec: str, tape: Tape, rows: int, lanes: int) -> Path:
    """A closed store of `rows` rows in all: the tape again and again; made if not there."""
    path = data / f"{game}-{rows}-rows-{lanes}-{codec}.zarr"

    def write(there: Path) -> None:
        with mmreplay.create(
            there,
            frame=mmreplay.Field(tape.frames.shape[1:], "uint8", codec),
            action=mmreplay.Field((), "int64"),
            lanes=None if lanes == 1 else lanes,
        ) as writer:
            writers = (writer,) if isinstance(writer, mmreplay.Writer) else writer.writers
            bounds = np.linspace(0, rows, lanes + 1).astype(int).tolist()
            for lane, (start, stop) in zip(writers, itertools.pairwise(bounds), strict=True):
                play(tape, lane, start, stop)

    return made(path, write)


def frames_of(lane: LaneView) -> ColumnView:
    """The frames of a lane whose observation is no dict."""
    frames = lane.frames
    assert isinstance(frames, ColumnView)
    return frames


def check_whole(store: mmreplay.Store, tape: Tape) -> None:
    """Read every row, which also brings all of it into the page cache, and compare."""
    lanes = store.lanes
    bounds = tape.lanes if len(lanes) > 1 else (0, len(tape))
    assert [lane.rows for lane in lanes] == np.diff(bounds).tolist()
    for lane, (start, stop) in zip(lanes, itertools.pairwise(bounds), strict=True):
        for row in range(start, stop, _PART):
            end = min(row + _PART, stop)
            found = frames_of(lane)[row - start : end - start]
            assert np.array_equal(found, tape.frames[row:end]), (store.path, row)
        assert np.array_equal(lane.rewards[:], tape.rewards[start:stop])
        assert np.array_equal(lane.actions[:], tape.actions[start:stop])
        assert np.array_equal(lane.non_terminals[:], tape.non_terminals[start:stop])
        assert np.array_equal(lane.resets[:], tape.resets[start:stop])


def made(path: Path, make: Callable[[Path], None]) -> Path:
    """Make a store beside its place and move it there, so that a half-made one is never used."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.with_name("making-" + path.name)
    shutil.rmtree(there, ignore_errors=True)
    make(there)
    there.rename(path)
    return path


@contextmanager
def _counted_encodes() -> Iterator[dict[str, int]]:
    """Count the inner chunks that are encoded meanwhile, and those of them in haste."""
    from mmreplay.format import compression

    counts = {"chunks": 0, "fast": 0}
    encode = compression.encode

    def counting(codec: Any, data: Any, *, fast: bool = False) -> bytes:
        counts["chunks"] += 1
        counts["fast"] += fast
        return encode(codec, data, fast=fast)

    compression.encode = counting
    try:
        yield counts
    finally:
        compression.encode = encode


def saved_frames(data: Path, game: str, tape: Tape) -> Path:
    """The first frames of a tape, as a file for another process."""
    path = data / f"{game}-frames.npy"
    np.save(path, tape.frames[:SAVED_FRAMES])
    return path
