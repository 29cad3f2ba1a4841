"""The tail: a file of uncompressed rows that wait for their shard to be written."""

from __future__ import annotations

from collections.abc import Mapping

from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.system import durable_writes, memory_maps
from mmreplay.system.disk_errors import writing
from mmreplay.system.held_directories import AnyPath


def tail_path(lane: AnyPath, spec: ArraySpec) -> AnyPath:
    """Where the raw rows of a compressed array stand until their shard is written."""
    return lane / ".live" / (spec.path.replace("/", "~") + ".tail")


def inner_rows(spec: ArraySpec, tail: Array, start: int, inner: int) -> Array:
    """Where the rows of an inner chunk stand in a tail, of the shard that begins at row `start`.

    (inner_rows, *row_shape); of many environments those of one, (inner_rows, *row_shape[1:]),
    which do not follow one another.
    """
    block, environment = divmod(inner, spec.width)
    row = (start + block * spec.inner_rows) % len(tail)
    rows = tail[row : row + spec.inner_rows]
    return rows if spec.width == 1 else rows[:, environment]


def tail_problem(specs: Mapping[str, ArraySpec], head: int, tail_start: int) -> str:
    """Why the tail cannot hold the rows from `tail_start` to `head`; empty if it can."""
    half = max((spec.chunk_rows for spec in specs.values() if not spec.is_raw), default=0)
    if half and (tail_start % half or not tail_start <= head <= tail_start + 2 * half):
        return (
            f"tail_start: expected a multiple of {half:,} at most {2 * half:,} rows before the "
            f"head, {head:,}, found {tail_start:,}"
        )
    return ""


def is_shared(lane: AnyPath, spec: ArraySpec) -> bool:
    """Whether a tail has several names, so that a copy of the lane has it, too."""
    path = tail_path(lane, spec)
    with writing("looking at its names", path):
        return path.lstat().st_nlink > 1


def map_tail(lane: AnyPath, spec: ArraySpec, *, writable: bool = False) -> Array:
    """The tail of a compressed array, mapped: (2 * chunk_rows, *row_shape)."""
    if writable:
        durable_writes.make_own(tail_path(lane, spec))
    data = memory_maps.map_file(tail_path(lane, spec), 2 * spec.chunk_bytes, writable=writable)
    rows: Array = data.view(spec.dtype).reshape(2 * spec.chunk_rows, *spec.row_shape)
    return rows
