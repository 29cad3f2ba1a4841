"""Packing: a store compressed again beside the codec alone, in turns.

The codec alone decodes the inner chunks of the same store and encodes them again, all of them in
memory, in as many processes as the machine has cores. Memory is that of a fresh process and of
those that it forks.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import zarr

import mmreplay
from benchmarks import fresh
from benchmarks.experience import read_tape, recorded, repeated
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import spread
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.shard_file import Bytes, Shard

__all__ = ["compress_again", "run"]

_COMPRESSED = 0.5
_MEMORY_MB = 300.0


def run(result: Result, scale: Scale, data: Path) -> None:
    """Of each game; memory of the first."""
    shutil.rmtree(data / "packed.zarr", ignore_errors=True)  # of a run that was cut off
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        large = repeated(data, game, "lz4", tape, scale.open_rows, 1)
        small = repeated(data, game, "lz4", tape, min(scale.steps, scale.open_rows), 1)
        del tape
        _compressed(result, game, large, scale, "zstd")
        _compressed(result, game, small, scale, "zstd:9")
    taken = fresh.call("pack", path=large, target=data / "packed.zarr", codec="zstd")
    shutil.rmtree(data / "packed.zarr")
    result.add(
        f"compressing {scale.open_rows:,} rows again: more memory at the peak",
        taken["peak"] - taken["before"],
        "MB",
        at_most=_MEMORY_MB,
    )


def _compressed(result: Result, game: str, path: Path, scale: Scale, codec: str) -> None:
    target = path.with_name("packed.zarr")
    mmreplay.pack(path, target, codec)
    _check(path, target)
    shutil.rmtree(target)
    given = {"path": path, "target": target, "codec": codec, "runs": scale.runs}
    taken = fresh.call("compress_again", **given)
    seconds, alone = np.array(taken["pack"]), np.array(taken["alone"])
    words = f"{game}: lz4 to {codec}"
    result.add(words, spread(taken["frames"] / seconds), "frames/s")
    bound = _COMPRESSED if codec == "zstd" else None
    what = f"{words}, speed by that of the codec alone"
    result.add(what, spread(alone / seconds), "times", at_least=bound)


def compress_again(path: Path, target: Path, codec: str, runs: int) -> dict[str, Any]:
    """Seconds of packs of a store, and of the codec alone, in turns; and how many frames it has."""
    chunks, spec = _inner_chunks(path)
    mmreplay.pack(path, target, codec)  # to warm up
    packed = LaneReader(target).rows.specs["frames"]
    shutil.rmtree(target)
    calls: dict[str, Callable[[], object]] = {
        "alone": functools.partial(_alone, spec, packed, chunks),
        "pack": functools.partial(mmreplay.pack, path, target, codec),
    }
    out: dict[str, Any] = {name: [] for name in calls} | {"frames": len(chunks) * spec.inner_rows}
    for number in range(runs):
        for name in sorted(calls, reverse=number % 2 == 1):
            began = perf_counter()
            calls[name]()
            out[name].append(perf_counter() - began)
            shutil.rmtree(target, ignore_errors=True)
    return out


def _inner_chunks(path: Path) -> tuple[list[Bytes], ArraySpec]:
    """All inner chunks of a store's frames, in memory."""
    reader = LaneReader(path)
    spec = reader.rows.specs["frames"]
    codec = compression.make_codec(spec.codec or {})
    out: list[Bytes] = []
    for chunk in chunk_files.chunk_files(path, spec):
        shard = Shard(chunk_files.chunk_path(path, spec, chunk), spec, codec)
        there = shard.chunks()
        out += [np.frombuffer(shard.encoded(number), np.uint8) for number in there]
    return out, spec


def _alone(old: ArraySpec, new: ArraySpec, chunks: list[Bytes]) -> None:
    """Decode all, and encode them again, in a process for each core."""
    n_processes = os.cpu_count() or 1
    decoder, encoder = (compression.make_codec(spec.codec or {}) for spec in (old, new))
    children = []
    for part in range(n_processes):
        child = os.fork()
        if child:
            children.append(child)
            continue
        buffer = np.empty(old.inner_bytes, np.uint8)
        for chunk in chunks[part::n_processes]:
            decoder.decompress(chunk[:-4], buffer)
            encoder.compress(buffer, fast=False)
        os._exit(0)
    assert not any(os.waitpid(child, 0)[1] for child in children)


def _check(path: Path, target: Path) -> None:
    """The rows of two stores are the same, as zarr-python reads them."""
    with mmreplay.open(path) as source, mmreplay.open(target) as copy:
        assert np.array_equal(source.ids, copy.ids)
    assert not mmreplay.verify(target).findings
    groups = [zarr.open_group(one, mode="r") for one in (path, target)]
    n_rows = groups[0]["rewards"].shape[0]
    for name in ("frames", "rewards", "actions", "resets"):
        for start in range(0, n_rows, 4096):
            first, second = (group[name][start : start + 4096] for group in groups)
            assert np.array_equal(first, second), (name, start)
