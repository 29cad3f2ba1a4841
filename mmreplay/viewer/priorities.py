"""Read the priorities of a store's transitions without locking, mapping or writing anything.

Invariant: a priority that cannot be read is NaN, and does not prevent the rest from being shown.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MmreplayError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.reading.store import Store
from mmreplay.storage import chunk_files, priority_column
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath


def has_priorities(store: Store) -> bool:
    """Whether any lane has a column of priorities."""
    return any(_column(store, lane) is not None for lane in range(len(store.live.readers)))


def read_priorities(store: Store, ids: Ids) -> npt.NDArray[np.float64]:
    """The priorities of transitions by id, (B,); NaN if missing or damaged."""
    out = np.full(ids.size, np.nan)
    lanes = ids >> LANE_SHIFT
    for lane in np.unique(lanes).tolist():
        column = _column(store, lane)
        if column is not None:
            here = np.flatnonzero(lanes == lane)
            out[here] = _read(*column, ids[here] & ROW_MASK)
    return out


def _column(store: Store, lane: int) -> tuple[AnyPath, ArraySpec] | None:
    """The path of a lane, and the layout of its priorities by entry; None if it has none."""
    reader = store.live.readers[lane]
    try:
        spec = priority_column.find_spec(reader.path, reader.environments)
    except (MmreplayError, OSError):  # damaged; `verify` reports it
        return None
    if spec is None:
        return None
    return reader.path, spec if reader.environments is None else spec.entries(reader.n)


def _read(path: AnyPath, spec: ArraySpec, entries: Ids) -> npt.NDArray[np.float64]:
    out = np.full(entries.size, np.nan)
    chunks, within = np.divmod(entries, spec.chunk_rows)
    for chunk in np.unique(chunks).tolist():
        here = chunks == chunk
        try:
            data = checked_reads.read_bytes(
                chunk_files.chunk_path(path, spec, chunk), spec.chunk_bytes
            )
        except (MmreplayError, OSError):  # evicted, never written, or damaged
            continue
        if len(data) == spec.chunk_bytes:
            out[here] = np.frombuffer(data, np.float64)[within[here]]
    return out
