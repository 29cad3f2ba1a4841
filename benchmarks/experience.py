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
        entries: (rows of the recording * environments,) int64, the row here of each entry there;
            -1 where an environment was left out. Empty if this is no whole recording.
        steps: (transitions,) int64, the rows that have a step.
    """

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float32]
    non_terminals: npt.NDArray[np.uint8]
    resets: npt.NDArray[np.uint8]
    lanes: tuple[int, ...]
    entries: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Find the steps."""
        steps = np.flatnonzero(np.append(self.resets[1:], 1) == 0)
        object.__setattr__(self, "steps", steps)

    def __len__(self) -> int:
        """Rows."""
        return len(self.resets)

    @property
    def n_transitions(self) -> int:
        """Rows that have a step."""
        return len(self.steps)

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
            return self.steps[ids]
        if layout is Layout.VECTOR:
            return self.entries[ids]
        begins = self.steps.searchsorted(self.lanes)
        return self.steps[begins[ids >> _LANE_SHIFT] + (ids & ((1 << _LANE_SHIFT) - 1))]

    def entries_of(self, layout: Layout) -> list[npt.NDArray[np.int64]]:
        """Of each lane the row of each of its entries, (rows, environments), -1 for none."""
        if layout is Layout.VECTOR:
            return [self.entries.reshape(-1, len(self.lanes) - 1)]
        begins = [] if layout is Layout.ONE else self.steps.searchsorted(self.lanes[1:-1])
        return [one[:, None] for one in np.split(self.steps, begins)]

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
    """All steps of a closed store of environments that step together, read by zarr-python."""
    group: Any = zarr.open_group(path, mode="r", zarr_format=3)
    steps, finals = group["step"][:], group["finals"]
    n = steps.shape[1]
    entries = np.full(steps.size, -1)
    lanes, firsts = [0], []
    for env in range(n):
        stepped = np.flatnonzero(steps[:, env])
        begins = steps[stepped, env] == 1
        # Each episode before has one row more than steps.
        rows = lanes[-1] + np.arange(len(stepped)) + np.cumsum(begins) - 1
        entries[stepped * n + env] = rows
        firsts.append(rows[begins])
        lanes.append(int(rows[-1]) + 2)
    there = np.flatnonzero(entries >= 0)
    rows, last = entries[there], entries[finals["id"][:]] + 1

    def column(name: str) -> npt.NDArray[Any]:
        values = group[name][:].reshape(-1)[there]
        out = np.zeros(lanes[-1], values.dtype)
        out[rows] = values
        return out

    flags = column("non_terminals")
    flags[last] = flags[last - 1]
    resets = np.zeros(lanes[-1], np.uint8)
    resets[np.concatenate(firsts)] = 1
    frames = np.empty((lanes[-1], *finals["frames"].shape[1:]), np.uint8)
    frames[last] = finals["frames"][:]
    for row in range(0, len(steps), _PART // n):
        block = group["frames"][row : row + _PART // n]
        here = entries[row * n :][: len(block) * n]
        frames[here[here >= 0]] = block.reshape(-1, *frames.shape[1:])[here >= 0]
    return Tape(frames, column("actions"), column("rewards"), flags, resets, tuple(lanes), entries)


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

    Of many environments one lane, in which each begins at another place of the tape.
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


def _play_together(tape: Tape, writer: Any, steps: int) -> None:
    """Write steps of as many environments as the writer has, which all have other episodes."""
    begins = np.flatnonzero(tape.resets)
    is_last = np.roll(tape.resets, -1) == 1
    at = begins[np.linspace(0, len(begins), len(writer), endpoint=False).astype(int)]
    writer.reset(tape.frames[at])
    for _ in range(steps):
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
    _last_frames(store)


def _last_frames(store: mmreplay.Store) -> tuple[Any, npt.NDArray[np.int64]]:
    """The observation after each episode, and the id of its last step."""
    environments = np.array([lane.environments for lane in store.lanes])
    ids, lengths = store.episodes["id"], store.episodes["length"]
    ids = ids + (lengths - 1) * environments[ids >> _LANE_SHIFT]
    return store.transitions(ids, stack=None).next_observation, ids


def check_whole(store: mmreplay.Store, tape: Tape, layout: Layout) -> None:
    """Read every row, which also brings all of it into the page cache, and compare."""
    ends = np.roll(tape.resets, -2)
    ends[-2] = 1
    for lane, rows in zip(store.lanes, tape.entries_of(layout), strict=True):
        there, n = rows >= 0, lane.environments
        assert np.array_equal(lane.step[:].reshape(-1, n) > 0, there)
        part = _PART // n
        for row in range(0, lane.rows, part):
            here = there[row : row + part]
            found = frames_of(lane)[row : row + part].reshape(*here.shape, *tape.frames.shape[1:])
            assert np.array_equal(found[here], tape.frames[rows[row : row + part][here]]), row
        for found, expected in (
            (lane.actions, tape.actions),
            (lane.rewards, tape.rewards),
            (lane.non_terminals, tape.non_terminals),
            (lane.resets, tape.resets),
            (lane.ends, ends),
        ):
            wanted = np.where(there, expected[rows], 0)
            assert np.array_equal(found[:].reshape(-1, n), wanted), found
    frames, ids = _last_frames(store)
    last = tape.places(ids, layout) + 1
    assert np.array_equal(np.sort(last), np.flatnonzero(np.append(tape.resets[1:], 1)))
    assert np.array_equal(frames, tape.frames[last])


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


def light_rows(data: Path, n: int, length: int = 1_000) -> Path:
    """A store of `n` transitions that hold next to nothing, in episodes of `length` steps."""

    def write(there: Path) -> None:
        frame = np.zeros((), np.uint8)
        with mmreplay.create(
            there, frame=mmreplay.Field((), "uint8"), action=mmreplay.Field((), "uint8")
        ) as writer:
            for step in range(n):
                if not step % length:
                    writer.reset(frame)
                writer.step(0, step % 7, frame, False, step % length == length - 1)

    return made(data / f"transitions-{n}-of-{length}.zarr", write)


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
