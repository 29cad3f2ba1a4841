"""The columns of a store as the page knows them: by number, read in blocks of rows.

Invariant: a request names a column by its number here, never by a name or a path.
"""

from __future__ import annotations

import dataclasses
import math

from mmreplay.schema import Field, Schema

FRAME_ROWS = 64
"""Frames of a block: four inner chunks of what `mmreplay.create` makes."""

_BLOCK_BYTES = 4 << 20
_SCALAR_ROWS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class ShownColumn:
    """One column: `number` in requests, `block` the most rows per request.

    `kind` is frame, action, reward, flag, extra or priority; `name` the key of the frames or the
    name of the extra, else the kind; `path` that in the store.
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
    listed += [("extra", name, path) for name, path in schema.extra_paths.items()]
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
