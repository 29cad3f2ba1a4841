"""The arrays of a lane, and chunk lengths, shard lengths and codecs where the user names none.

Invariant: what is planned here is what `parse.parse_array` accepts. Whatever makes, reads or checks
a lane takes the names, shapes and dtypes of its arrays from `row_columns` and `final_columns`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format.compression import checked_codec
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.format.layout import (
    CODECS,
    LARGE_FRAME_BYTES,
    MAX_CHUNK_BYTES,
    MAX_DERIVED_BYTES,
    MAX_INNER_BYTES,
    ArraySpec,
    array_json,
    episode_path,
    named_axes,
    odd_lengths,
)
from mmreplay.format.parse import parse_array
from mmreplay.schema import FRAME, Field, Schema

_FLAG, _NUMBER = np.dtype("uint8"), np.dtype("int64")
_TARGET_BYTES = 28 << 20  # two halves of a tail and all else of a lane: 64 MB
_TAILS_BYTES, _EXPECTED_LANES = 256 << 20, 16
"""Of all tails of a store, and how many lanes a store of lanes is planned for."""
_MAX_SHARD_ROWS = 4096
_MAX_INNER = 16
_INNER_BYTES = 512 * 1024
_COMPRESS_FROM_BYTES = 1024
_PAGE_BYTES = 4096
_SCALAR_ROWS = 65_536
_FINAL_BYTES, _FINAL_PAGES_BYTES, _LEAST_FINALS = 1 << 20, 16 << 20, 16
"""Episodes end seldom: their log takes little room while the lane is open."""
_FINAL_NUMBERS = 16_384
_EPISODES_BYTES = 64 << 10
_ROUND_UP_BYTES = 1 << 20
_STEPS_OF_MANY, _LEAST_ENTRIES = 64, 65_536
_PARTS_OF_CAPACITY = 10
"""Disk space comes free in whole chunk files: at most this part of a capacity each."""
_ROWS_OF_MANY, _LEAST_ROWS_OF_MANY = 8_192, 1_024
_LEVELS = {"zstd": "level", "gzip": "level", "lz4": "clevel"}
"""What zarr calls the level of a codec that may be given with one."""


def row_columns(schema: Schema, environments: int | None) -> dict[str, ArraySpec]:
    """The arrays of a lane's steps, by path; a row is what one step gave to all environments.

    Only path, row_shape, dtype and width are set. `environments` is None in a lane of one
    environment, whose arrays have no axis for them.
    """
    fields = [(path, one.shape, one.dtype) for path, one in schema.columns().items()]
    flags = [(path, (), _FLAG) for path in ("non_terminals", "resets", "ends")]
    axis, width = (() if environments is None else (environments,)), environments or 1
    return {
        path: ArraySpec(path, (*axis, *shape), dtype, 1, width=width)
        for path, shape, dtype in (*fields, *flags, ("step", (), _NUMBER))
    }


def final_columns(schema: Schema) -> dict[str, ArraySpec]:
    """The arrays of the final observations, by path below `finals`; a row is one episode's end."""
    fields = schema.columns()
    frames = [
        (path, fields[path].shape, fields[path].dtype) for path in schema.frame_paths.values()
    ]
    return {
        path: ArraySpec(path, shape, dtype, 1)
        for path, shape, dtype in (*frames, ("id", (), _NUMBER), ("first", (), _NUMBER))
    }


