"""Reads episodes in runs and appends runs to a lane, for all that rewrites stores.

Invariant: every chosen episode comes once, in the given order; only a few blocks of steps are in
memory.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mmreplay.batches.runs import Steps, block_steps
from mmreplay.reading.store import Store
from mmreplay.schema import Schema
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.seal import Background
from mmreplay.writing.writer import Writer

_AHEAD = 8
"""Runs that are read ahead."""


def row_bytes(schema: Schema) -> int:
    """Bytes of a row, uncompressed."""
    return sum(one.row_bytes for one in schema.columns().values())


def read_runs(store: Store, episodes: npt.NDArray[np.void]) -> Iterator[Steps]:
    """All steps of some of the store's episodes, a block at a time; a run is of one episode."""
    schema, live, uuids = store.schema, store.live, store.live.uuids
    size = block_steps(row_bytes(schema))
    for first, length in zip(episodes["id"].tolist(), episodes["length"].tolist(), strict=True):
        for start in range(0, length, size):
            stop = min(start + size, length)
            rows = functools.partial(live.episode_rows, first=first, skip=start, uuids=uuids)
            yield Steps(
                {key: rows(path, n_rows=stop + 1) for key, path in schema.frame_paths.items()},
                rows("actions", n_rows=stop),
                rows("rewards", n_rows=stop),
                rows("non_terminals", n_rows=stop) == 0,
                {name: rows(path, n_rows=stop) for name, path in schema.extra_paths.items()},
                begins=start == 0,
                ends=stop == length,
            )


def write_runs(
    lane: AnyPath,
    runs: Iterable[Steps],
    n_threads: int,
    wrote: Callable[[int], None] = lambda _n_steps: None,
) -> None:
    """Append runs to a new closed lane, close it, and make it durable.

    `n_threads` compress; `wrote` is called with the steps of each run. If this raises, the caller
    removes the lane.
    """
    writer = Writer(LockedLane(lane, {}), Background(0, n_threads, building=True))
    try:
        for run in _ahead(runs):
            writer._extend(run)  # noqa: SLF001 (within the package)
            wrote(len(run))
        writer.close()
        durable_writes.sync_tree(lane)
    except BaseException:
        writer._release_unclosed()  # noqa: SLF001 (it is removed)
        raise


def _ahead(runs: Iterable[Steps]) -> Iterator[Steps]:
    """The same runs, read ahead in a thread."""
    source, pool = iter(runs), concurrent.futures.ThreadPoolExecutor(1, "mmreplay-read")
    try:
        coming = collections.deque(pool.submit(next, source, None) for _ in range(_AHEAD))
        while (run := coming.popleft().result()) is not None:
            coming.append(pool.submit(next, source, None))
            yield run
    finally:
        pool.shutdown(cancel_futures=True)
