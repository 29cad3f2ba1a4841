"""Chunk lengths, shard lengths and codecs of a new store, where the user leaves them open.

Invariant: what is planned here is what `parse.parse_array` accepts.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format.columns import Column, final_columns, row_columns
from mmreplay.format.compression import checked_codec
from mmreplay.format.layout import (
    CODECS,
    LARGE_FRAME_BYTES,
    MAX_CHUNK_BYTES,
    MAX_INNER_BYTES,
    ArraySpec,
    array_json,
    named_axes,
    odd_lengths,
)
from mmreplay.format.parse import parse_array
from mmreplay.schema import FRAME, Field, Schema

_TARGET_BYTES = 32 << 20
_TAILS_BYTES = 256 << 20
_MAX_SHARD_ROWS = 4096
_MAX_INNER = 16
_INNER_BYTES = 512 * 1024
_COMPRESS_FROM_BYTES = 1024
_PAGE_BYTES = 4096
_SCALAR_ROWS = 65_536
_FINAL_BYTES, _FINAL_PAGES_BYTES, _LEAST_FINALS = 1 << 20, 16 << 20, 16
"""Episodes end seldom: their log takes little room while the lane is open."""
_FINAL_NUMBERS = 16_384
_ROUND_UP_BYTES = 1 << 20
_STEPS_OF_MANY, _LEAST_ENTRIES = 64, 65_536
_PARTS_OF_CAPACITY = 10
"""Disk space comes free in whole chunk files: no more than so much of what a capacity holds."""
_ROWS_OF_MANY, _LEAST_ROWS_OF_MANY = 8_192, 1_024
_UNKNOWN_LANES = 16
_LEVELS = {"zstd": "level", "gzip": "level", "lz4": "clevel"}
"""What zarr calls the level of a codec that may be given with one."""


@dataclasses.dataclass(frozen=True, slots=True)
class LanePlan:
    """Every array of a new lane, by path: of its steps, and of its final observations."""

    rows: dict[str, ArraySpec]
    finals: dict[str, ArraySpec]


def plan_lane(
    schema: Schema, environments: int | None, capacity: int | None, lanes: int | None = None
) -> LanePlan:
    """Chunk lengths and codecs of every array; raises SchemaError if they do not fit.

    `lanes` share the memory of the tails: None for a store of one lane, 0 if the number is unknown.
    """
    if environments is None:
        rows = _plan_one(schema, lanes, capacity)
    else:
        rows = _plan_many(schema, environments, capacity)
    return LanePlan(rows, _plan_finals(schema, environments or 1))


def _plan_one(schema: Schema, lanes: int | None, capacity: int | None) -> dict[str, ArraySpec]:
    """The arrays of the steps of one environment; in a store of lanes they follow the capacity."""
    default_rows = _SCALAR_ROWS
    if lanes is not None:
        parts = _ROWS_OF_MANY if capacity is None else capacity // _PARTS_OF_CAPACITY
        default_rows = max(min(parts, _ROWS_OF_MANY), _LEAST_ROWS_OF_MANY)
    scalar_rows = schema.action.chunk or min(default_rows, _raw_rows(schema.action.row_bytes))
    fields = schema.columns()

    def raw(spec: ArraySpec) -> ArraySpec:
        rows = scalar_rows
        if spec.path.startswith("frames"):
            rows = fields[spec.path].chunk or _raw_rows(spec.row_bytes, default_rows)
        elif spec.path.startswith("extras"):
            rows = fields[spec.path].chunk or min(scalar_rows, _raw_rows(spec.row_bytes))
        return dataclasses.replace(spec, chunk_rows=rows)

    def shards(frames: dict[str, Field]) -> tuple[int, dict[str, int]]:
        return _shard_rows(frames, lanes, min(default_rows, _MAX_SHARD_ROWS))

    return _arrays(row_columns(schema, None), fields, ("step",), raw, shards)


def _plan_many(schema: Schema, n: int, capacity: int | None) -> dict[str, ArraySpec]:
    """The arrays of the steps of n environments; lengths are in steps."""
    # Of few environments, as many as a lane of one has rows: a file is a hole until it is filled.
    entries, most = n * _STEPS_OF_MANY, _MAX_SHARD_ROWS
    if capacity is not None:
        entries = min(entries, capacity // _PARTS_OF_CAPACITY)
        most = min(most, capacity // _PARTS_OF_CAPACITY)
    entries = max(entries, _LEAST_ENTRIES)
    fields = schema.columns()

    def raw(spec: ArraySpec) -> ArraySpec:
        one = schema.action if spec.path == "rewards" else fields.get(spec.path, schema.action)
        rows = max(min(entries // n, _TARGET_BYTES // spec.row_bytes), 1)
        page = _PAGE_BYTES // math.gcd(spec.row_bytes, _PAGE_BYTES)
        if page * spec.row_bytes <= _ROUND_UP_BYTES:
            rows = max(rows, page)
        rows = one.chunk or _whole_pages(rows, spec.row_bytes)
        # Smaller frames would cost each step more than reading a stack as one piece saves: their
        # pages are those of many environments.
        is_large = spec.path.startswith("frames") and spec.row_bytes // n >= LARGE_FRAME_BYTES
        return dataclasses.replace(spec, chunk_rows=rows, width=n if is_large else 1)

    def shards(frames: dict[str, Field]) -> tuple[int, dict[str, int]]:
        return _shard_of_many(frames, n, most)

    return _arrays(row_columns(schema, n), fields, ("step", "env"), raw, shards)


def _plan_finals(schema: Schema, n: int) -> dict[str, ArraySpec]:
    """The arrays of final observations; each chunk file has room for one of all n environments."""

    def raw(spec: ArraySpec) -> ArraySpec:
        rows = max(min(_FINAL_BYTES // spec.row_bytes, _FINAL_NUMBERS), _LEAST_FINALS, n)
        page = _PAGE_BYTES // math.gcd(spec.row_bytes, _PAGE_BYTES)
        if page * spec.row_bytes <= _FINAL_PAGES_BYTES:  # whole pages can be mapped side by side
            rows = -(-rows // page) * page
        return dataclasses.replace(spec, chunk_rows=rows)

    def shards(frames: dict[str, Field]) -> tuple[int, dict[str, int]]:
        least = max(_FINAL_BYTES // max(one.row_bytes for one in frames.values()), _LEAST_FINALS, n)
        inners = {path: _power_of_two(_inner_rows(one), least) for path, one in frames.items()}
        step = max(inners.values())  # a multiple of the others
        return -(-least // step) * step, inners

    return _arrays(final_columns(schema), schema.columns(), ("episode",), raw, shards)


def _arrays(
    columns: Mapping[str, Column],
    fields: Mapping[str, Field],
    axes: tuple[str, ...],
    raw: Callable[[ArraySpec], ArraySpec],
    shards: Callable[[dict[str, Field]], tuple[int, dict[str, int]]],
) -> dict[str, ArraySpec]:
    """The arrays of a log: `raw` chooses the chunk length of one, `shards` those of all others."""
    out: dict[str, ArraySpec] = {}
    codecs: dict[str, dict[str, Any]] = {}
    for path, column in columns.items():
        codec = codec_of(fields[path], path) if path.startswith("frames") else None
        if codec is None:
            out[path] = raw(ArraySpec(path, column.row_shape, column.dtype, 1))
        else:
            codecs[path] = codec
    if codecs:
        shard, inners = shards({path: fields[path] for path in codecs})
        for path, codec in codecs.items():
            one = columns[path]
            shape, dtype = one.row_shape, one.dtype
            out[path] = ArraySpec(path, shape, dtype, shard, inners[path], codec, one.width)
    out = {path: named_axes(spec, *axes) for path, spec in out.items()}
    _check_lengths(out)
    return out


def _shard_of_many(fields: dict[str, Field], n: int, frames: int) -> tuple[int, dict[str, int]]:
    """One shard length for all compressed keys, in steps, and each one's inner chunk length."""
    if any(
        one.shard for one in fields.values()
    ):  # lengths of the user's own; `_shard_rows` checks them
        return _shard_rows(fields, None)
    row = sum(one.row_bytes for one in fields.values()) * n
    most = max(_TAILS_BYTES // 2 // (2 * row), 1)
    inners = {
        path: one.chunk or _power_of_two(_inner_rows(one), most) for path, one in fields.items()
    }
    step = math.lcm(*inners.values())
    return max(min(frames // n, most) // step, 1) * step, inners


def _power_of_two(*most: int) -> int:
    """The largest power of two that is at most each of these."""
    return 1 << (min(most).bit_length() - 1)


def _inner_rows(field: Field) -> int:
    return field.chunk or min(_MAX_INNER, max(1, _INNER_BYTES // field.row_bytes))


def _check_lengths(specs: Mapping[str, ArraySpec]) -> None:
    """Raise SchemaError for chunks that are too large to read or map."""
    for spec in specs.values():
        if spec.inner_rows > 1 and spec.inner_bytes > MAX_INNER_BYTES:
            raise SchemaError(
                f"{spec.path}: {spec.inner_rows:,} rows a chunk have {spec.inner_bytes:,} bytes; "
                f"at most {MAX_INNER_BYTES:,} are compressed as one: give a smaller chunk"
            )
        if spec.chunk_bytes > MAX_CHUNK_BYTES:
            raise SchemaError(
                f"{spec.path}: a chunk of {spec.chunk_rows:,} rows has {spec.chunk_bytes:,} bytes; "
                f"at most {MAX_CHUNK_BYTES:,}: give a smaller chunk or shard"
            )


def plan_from_layout(schema: Schema, layout: Any, where: str) -> dict[str, ArraySpec]:
    """The arrays of a further lane, as attributes.mmreplay.layout of its store has them."""
    try:
        specs = {
            path: named_axes(
                ArraySpec(
                    path,
                    one.row_shape,
                    one.dtype,
                    *(layout[path][key] for key in ("chunk", "inner", "codec")),
                ),
                "step",
            )
            for path, one in row_columns(schema, None).items()
        }
    except (KeyError, TypeError) as error:
        raise FormatError(f"{where}: layout: cannot be read: {error!s:.400}") from error
    # Once through the text of zarr.json: the checks of opening hold for making, too.
    specs = {path: parse_array(array_json(s, 0), path, where)[0] for path, s in specs.items()}
    for path, text in odd_lengths(specs):
        raise FormatError(f"{where}: layout: {path}: {text}")
    return specs


def with_codecs(schema: Schema, specs: Mapping[str, ArraySpec]) -> Schema:
    """A schema with the codecs that frames have elsewhere, by path."""
    frames = {
        key: dataclasses.replace(schema.frames[key], codec=specs[path].codec or "raw")
        for key, path in schema.frame_paths.items()
    }
    return dataclasses.replace(schema, frame=frames if schema.is_dict else frames[FRAME])


def codec_of(field: Field, path: str) -> dict[str, Any] | None:
    """The codec of a field as it stands in zarr.json, None for raw; raises SchemaError."""
    codec = field.codec
    if codec is None:
        is_large = field.row_bytes >= _COMPRESS_FROM_BYTES
        # Floats hardly compress: 348 of float64 to 73 %, with batches that take 8 times as long.
        codec = "lz4" if is_large and field.dtype.kind != "f" else "raw"
    if codec == "raw":
        return None
    if isinstance(codec, str):
        if codec in CODECS:
            return CODECS[codec]
        codec = _with_level(codec, path)
    try:
        return checked_codec(dict(codec), path, field.dtype.itemsize)
    except FormatError as error:
        raise SchemaError(str(error)) from error


def _with_level(given: str, path: str) -> dict[str, Any]:
    """The codec of a name with a level, as ``zstd:9``; its level may be out of range."""
    name, _, level = given.partition(":")
    if name not in _LEVELS or not level.removeprefix("-").isdecimal():
        raise SchemaError(
            f"{path}: expected codec 'raw', 'lz4', 'zstd' or one with a level, as 'zstd:9', "
            f"'lz4:9' or 'gzip:5'; found {given!r:.80}"
        )
    document = copy.deepcopy(CODECS.get(name, {"name": name, "configuration": {}}))
    document["configuration"][_LEVELS[name]] = int(level)
    return document


def _raw_rows(row_bytes: int, most: int = _SCALAR_ROWS) -> int:
    """Rows of about 32 MiB, at most `most`."""
    return _whole_pages(max(1, min(_TARGET_BYTES // row_bytes, most)), row_bytes)


def _whole_pages(rows: int, row_bytes: int) -> int:
    """About as many rows, in whole pages where that does not inflate the chunk."""
    for page in (64 * 1024, _PAGE_BYTES):
        granule = page // math.gcd(row_bytes, page)
        if granule <= rows:
            return rows - rows % granule
    return rows


def _shard_rows(
    fields: dict[str, Field], lanes: int | None, most: int = _MAX_SHARD_ROWS
) -> tuple[int, dict[str, int]]:
    """One shard length for all compressed keys, of at most `most` rows, and inner chunk lengths."""
    inners = {path: _inner_rows(one) for path, one in fields.items()}
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
    shard = max(1, min(most, _TARGET_BYTES // max(one.row_bytes for one in fields.values())))
    if lanes is not None:
        row = sum(one.row_bytes for one in fields.values())
        shard = min(shard, _TAILS_BYTES // (2 * (lanes or _UNKNOWN_LANES) * row))
        if not shard and lanes:
            raise SchemaError(
                f"{lanes} lanes of {row:,} bytes a frame: expected their tails to fit into "
                f"{_TAILS_BYTES:,} bytes; use codec='raw', or give a shard length"
            )
    shard = max(shard, 1)
    step = math.lcm(*inners.values())
    if step > shard:  # keys whose chunks have no common multiple within a shard
        inners = {
            path: inner if fields[path].chunk else _power_of_two(inner, shard)
            for path, inner in inners.items()
        }
        step = math.lcm(*inners.values())
    if lanes is not None and shard >= step:
        # A power of two of chunks: the same length for nearby numbers of lanes.
        return step * _power_of_two(shard // step, shard), inners
    return max(step, shard - shard % step), inners