def episode_specs(fields: Mapping[str, EpisodeField]) -> dict[str, ArraySpec]:
    """The arrays of the fields of episodes, by path; a row is an episode.

    Nothing of them is chosen, so that no document of theirs is needed to read them.
    """
    out = {}
    for name, one in fields.items():
        path, rows = episode_path(name), max(_EPISODES_BYTES // one.row_bytes, 1)
        spec = ArraySpec(path, one.shape, one.dtype, _whole_pages(rows, one.row_bytes))
        out[path] = named_axes(spec, "episode")
    return out


@dataclasses.dataclass(frozen=True, slots=True)
class LanePlan:
    """Every array of a new lane, by path: of its steps, and of its final observations."""

    rows: dict[str, ArraySpec]
    finals: dict[str, ArraySpec]


def plan_lane(
    schema: Schema, environments: int | None, capacity: int | None, *, in_group: bool = False
) -> LanePlan:
    """Chunk lengths and codecs of every array; raises SchemaError if they do not fit.

    A lane `in_group` is one of a store of lanes, which share the memory of the tails.
    """
    if environments is None:
        rows = _plan_one(schema, capacity, in_group=in_group)
    else:
        rows = _plan_many(schema, environments, capacity)
    return LanePlan(rows, _plan_finals(schema, environments or 1))


def _plan_one(schema: Schema, capacity: int | None, *, in_group: bool) -> dict[str, ArraySpec]:
    """The arrays of the steps of one environment; in a store of lanes they follow the capacity."""
    default_rows = _SCALAR_ROWS
    if in_group:
        parts = _ROWS_OF_MANY if capacity is None else capacity // _PARTS_OF_CAPACITY
        default_rows = max(min(parts, _ROWS_OF_MANY), _LEAST_ROWS_OF_MANY)
    scalar_rows = schema.action.chunk or min(default_rows, _raw_rows(schema.action.row_bytes))
    fields = schema.columns()

    def raw(spec: ArraySpec) -> int:
        if spec.path.startswith("frames"):
            return fields[spec.path].chunk or _raw_rows(spec.row_bytes, default_rows)
        if spec.path.startswith(("extras", "derived")):
            return fields[spec.path].chunk or min(scalar_rows, _raw_rows(spec.row_bytes))
        return scalar_rows

    def shards(frames: dict[str, Field]) -> tuple[int, dict[str, int]]:
        row_bytes = [one.row_bytes for one in frames.values()]
        most = min(default_rows, _MAX_SHARD_ROWS, _TARGET_BYTES // max(row_bytes))
        if in_group:
            most = min(most, _TAILS_BYTES // (2 * _EXPECTED_LANES * sum(row_bytes)))
        return _shard_rows(frames, max(most, 1))

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

    def raw(spec: ArraySpec) -> int:
        one = schema.action if spec.path == "rewards" else fields.get(spec.path, schema.action)
        rows = max(min(entries // n, _TARGET_BYTES // spec.row_bytes), 1)
        page = _rows_in_whole_pages(spec.row_bytes)
        if page * spec.row_bytes <= _ROUND_UP_BYTES:
            rows = max(rows, page)
        return one.chunk or _whole_pages(rows, spec.row_bytes)

    def shards(frames: dict[str, Field]) -> tuple[int, dict[str, int]]:
        row_bytes = sum(one.row_bytes for one in frames.values()) * n
        longest = max(_TAILS_BYTES // 4 // row_bytes, 1)
        return _shard_rows(frames, max(min(most // n, longest), 1), powers_to=longest)

    specs = _arrays(row_columns(schema, n), fields, ("step", "env"), raw, shards)
    for path, spec in specs.items():
        # Smaller frames would cost each step more than reading a stack as one piece saves: their
        # pages are those of many environments.
        is_large = path.startswith("frames") and spec.row_bytes // n >= LARGE_FRAME_BYTES
        if spec.is_raw and not is_large:
            specs[path] = dataclasses.replace(spec, width=1)
    return specs


def _plan_finals(schema: Schema, n: int) -> dict[str, ArraySpec]:
    """The arrays of final observations; each chunk file has room for one of all n environments."""

    def raw(spec: ArraySpec) -> int:
        rows = max(min(_FINAL_BYTES // spec.row_bytes, _FINAL_NUMBERS), _LEAST_FINALS, n)
        page = _rows_in_whole_pages(spec.row_bytes)
        if page * spec.row_bytes <= _FINAL_PAGES_BYTES:  # whole pages can be mapped side by side
            rows = -(-rows // page) * page
        return rows

    def shards(frames: dict[str, Field]) -> tuple[int, dict[str, int]]:
        least = max(_FINAL_BYTES // max(one.row_bytes for one in frames.values()), _LEAST_FINALS, n)
        inners = {path: _power_of_two(_inner_rows(one), least) for path, one in frames.items()}
        step = max(inners.values())  # a multiple of the others
        return -(-least // step) * step, inners

    return _arrays(final_columns(schema), schema.columns(), ("episode",), raw, shards)


def _arrays(
    columns: Mapping[str, ArraySpec],
    fields: Mapping[str, Field],
    axes: tuple[str, ...],
    raw: Callable[[ArraySpec], int],
    shards: Callable[[dict[str, Field]], tuple[int, dict[str, int]]],
) -> dict[str, ArraySpec]:
    """The arrays of a log: `raw` chooses the chunk length of one, `shards` those of all others."""
    codecs = {path: codec_of(fields[path], path) for path in columns if path.startswith("frames")}
    compressed = {path: fields[path] for path, codec in codecs.items() if codec is not None}
    shard, inners = shards(compressed) if compressed else (0, {})
    out: dict[str, ArraySpec] = {}
    for path, column in columns.items():
        rows, inner = (shard, inners[path]) if path in compressed else (raw(column), 0)
        spec = dataclasses.replace(
            column, chunk_rows=rows, inner_rows=inner, codec=codecs.get(path)
        )
        out[path] = named_axes(spec, *axes)
        if spec.inner_rows > 1 and spec.inner_bytes > MAX_INNER_BYTES:
            raise SchemaError(
                f"{path}: {spec.inner_rows:,} rows per chunk have {spec.inner_bytes:,} bytes; "
                f"at most {MAX_INNER_BYTES:,} are compressed as one: give a smaller chunk"
            )
        if spec.chunk_bytes > MAX_CHUNK_BYTES:
            raise SchemaError(
                f"{path}: a chunk of {spec.chunk_rows:,} rows has {spec.chunk_bytes:,} bytes; "
                f"at most {MAX_CHUNK_BYTES:,}: give a smaller chunk or shard"
            )
        if spec.may_change and spec.chunk_rows > 1 and spec.chunk_bytes > MAX_DERIVED_BYTES:
            raise SchemaError(
                f"{path}: a chunk of {spec.chunk_rows:,} rows has {spec.chunk_bytes:,} bytes; of a "
                f"column that may change at most {MAX_DERIVED_BYTES:,}: give a smaller chunk"
            )
    return out


def _power_of_two(*most: int) -> int:
    """The largest power of two that is at most each of these."""
    return 1 << (min(most).bit_length() - 1)


def _inner_rows(field: Field) -> int:
    return field.chunk or min(_MAX_INNER, max(1, _INNER_BYTES // field.row_bytes))


def plan_from_layout(schema: Schema, layout: Any, where: str) -> dict[str, ArraySpec]:
    """The arrays of a further lane, as attributes.mmreplay.layout of its store has them."""
    keys = {"chunk": "chunk_rows", "inner": "inner_rows", "codec": "codec"}
    specs = {}
    try:
        for path, column in row_columns(schema, None).items():
            lengths = {ours: layout[path][key] for key, ours in keys.items()}
            spec = named_axes(dataclasses.replace(column, **lengths), "step")
            # Once through the text of zarr.json: the checks of opening hold for making, too.
            specs[path] = parse_array(array_json(spec, 0), path, where)[0]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{where}: layout: cannot be read: {error!s:.400}") from error
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
    """Rows of about 28 MiB, at most `most`."""
    return _whole_pages(max(1, min(_TARGET_BYTES // row_bytes, most)), row_bytes)


def _rows_in_whole_pages(row_bytes: int, page: int = _PAGE_BYTES) -> int:
    """The fewest rows that fill whole pages."""
    return page // math.gcd(row_bytes, page)


def _whole_pages(rows: int, row_bytes: int) -> int:
    """About as many rows, in whole pages where that does not inflate the chunk."""
    for page in (64 * 1024, _PAGE_BYTES):
        granule = _rows_in_whole_pages(row_bytes, page)
        if granule <= rows:
            return rows - rows % granule
    return rows


def _shard_rows(
    fields: dict[str, Field], most: int, powers_to: int = 0
) -> tuple[int, dict[str, int]]:
    """One shard length for all compressed keys, and each one's inner chunk length.

    A shard has at most `most` rows if its chunks allow it. With `powers_to` the lengths of chunks
    that the user does not give are powers of two of at most that.
    """
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
    if not powers_to and math.lcm(*inners.values()) > most:
        powers_to = most  # keys whose chunks have no common multiple within a shard
    if powers_to:
        inners = {
            path: fields[path].chunk or _power_of_two(inner, powers_to)
            for path, inner in inners.items()
        }
    step = math.lcm(*inners.values())
    return max(step, most - most % step), inners
