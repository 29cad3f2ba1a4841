"""Bytes on disk of recorded games: allocated blocks of every file and directory, as `du` counts.

Held against the raw frames of the same rows: everything else that a store keeps (actions, rewards,
flags, checksums, metadata) counts against it.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

import mmreplay
from benchmarks.experience import Tape, frames_of, read_tape, recorded
from benchmarks.results import Result
from benchmarks.scale import Scale

__all__ = ["allocated", "run"]

_BOUNDS = {
    ("breakout", "lz4"): 45.0,
    ("breakout", "zstd"): 60.0,
    ("mspacman", "lz4"): 18.0,
    ("mspacman", "zstd"): 20.0,
}
_BLOCK = 512  # st_blocks, whatever the file system's own blocks are


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game with every codec."""
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        raw = tape.frames.nbytes
        result.add(f"{game}: raw frames", raw / 1e6, "MB")
        stacked = 8 * tape.n_transitions * tape.frames[0].nbytes
        for codec in ("raw", "lz4", "zstd"):
            path = recorded(data, game, codec, scale)
            _check(path, tape)
            total = allocated(path)
            result.add(f"{game}, {codec}: on disk", total / 1e6, "MB")
            frames = sum(allocated(lane / "frames") for lane in path.glob("lane-*"))
            result.details[f"{game} {codec}"] = {
                "bytes": total,
                "of them frames": frames,
                "rows": len(tape),
                "raw frames": raw,
                "stacked": stacked,
            }
            bound = _BOUNDS.get((game, codec))
            if codec != "raw":
                what = f"{game}, {codec}: smaller than the raw frames"
                result.add(what, raw / total, "times", at_least=bound)
                what = f"{game}, {codec}: smaller than stacked storage"
                result.add(what, stacked / total, "times")


def allocated(path: Path) -> int:
    """Bytes of the blocks of a directory and everything in it."""
    return sum(one.lstat().st_blocks for one in (path, *path.rglob("*"))) * _BLOCK


def _check(path: Path, tape: Tape) -> None:
    """A part of every lane, and all that is small."""
    with mmreplay.open(path) as store:
        for lane, (start, stop) in zip(store.lanes, itertools.pairwise(tape.lanes), strict=True):
            assert lane.rows == stop - start
            frames = frames_of(lane)
            for row in np.linspace(0, lane.rows - 1, 100).astype(int).tolist():
                assert np.array_equal(frames[row], tape.frames[start + row])
            assert np.array_equal(lane.rewards[:], tape.rewards[start:stop])
            assert np.array_equal(lane.actions[:], tape.actions[start:stop])
