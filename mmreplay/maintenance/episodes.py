"""The episodes of closed stores as runs, and a lane that is made of runs.

Invariant: every chosen episode comes once, in the given order; only a few runs are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mmreplay.batches.runs import Run, block_steps
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.schema import Schema
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.seal import Background
from mmreplay.writing.stored_frames import StoredFrames
from mmreplay.writing.writer import Writer


def row_bytes(schema: Schema) -> int:
    """Bytes of a row, uncompressed."""
    return sum(one.row_bytes for one in schema.columns().values())


def stored_runs(lanes: JoinedLanes, episodes: npt.NDArray[np.void], shift: int) -> Iterator[Run]:
    """All steps of some episodes of closed lanes, a block at a time.

    For frames the runs have their ids, with `shift` added. Raises EvictedError, CorruptStoreError.
    """
    schema, lengths = lanes.readers[0].schema, episodes["length"]
    bounds, counts = np.cumsum(lengths), np.array([reader.n for reader in lanes.readers])
    size = block_steps(row_bytes(schema) - sum(one.row_bytes for one in schema.frames.values()))
    paths = ["actions", "rewards", "non_terminals", *schema.extra_paths.values()]
    for start in range(0, int(lengths.sum()), size):
        steps = np.arange(start, min(start + size, bounds[-1]))
        which = bounds.searchsorted(steps, "right")
        firsts, within = episodes["id"][which], steps - (bounds - lengths)[which]
        strides = counts[firsts >> LANE_SHIFT]
        ids, lasts = firsts + within * strides, np.flatnonzero(within + 1 == lengths[which])
        after = ids + strides
        after[lasts] = lanes.index.span(firsts[lasts]).steps.finals
        frames, finals = np.append(ids, after[-1]) + shift, after[lasts] + shift
        yield Run(
            dict.fromkeys(schema.frame_paths.values(), frames),
            {path: lanes.columns[path].take(ids) for path in paths},
            begins=not within[0],
            fields=lanes.stored_fields(ids[within == 0]),
            lasts=lasts,
            finals=dict.fromkeys(schema.frame_paths.values(), finals),
        )


def write_runs(
    lane: AnyPath,
    runs: Iterable[Run],
    wrote: Callable[[int], None] = lambda _n_steps: None,
    stored: StoredFrames | None = None,
) -> None:
    """Append runs to a new closed lane, close it, and make it durable.

    `wrote` is called with the steps of each run; with `stored` runs have ids for frames. If this
    raises, the caller removes the lane.
    """
    background = Background(0, max((os.cpu_count() or 1) - 1, 1), stored)
    writer = Writer(LockedLane(lane, {}), background)
    try:
        for run in runs:
            writer._extend(run)  # noqa: SLF001 (within the package)
            wrote(len(run))
        writer.close()
        durable_writes.sync_tree(lane)
    except BaseException:
        writer._release_unclosed()  # noqa: SLF001 (it is removed)
        raise
