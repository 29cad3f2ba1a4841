"""Real experience to measure with: games recorded once, and the stores that are made of them.

Invariant: a store made here holds exactly the rows of its tape, and the tape is read by
zarr-python, not by mmreplay.
"""

from __future__ import annotations

import dataclasses
import enum
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
from benchmarks.sizes import Scale
from mmreplay.reading.column_views import ColumnView, LaneView

__all__ = [
    "CODECS",
    "ENVIRONMENT_SPEED",
    "ENV_IDS",
    "SAVED_FRAMES",
    "Layout",
    "Tape",
    "check_whole",
    "frames_of",
    "made",
    "one_lane",
    "own_lanes",
    "play",
    "read_all",
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


class Layout(enum.Enum):
    """How a store holds the rows of a tape, and so what its ids mean."""

    ONE = "one lane, of all environments one after the other"
    LANES = "a lane for each environment"
    VECTOR = "one lane of all environments together"


@dataclasses.dataclass(frozen=True, slots=True)
class Tape:
    """Everything that was recorded of a game, in RAM: environment by environment.

    A row is a frame and the step from it; an episode of T steps has T + 1, the last without a step.

    Attributes:
        frames: (rows, 84, 84) uint8, contiguous.
        actions: (rows,) int64.
        rewards: (rows,) float32.
        non_terminals: (rows,) uint8.
        resets: (rows,) uint8.
        lanes: first row of each environment, and the number of rows at the end.
        cells: (ticks * environments,) int64, the row of each step of the recording, tick by tick;
            -1 where an environment was left out. Empty if this is no whole recording.
    """

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float32]
    non_terminals: npt.NDArray[np.uint8]
    resets: npt.NDArray[np.uint8]
    lanes: tuple[int, ...]
    cells: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Rows."""
        return len(self.resets)

    @property
    def n_transitions(self) -> int:
        """Rows that are followed by a row of the same episode."""
        return len(self) - int(self.resets.sum())

    def first(self, rows: int) -> Tape:
        """The first rows as a tape of one lane, in which the last episode ends with them."""
        actions, rewards = self.actions[:rows].copy(), self.rewards[:rows].copy()
        flags = self.non_terminals[:rows].copy()
        # What a writer makes of the last row, after which the episode goes on here.
        actions[-1], rewards[-1], flags[-1] = 0, 0, flags[-2]
        none = np.empty(0, np.int64)
        return Tape(
            self.frames[:rows], actions, rewards, flags, self.resets[:rows], (0, rows), none
        )

    def places(self, ids: npt.NDArray[np.int64], layout: Layout) -> npt.NDArray[np.int64]:
        """Rows of the tape of transition ids."""
        if layout is Layout.ONE:
            return ids
        if layout is Layout.VECTOR:
            return self.cells[ids]
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
    path = data / f"{game}-recorded-{codec}.zarr"

    def record(there: Path) -> None:
        mmreplay.record(ENV_IDS[game], there, scale.steps, envs=scale.envs, codec=codec, seed=SEED)

    return made(path, record)


def read_tape(path: Path) -> Tape:
    """All steps of a closed store of one vector lane, read by zarr-python."""
    group: Any = zarr.open_group(path, mode="r", zarr_format=3)
    ticks, starts = group["ticks"], group["starts"]
    numbers = ticks["episode"][:]
    width = numbers.shape[1]
    cells = np.full(numbers.size, -1)
    lanes, firsts, episodes = [0], [], []
    for env in range(width):
        stepped = np.flatnonzero(numbers[:, env] >= 0)
        own = numbers[stepped, env]
        begins = np.diff(own, prepend=-1) != 0
        # Each episode before has one row more than steps.
        rows = lanes[-1] + np.arange(len(own)) + np.cumsum(begins) - 1
        cells[stepped * width + env] = rows
        firsts.append(rows[begins])
        episodes.append(own[begins])
        lanes.append(int(rows[-1]) + 2)
    begin = np.concatenate(firsts)
    last = np.append(begin[1:], lanes[-1]) - 1
    there = np.flatnonzero(cells >= 0)
    rows = cells[there]

    def column(name: str) -> npt.NDArray[Any]:
        values = ticks[name][:].reshape(-1)[there]
        out = np.zeros(lanes[-1], values.dtype)
        out[rows] = values
        return out

    flags = column("non_terminals")
    flags[last] = flags[last - 1]
    resets = np.zeros(lanes[-1], np.uint8)
    resets[begin] = 1
    frames = np.empty((lanes[-1], *starts["frames"].shape[1:]), np.uint8)
    frames[begin] = starts["frames"][:][np.concatenate(episodes)]
    for tick in range(0, len(numbers), _PART // width):
        block = ticks["frames"][tick : tick + _PART // width]
        here = cells[tick * width :][: len(block) * width]
        frames[here[here >= 0] + 1] = block.reshape(-1, *frames.shape[1:])[here >= 0]
    return Tape(frames, column("actions"), column("rewards"), flags, resets, tuple(lanes), cells)


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

    def write(there: Path) -> None:
        with mmreplay.create(there, *_fields(tape, codec)) as writer:
            play(tape, writer, 0, len(tape), rows_per_s)

    path = data / f"{game}-one-{speed}-{codec}.zarr"
    return _counted(path, write, in_peace=rows_per_s is not None)


def own_lanes(data: Path, game: str, codec: str, tape: Tape) -> Path:
    """The tape with a lane for each environment, sealed in peace; made if it is not there."""

    def write(there: Path) -> None:
        for number, (start, stop) in enumerate(itertools.pairwise(tape.lanes)):
            with mmreplay.create(there, *_fields(tape, codec), lane=str(number)) as writer:
                play(tape, writer, start, stop, ENVIRONMENT_SPEED)

    return _counted(data / f"{game}-own-lanes-{codec}.zarr", write, in_peace=True)[0]


def repeated(data: Path, game: str, codec: str, tape: Tape, rows: int, envs: int) -> Path:
    """A closed store of `rows` rows in all: the tape again and again; made if not there.

    Of many environments one vector lane, in which each begins at another place of the tape.
    """
    path = data / f"{game}-{rows}-rows-{envs}-envs-{codec}.zarr"

    def write(there: Path) -> None:
        lanes = None if envs == 1 else envs
        with mmreplay.create(there, *_fields(tape, codec), lanes=lanes) as writer:
            if envs == 1:
                play(tape, writer, 0, rows)
            else:
                _play_together(tape, writer, rows // envs)

    return made(path, write)


def _play_together(tape: Tape, writer: Any, ticks: int) -> None:
    """Write steps of as many environments as the writer has, which all have other episodes."""
    begins = np.flatnonzero(tape.resets)
    is_last = np.roll(tape.resets, -1) == 1
    at = begins[np.linspace(0, len(begins), len(writer), endpoint=False).astype(int)]
    writer.reset(tape.frames[at])
    for _ in range(ticks):
        following = at + 1
        over, terminated = is_last[following], tape.non_terminals[at] == 0
        frames = tape.frames[following]
        writer.step(tape.actions[at], tape.rewards[at], frames, terminated, over & ~terminated)
        at = np.where(over, following + 1, following) % len(tape)
        if over.any():
            writer.reset(tape.frames[at], over)


def _fields(tape: Tape, codec: str) -> tuple[mmreplay.Field, mmreplay.Field]:
    """Frame and action."""
    return mmreplay.Field(tape.frames.shape[1:], "uint8", codec), mmreplay.Field((), "int64")


def frames_of(lane: LaneView) -> ColumnView:
    """The frames of a lane whose observation is no dict."""
    frames = lane.frames
    assert isinstance(frames, ColumnView)
    return frames


def read_all(store: mmreplay.Store) -> None:
    """Read every frame, so that every page of the maps was touched and every checksum checked."""
    for lane in store.lanes:
        part = _PART // lane.environments
        for row in range(0, lane.rows, part):
            _ = frames_of(lane)[row : row + part]
    _first_frames(store)  # of many environments they are no part of the frames above


def _first_frames(store: mmreplay.Store) -> tuple[Any, npt.NDArray[np.int64]]:
    """The first frame of each episode, and the id of its first step."""
    ids = store.episodes["id"]
    return store.transitions(ids, stack=None).observation, ids


def check_whole(store: mmreplay.Store, tape: Tape, layout: Layout) -> None:
    """Read every row, which also brings all of it into the page cache, and compare."""
    if layout is Layout.VECTOR:
        _check_cells(store, tape)
        return
    bounds = tape.lanes if layout is Layout.LANES else (0, len(tape))
    assert [lane.rows for lane in store.lanes] == np.diff(bounds).tolist()
    for lane, (start, stop) in zip(store.lanes, itertools.pairwise(bounds), strict=True):
        for row in range(start, stop, _PART):
            end = min(row + _PART, stop)
            found = frames_of(lane)[row - start : end - start]
            assert np.array_equal(found, tape.frames[row:end]), (store.path, row)
        assert np.array_equal(lane.rewards[:], tape.rewards[start:stop])
        assert np.array_equal(lane.actions[:], tape.actions[start:stop])
        assert np.array_equal(lane.non_terminals[:], tape.non_terminals[start:stop])
        assert np.array_equal(lane.resets[:], tape.resets[start:stop])


def _check_cells(store: mmreplay.Store, tape: Tape) -> None:
    """The same of one vector lane."""
    (lane,) = store.lanes
    width = lane.environments
    rows = tape.cells.reshape(lane.rows, width)
    there = rows >= 0
    assert np.array_equal(lane.episode[:] >= 0, there)
    part = _PART // width
    for tick in range(0, lane.rows, part):
        here = there[tick : tick + part]
        found = frames_of(lane)[tick : tick + part]
        assert np.array_equal(found[here], tape.frames[rows[tick : tick + part][here] + 1]), tick
    for found, expected in (
        (lane.actions, tape.actions),
        (lane.rewards, tape.rewards),
        (lane.non_terminals, tape.non_terminals),
    ):
        assert np.array_equal(found[:], np.where(there, expected[rows], 0))
    # Those that end with the recording are not marked.
    ends = np.where(there, np.roll(tape.resets, -2)[rows], 0)
    assert np.array_equal(lane.ends[:-1], ends[:-1])
    frames, ids = _first_frames(store)
    firsts = tape.places(ids, Layout.VECTOR)
    assert np.array_equal(np.sort(firsts), np.flatnonzero(tape.resets))
    assert np.array_equal(frames, tape.frames[firsts])


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


def _counted(
    path: Path, write: Callable[[Path], None], *, in_peace: bool
) -> tuple[Path, dict[str, int]]:
    """As `made`, and what `_counted_encodes` counted when it was made."""
    beside = path.with_suffix(".json")

    def counted(there: Path) -> None:
        with _counted_encodes() as counts:
            write(there)
        assert not (in_peace and counts["fast"]), "a paced writer had to hurry"
        beside.write_text(json.dumps(counts), encoding="utf-8")

    return made(path, counted), json.loads(beside.read_text(encoding="utf-8"))


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
