"""Reads episodes in runs and appends runs to a lane, for all that rewrites stores.

Invariant: every chosen episode comes once, in the given order; only a few blocks of steps are in
memory, also of those that are mapped.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.runs import Steps, StoredRows, block_steps
from mmreplay.reading.store import Store
from mmreplay.schema import Schema
from mmreplay.system import durable_writes

_MAPPED_BYTES = 64 << 20
"""Of rows, uncompressed, that are read before their pages are released."""


def row_bytes(schema: Schema) -> int:
    """Bytes of a row, uncompressed."""
    return sum(one.row_bytes for one in schema.columns().values())


def read_runs(store: Store, episodes: npt.NDArray[np.void]) -> Iterator[Steps]:
    """All steps of some of the store's episodes, a block at a time; a run is of one episode."""
    schema, live, uuids = store.schema, store.live, store.live.uuids
    size, extras = block_steps(row_bytes(schema)), schema.extra_paths
    rows = functools.partial(live.episode_rows, uuids=uuids)
    paths = ["actions", "rewards", "non_terminals", *extras.values()]
    fields, n_mapped = live.stored_fields(episodes["id"]), 0
    for place, (first, length) in enumerate(episodes[["id", "length"]].tolist()):
        given = {name: values[place] for name, values in fields.items()}
        for start in range(0, length, size):
            stop = min(start + size, length)
            action, reward, flags, *more = rows(paths, first, start, stop)
            frames = {
                key: StoredRows(functools.partial(rows, [path], first), start, stop + 1)
                for key, path in schema.frame_paths.items()
            }
            extra = dict(zip(extras, more, strict=True))
            begins, ends = start == 0, stop == length
            yield Steps(frames, action, reward, flags == 0, extra, begins, ends, given)
            n_mapped += (stop - start) * row_bytes(schema)
            if n_mapped > _MAPPED_BYTES:
                n_mapped = 0
                live.release_frames()


def write_runs(
    writer: Any,
    runs: Iterable[Steps],
    n_threads: int | None,
    wrote: Callable[[int], None] = lambda _n_steps: None,
) -> None:
    """Append runs by the `Writer` of a lane that was just made, close it, and make it durable.

    `n_threads` compress, by default one per processor but one; `wrote` is called with the steps of
    each run. If this raises, the caller removes the lane.
    """
    # ruff: noqa: SLF001 (within the package)
    try:
        writer._background.build(n_threads or max((os.cpu_count() or 1) - 1, 1))
        for run in runs:
            writer._extend(run)
            wrote(len(run))
        writer.close()
        durable_writes.sync_tree(writer.path)
    except BaseException:
        writer._release_unclosed()
        raise
