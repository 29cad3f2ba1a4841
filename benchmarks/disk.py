"""Bytes on disk of recorded games: allocated blocks of every file and directory, as `du` counts.

Held against the raw frames of the same rows: everything else that a store keeps (actions, rewards,
flags, checksums, metadata) counts against it. The same experience with a lane for each environment
stands beside it: to have all of them in one lane may take hardly more.
"""

from __future__ import annotations

from pathlib import Path

import mmreplay
from benchmarks.experience import CODECS, Layout, check_whole, own_lanes, read_tape, recorded
from benchmarks.results import Result
from benchmarks.sizes import Scale

__all__ = ["allocated", "run"]

_BOUNDS = {
    ("breakout", "lz4"): 45.0,
    ("breakout", "zstd"): 60.0,
    ("mspacman", "lz4"): 18.0,
    ("mspacman", "zstd"): 20.0,
}
_BY_LANES = 1.03
_BLOCK = 512  # st_blocks, whatever the file system's own blocks are


def run(result: Result, scale: Scale, data: Path) -> None:
    """Every game with every codec."""
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        raw = tape.frames.nbytes
        result.add(f"{game}: raw frames", raw / 1e6, "MB")
        stacked = 8 * tape.n_transitions * tape.frames[0].nbytes
        for codec in CODECS:
            path = recorded(data, game, codec, scale)
            lanes = own_lanes(data, game, codec, tape)
            for store_path, layout in ((path, Layout.VECTOR), (lanes, Layout.LANES)):
                with mmreplay.open(store_path) as store:
                    check_whole(store, tape, layout)
            total, of_lanes = allocated(path), allocated(lanes)
            result.add(f"{game}, {codec}: on disk", total / 1e6, "MB")
            frames = sum(allocated(log / "frames") for log in (path, path / "finals"))
            result.details[f"{game} {codec}"] = {
                "bytes": total,
                "bytes in a lane for each environment": of_lanes,
                "of them frames": frames,
                "rows": len(tape),
                "raw frames": raw,
                "stacked": stacked,
            }
            what = f"{game}, {codec}: by that of {scale.envs} lanes"
            result.add(what, total / of_lanes, "times", at_most=_BY_LANES)
            bound = _BOUNDS.get((game, codec))
            if codec != "raw":
                what = f"{game}, {codec}: smaller than the raw frames"
                result.add(what, raw / total, "times", at_least=bound)
                what = f"{game}, {codec}: smaller than stacked storage"
                result.add(what, stacked / total, "times")


def allocated(path: Path) -> int:
    """Bytes of the blocks of a directory and everything in it."""
    return sum(one.lstat().st_blocks for one in (path, *path.rglob("*"))) * _BLOCK
