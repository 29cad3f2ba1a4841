"""The columns of a store as the page knows them: by number, read in blocks of rows.

Invariant: a request names a column by its number here, never by a name or a path. Priorities are
read without locking, mapping or writing anything; one that cannot be read is NaN.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MmreplayError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.store import Store
from mmreplay.schema import Field, Schema
from mmreplay.storage import chunk_files, priority_column
from mmreplay.system import checked_reads

FRAME_ROWS = 64  # frames of a block: four inner chunks of what `mmreplay.create` makes

_BLOCK_BYTES = 4 << 20
_SCALAR_ROWS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class ShownColumn:
    """One column: `number` in requests, `block` the most rows per request.

    `kind` is frame, action, reward, flag, extra, derived or priority; `name` the key or name of a
    frame, extra or derived column, else the kind; `path` that in the store.
    """

    number: int
    kind: str
    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    block: int


def shown_columns(schema: Schema) -> list[ShownColumn]:
    """The columns of a schema that the page shows, by number."""
    fields = {**schema.columns(), "non_terminals": Field((), "uint8")}
    listed = [("frame", name, path) for name, path in schema.frame_paths.items()]
    listed += [
        ("action", "action", "actions"),
        ("reward", "reward", "rewards"),
        ("flag", "non_terminal", "non_terminals"),
    ]
    kinds = dict.fromkeys(schema.derived, "derived")
    listed += [(kinds.get(name, "extra"), name, path) for name, path in schema.extra_paths.items()]
    out = []
    for number, (kind, name, path) in enumerate(listed):
        field = fields[path]
        rows = _block(field, frames=kind == "frame")
        out.append(ShownColumn(number, kind, name, path, field.dtype.name, field.shape, rows))
    priority = ("priority", "priority", "priorities", "float64", (), _SCALAR_ROWS)
    return [*out, ShownColumn(len(out), *priority)]


def _block(field: Field, *, frames: bool) -> int:
    """The rows that fit into a block; of images at most `FRAME_ROWS`."""
    row_bytes = field.dtype.itemsize * math.prod(field.shape)
    most = FRAME_ROWS if frames and len(field.shape) > 1 else _SCALAR_ROWS
    return max(min(_BLOCK_BYTES // max(row_bytes, 1), most), 1)


def has_priorities(store: Store) -> bool:
    """Whether any lane has a column of priorities."""
    return any(_priorities(reader) is not None for reader in store.live.readers)


def read_priorities(store: Store, ids: Ids) -> npt.NDArray[np.float64]:
    """The priorities of transitions by id, (B,); NaN if missing or damaged."""
    out = np.full(ids.size, np.nan)
    for lane, reader in enumerate(store.live.readers):
        here = np.flatnonzero(ids >> LANE_SHIFT == lane)
        spec = _priorities(reader) if here.size else None
        if spec is None:
            continue
        chunks, within = np.divmod(ids[here] & ROW_MASK, spec.chunk_rows)
        for chunk in np.unique(chunks).tolist():
            path = chunk_files.chunk_path(reader.path, spec, chunk)
            with contextlib.suppress(MmreplayError, OSError):  # evicted, never written, damaged
                data = checked_reads.read_bytes(path, spec.chunk_bytes)
                if len(data) == spec.chunk_bytes:
                    rows = np.frombuffer(data, np.float64)
                    out[here[chunks == chunk]] = rows[within[chunks == chunk]]
    return out


def _priorities(reader: LaneReader) -> ArraySpec | None:
    """The layout of a lane's priorities by entry; None if it has none."""
    with contextlib.suppress(MmreplayError, OSError):  # damaged; `verify` reports it
        spec = priority_column.find_spec(reader.path, reader.environments)
        return spec if spec is None or reader.environments is None else spec.entries(reader.n)
    return None
