"""Long closed lanes out of short ones: the same chunk files under many names, by hard links.

Invariant: the long lane is what a writer of the same rows, again and again, would have closed; only
its index of episodes and its checksums are bytes of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import stored_checksum
from mmreplay.writing import build_lane

__all__ = ["repeat_lane"]

_OF_THE_LANE = ("rows", "crc32c")


def repeat_lane(source: Path, target: Path, times: int) -> None:
    """Make a closed lane at `target` of the rows of a closed lane, so many times over.

    That lane is of one environment, evicted nothing, and ends where its chunk files do.
    """
    reader = LaneReader(source)
    assert reader.is_closed
    assert reader.base == 0
    head, specs = reader.head, reader.specs
    n_rows = head * times
    own = {name: value for name, value in reader.metadata.items() if name not in _OF_THE_LANE}
    arrays = [(spec, n_rows) for spec in specs.values()]
    arrays += [
        (layout.checksum_spec(path), n_rows // spec.chunk_rows) for path, spec in specs.items()
    ]
    own |= {"rows": n_rows, "closed": True}
    build_lane.write_documents(target, own, [*arrays, (layout.index_spec(), 0)])
    for spec in specs.values():
        _link(source, target, spec, head, times)
    starts = reader.starts() + np.arange(times)[:, None] * head
    build_lane.write_index(target, starts.ravel())


def _link(source: Path, target: Path, spec: ArraySpec, head: int, times: int) -> None:
    """Link the chunk files of one array, and write their checksums."""
    n_chunks, rest = divmod(head, spec.chunk_rows)
    assert not rest, f"{spec.path}: {head:,} rows are not whole chunk files of {spec.chunk_rows:,}"
    sums = []
    for chunk in range(n_chunks):
        path = chunk_files.chunk_path(source, spec, chunk)
        for turn in range(times):
            os.link(path, chunk_files.chunk_path(target, spec, turn * n_chunks + chunk))
        sums.append(stored_checksum(source, spec, chunk))
    of_sums = layout.checksum_spec(spec.path)
    every = np.tile(np.array(sums, of_sums.dtype), times)
    size = of_sums.chunk_rows
    for number, first in enumerate(range(0, every.size, size)):
        part = every[first : first + size]
        data = part.tobytes().ljust(of_sums.chunk_bytes, b"\0")
        chunk_files.chunk_path(target, of_sums, number).write_bytes(data)
