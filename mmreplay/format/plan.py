"""Chunk lengths, shard lengths and codecs of a new store, where the user leaves them open.

Invariant: what is planned here is what `parse.parse_array` accepts.
"""

from __future__ import annotations

import math
from typing import Any

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format.layout import (
    CODECS,
    MAX_CHUNK_BYTES,
    MAX_INNER_BYTES,
    ArraySpec,
    array_json,
    odd_lengths,
)
from mmreplay.format.parse import checked_codec, parse_array
from mmreplay.schema import Field, Schema

_TARGET_BYTES = 32 << 20
_TAILS_BYTES = 256 << 20
_MAX_SHARD_ROWS = 4096
_MAX_INNER = 16
_INNER_BYTES = 512 * 1024
_COMPRESS_FROM_BYTES = 1024
_SCALAR_ROWS = 65_536
_SCALAR_ROWS_OF_MANY = 16_384
_UNKNOWN_LANES = 16


def plan_arrays(schema: Schema, lanes: int | None) -> dict[str, ArraySpec]:
    """Chunk lengths and codecs of every array, by path; raises SchemaError if they do not fit.

    `lanes` share the memory that the tails may take: None for a store of one lane, 0 where lanes
    come one by one and nobody knows how many.
    """
    default_rows = _SCALAR_ROWS if lanes is None else _SCALAR_ROWS_OF_MANY
    scalar_rows = schema.action.chunk or min(default_rows, _raw_rows(schema.action.row_bytes))
    out: dict[str, ArraySpec] = {}
    compressed: dict[str, tuple[Field, dict[str, Any]]] = {}
    for path, one in schema.arrays().items():
        codec = codec_of(one, path) if path.startswith("frames") else None
        if codec is not None:
            compressed[path] = (one, codec)
        elif path.startswith("frames"):
            out[path] = ArraySpec(path, one.shape, one.dtype, one.chunk or _raw_rows(one.row_bytes))
        else:
            rows = scalar_rows
            if path.startswith("extras"):
                rows = one.chunk or min(scalar_rows, _raw_rows(one.row_bytes))
            out[path] = ArraySpec(path, one.shape, one.dtype, rows)
    if compressed:
        shard, inners = _shard_rows({path: one for path, (one, _) in compressed.items()}, lanes)
        for path, (one, codec) in compressed.items():
            out[path] = ArraySpec(path, one.shape, one.dtype, shard, inners[path], codec)
    for spec in out.values():
        if spec.inner_rows > 1 and spec.inner_rows * spec.row_bytes > MAX_INNER_BYTES:
            raise SchemaError(
                f"{spec.path}: {spec.inner_rows:,} rows a chunk have "
                f"{spec.inner_rows * spec.row_bytes:,} bytes; at most {MAX_INNER_BYTES:,} are "
                f"compressed as one: give a smaller chunk"
            )
        if spec.chunk_bytes > MAX_CHUNK_BYTES:
            raise SchemaError(
                f"{spec.path}: a chunk of {spec.chunk_rows:,} rows has {spec.chunk_bytes:,} bytes; "
                f"at most {MAX_CHUNK_BYTES:,}: give a smaller chunk or shard"
            )
    return out


def plan_from_layout(schema: Schema, layout: Any, where: str) -> dict[str, ArraySpec]:
    """The arrays of a further lane, as attributes.mmreplay.layout of its store has them."""
    try:
        specs = {
            path: ArraySpec(
                path,
                one.shape,
                one.dtype,
                layout[path]["chunk"],
                layout[path]["inner"],
                layout[path]["codec"],
            )
            for path, one in schema.arrays().items()
        }
    except (KeyError, TypeError) as error:
        raise FormatError(f"{where}: layout: cannot be read: {error!s:.400}") from error
    # Once through the text of zarr.json: the checks of opening hold for making, too.
    specs = {path: parse_array(array_json(s, 0), path, where)[0] for path, s in specs.items()}
    for path, text in odd_lengths(specs):
        raise FormatError(f"{where}: layout: {path}: {text}")
    return specs


def codec_of(field: Field, path: str) -> dict[str, Any] | None:
    """The codec of a field as it stands in zarr.json, None for raw; raises SchemaError."""
    codec = field.codec
    if codec is None:
        codec = "lz4" if field.row_bytes >= _COMPRESS_FROM_BYTES else "raw"
    if codec == "raw":
        return None
    if isinstance(codec, str):
        if codec not in CODECS:
            raise SchemaError(
                f"{path}: expected codec 'raw', 'lz4', 'zstd' or a zarr codec as a dict, "
                f"found {codec!r}"
            )
        return CODECS[codec]
    try:
        return checked_codec(dict(codec), path, field.dtype.itemsize)
    except FormatError as error:
        raise SchemaError(str(error)) from error


def _raw_rows(row_bytes: int) -> int:
    """About 32 MiB, in whole pages where that does not inflate the chunk; at most 65,536 rows."""
    rows = max(1, min(_TARGET_BYTES // row_bytes, _SCALAR_ROWS))
    for page in (64 * 1024, 4096):
        granule = page // math.gcd(row_bytes, page)
        if granule <= rows:
            return rows - rows % granule
    return rows


def _shard_rows(fields: dict[str, Field], lanes: int | None) -> tuple[int, dict[str, int]]:
    """One shard length for all compressed keys, and each one's inner chunk length."""
    inners = {
        path: one.chunk or min(_MAX_INNER, max(1, _INNER_BYTES // one.row_bytes))
        for path, one in fields.items()
    }
    given = {one.shard for one in fields.values() if one.shard}
    if len(given) > 1:
        raise SchemaError(f"shard: all compressed frames share one length, found {sorted(given)}")
    if given:
        shard = given.pop()
        for path, inner in inners.items():
            if shard % inner:
                if fields[path].chunk:
                    raise SchemaError(
                        f"{path}: expected a shard of a multiple of the {inner} rows of a chunk, "
                        f"found {shard}"
                    )
                inners[path] = math.gcd(shard, inner)
        return shard, inners
    largest = max(one.row_bytes for one in fields.values())
    shard = max(1, min(_MAX_SHARD_ROWS, _TARGET_BYTES // largest))
    if lanes is not None:
        row = sum(one.row_bytes for one in fields.values())
        shard = min(shard, _TAILS_BYTES // (2 * (lanes or _UNKNOWN_LANES) * row))
        if not shard and not lanes:
            shard = 1
        if not shard:
            raise SchemaError(
                f"{lanes} lanes of {row:,} bytes a frame: expected their tails to fit into "
                f"{_TAILS_BYTES:,} bytes; use codec='raw', or give a shard length"
            )
    step = math.lcm(*inners.values())
    if step > shard:  # keys whose chunks have no common multiple within a shard
        inners = {
            path: inner if fields[path].chunk else 1 << (min(inner, shard).bit_length() - 1)
            for path, inner in inners.items()
        }
        step = math.lcm(*inners.values())
    if lanes is not None and shard >= step:
        # A power of two of chunks: the same length for nearby numbers of lanes.
        return step << ((shard // step).bit_length() - 1), inners
    return max(step, shard - shard % step), inners
