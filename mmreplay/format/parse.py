"""Read zarr.json of any origin: bytes checked against docs/format.md, then dicts and specs.

Invariant: what `parse_array` and `parse_root` return has been checked; nothing later needs to doubt
a shape, a dtype, a chunk length or a codec.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format import layout
from mmreplay.format.layout import (
    ATTRIBUTE,
    DIGEST,
    FORMAT,
    INDEX_CODECS,
    KINDS,
    MAX_CHUNK_BYTES,
    MAX_ENVIRONMENTS,
    MAX_INNER_BYTES,
    ArraySpec,
    transpose_codec,
)
from mmreplay.ids import LANE_SHIFT
from mmreplay.schema import Field, Schema

_MAX_DEPTH = 100
"""Levels of the JSON of a document: what is deeper cannot be shown in a message."""
_MAX_OWN_DEPTH = _MAX_DEPTH - 5
"""Those of a user's metadata, which stands some levels below the top."""
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
_SHORT_BYTES = 8192
"""Ours have some 1,500."""
_MARSHAL_BY_VALUE = 2
"""The newest version in which equal values give equal bytes."""
_MOST_LETTERS = 255
_BLOSC_NAMES = ("lz4", "lz4hc", "zstd")


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document as it comes back from zarr.json; raises SchemaError if JSON cannot hold it."""
    try:
        data = layout.dump(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"metadata: cannot be written as JSON: {error}") from error
    if _depth(document) > _MAX_OWN_DEPTH:
        raise SchemaError(f"metadata: expected at most {_MAX_OWN_DEPTH} levels, found more")
    try:
        return parse_json(data, "metadata")
    except FormatError as error:  # two keys that are the same as texts
        raise SchemaError(str(error)) from error


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object, strictly: no key twice, NaN, infinity or endless depth; raises FormatError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise ValueError("a key stands twice")
        return out

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is no JSON number")

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text:.40} is too large for a number")
        return number

    try:
        document = json.loads(
            data, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected JSON, found something else: {error}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(document).__name__}")
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and _depth(document) > _MAX_DEPTH:
        raise FormatError(f"{where}: expected JSON of at most {_MAX_DEPTH} levels, found more")
    return document


def _depth(document: Mapping[str, Any]) -> int:
    """Levels of a JSON value, without recursion: that is what a deep one would make fail later."""
    level, nested = 1, list[Any]([document])
    while True:
        deeper = [
            value
            for one in nested
            for value in (one.values() if isinstance(one, dict) else one)
            if isinstance(value, (dict, list))
        ]
        if not deeper:
            return level + any(map(len, nested))
        level, nested = level + 1, deeper


def parse_root(data: bytes, where: str) -> dict[str, Any]:
    """The checked attributes of a store or a lane; raises FormatError.

    They come without their checksum, which reading rows does not need. Checked are format, kind,
    uuid, capacity and padding; of a lane also its environments, rows and whether it is closed.
    """
    return root_attributes(parse_json(data, where), where)


def root_attributes(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """As `parse_root`, of what stands in the document."""
    if document.get("zarr_format") != 3 or document.get("node_type") != "group":  # noqa: PLR2004
        found = {key: document.get(key) for key in ("zarr_format", "node_type")}
        raise FormatError(f"{where}: expected a zarr v3 group, found {found!r:.80}")
    attributes = document.get("attributes")
    own = attributes.get(ATTRIBUTE) if isinstance(attributes, dict) else None
    if not isinstance(own, dict):
        raise FormatError(
            f"{where}: a zarr group, but no mmreplay store: attributes.{ATTRIBUTE} is missing"
        )
    version = own.get("format")
    if not _is_int(version) or version != FORMAT:
        raise FormatError(
            f"{where}: expected format {FORMAT}, found {version!r:.80}; "
            f"a newer mmreplay may read it"
        )
    kind = own.get("kind")
    if kind in ("vector", "log") or (kind == "lane" and "environments" not in own):
        raise FormatError(
            f"{where}: this store was written by a development version of mmreplay, in a layout "
            f"that is not read any more; record it again"
        )
    if kind not in KINDS:
        raise FormatError(f"{where}: expected kind {', '.join(KINDS)}; found {kind!r:.200}")
    if not isinstance(own.get("uuid"), str) or not re.fullmatch("[0-9a-f]{32}", own["uuid"]):
        raise FormatError(
            f"{where}: expected a uuid of 32 hex digits, found {own.get('uuid')!r:.200}"
        )
    _check_settings(own, where)
    if kind == "lane":
        _check_lane(own, where)
    return {key: value for key, value in own.items() if key != DIGEST}


def _check_settings(own: dict[str, Any], where: str) -> None:
    capacity = own.get("capacity", "nothing")
    if capacity is not None and not (_is_int(capacity) and 1 <= capacity < 1 << LANE_SHIFT):
        raise FormatError(f"{where}: expected a capacity of 1 or more, found {capacity!r:.200}")
    if own.get("padding") not in ("reset", "zero"):
        raise FormatError(
            f"{where}: expected padding 'reset' or 'zero', found {own.get('padding')!r:.200}"
        )


def _check_lane(own: dict[str, Any], where: str) -> None:
    n = own["environments"]
    if n is not None and not (_is_int(n) and 1 <= n <= MAX_ENVIRONMENTS):
        raise FormatError(
            f"{where}: environments: expected null, or 1 to {MAX_ENVIRONMENTS:,}, found {n!r:.200}"
        )
    for name in ("rows", "first", "finals", "first_final", "episodes_before"):
        if not _is_int(own.get(name)) or not 0 <= own[name] < 1 << LANE_SHIFT:
            raise FormatError(f"{where}: {name}: expected a number, found {own.get(name)!r:.200}")
    for low, high in (("first", "rows"), ("first_final", "finals")):
        if own[low] > own[high]:
            raise FormatError(
                f"{where}: {low}: expected at most {high} = {own[high]}, found {own[low]}"
            )
    if own["rows"] * (n or 1) >= 1 << LANE_SHIFT:
        raise FormatError(
            f"{where}: rows: expected fewer than 2**{LANE_SHIFT} transitions of {n or 1:,} "
            f"environments, found {own['rows']:,} steps"
        )
    if not isinstance(own.get("closed"), bool):
        raise FormatError(f"{where}: closed: expected a bool, found {own.get('closed')!r:.200}")


def schema_from_json(document: object, where: str) -> Schema:
    """The schema as `Schema.to_json` wrote it; raises FormatError if it is none."""
    try:
        if not isinstance(document, dict):
            raise TypeError("expected an object")
        frame = document["frame"]
        if "dict" in frame:
            frames: Any = {key: _field_from_json(one) for key, one in frame["dict"].items()}
        else:
            frames = _field_from_json(frame)
        extras = {key: _field_from_json(one) for key, one in document["extras"].items()}
        action = _field_from_json(document["action"])
        reward = document["reward"]
        if reward not in _DTYPES:  # numpy would make a dtype of many another text
            raise TypeError(f"no dtype: {reward!r:.80}")
        return Schema.make(frames, action, extras, reward)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"{where}: the schema cannot be read: {error!s:.400}") from error


def _field_from_json(document: Mapping[str, Any]) -> Field:
    dtype, shape = document["dtype"], document["shape"]
    if dtype not in _DTYPES or not isinstance(shape, list) or not all(map(_is_int, shape)):
        raise TypeError(f"no field: {document!r:.200}")
    return Field(tuple(shape), dtype)


def parse_array(data: bytes, path: str, where: str) -> tuple[ArraySpec, int]:
    """The spec and the rows that an array's zarr.json says; raises FormatError.

    `path` is the array's in its lane, `where` the file's, for messages.
    """
    # Those of many lanes are equal, and an opening looks twice: whether it fits, and then at it.
    # What is long is not kept in memory.
    if len(data) <= _SHORT_BYTES:
        with contextlib.suppress(FormatError):  # it would not say where
            return _parse_array_once(data, path)
    return _array_spec(parse_json(data, where), path, where)


def array_spec(document: Any, path: str, where: str) -> tuple[ArraySpec, int]:
    """As `parse_array`, of what stands in the document, as `parse_json` gave it."""
    data = marshal.dumps(document, _MARSHAL_BY_VALUE)
    if len(data) <= _SHORT_BYTES:
        with contextlib.suppress(FormatError):
            return _array_spec_once(data, path)
    return _array_spec(document, path, where)


@functools.lru_cache(maxsize=4096)
def _parse_array_once(data: bytes, path: str) -> tuple[ArraySpec, int]:
    return _array_spec(parse_json(data, ""), path, "")


@functools.lru_cache(maxsize=4096)
def _array_spec_once(data: bytes, path: str) -> tuple[ArraySpec, int]:
    return _array_spec(marshal.loads(data), path, "")  # noqa: S302 (made here, of JSON)


def _array_spec(document: object, path: str, where: str) -> tuple[ArraySpec, int]:
    if not isinstance(document, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(document).__name__}")
    known = {
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "dimension_names",
        "storage_transformers",
    }
    if extra := document.keys() - known:
        raise FormatError(f"{where}: unknown keys {sorted(extra)!r:.200}")
    if document.get("storage_transformers"):
        raise FormatError(f"{where}: expected no storage transformers")
    _expect(document.get("zarr_format"), 3, "zarr_format", where)
    _expect(document.get("node_type"), "array", "node_type", where)
    name = document.get("data_type")
    if not isinstance(name, str) or name not in _DTYPES:
        raise FormatError(f"{where}: data_type: expected a number or bool, found {name!r:.200}")
    dtype = np.dtype(name)
    shape = _sizes(document.get("shape"), "shape", where, least=0)
    grid = _named(document.get("chunk_grid"), "regular", "chunk_grid", where)
    chunk = _sizes(grid.get("chunk_shape"), "chunk_shape", where)
    keys = _named(document.get("chunk_key_encoding"), "default", "chunk_key_encoding", where)
    _expect(keys.get("separator", "/"), ".", "separator", where)
    fill = document.get("fill_value")
    if isinstance(fill, str) or fill != 0:
        raise FormatError(f"{where}: fill_value: expected 0, found {fill!r:.200}")
    if not shape or chunk[1:] != shape[1:] or len(chunk) != len(shape):
        raise FormatError(f"{where}: expected chunks of whole rows, found {chunk} of {shape}")
    if math.prod(chunk) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise FormatError(
            f"{where}: expected chunks of at most {MAX_CHUNK_BYTES:,} bytes, found {chunk}"
        )
    dims = _names(document.get("dimension_names"), len(shape), where)
    codecs = document.get("codecs")
    if not isinstance(codecs, list) or not 1 <= len(codecs) <= 1 + _may_be_transposed(path, chunk):
        raise FormatError(
            f"{where}: expected one codec, bytes or sharding_indexed; found {codecs!r:.200}"
        )
    if len(codecs) > 1:
        _expect(codecs[0], transpose_codec(len(chunk)), "the first of two codecs", where)
        _check_bytes(codecs[1], dtype, where)
        return ArraySpec(path, shape[1:], dtype, chunk[0], width=chunk[1], dims=dims), shape[0]
    if isinstance(codecs[0], dict) and codecs[0].get("name") == "sharding_indexed":
        inner, width, codec = _parse_sharding(codecs[0], chunk, dtype, where)
        spec = ArraySpec(path, shape[1:], dtype, chunk[0], inner, codec, width, dims=dims)
        return spec, shape[0]
    _check_bytes(codecs[0], dtype, where)
    return ArraySpec(path, shape[1:], dtype, chunk[0], dims=dims), shape[0]


def _names(given: object, n_axes: int, where: str) -> tuple[str, ...] | None:
    """The names of the axes; None if they have none."""
    if given is None:
        return None
    if (
        not isinstance(given, list)
        or len(given) != n_axes
        or not all(isinstance(name, str) and len(name) <= _MOST_LETTERS for name in given)
    ):
        raise FormatError(
            f"{where}: dimension_names: expected {n_axes} names, found {given!r:.200}"
        )
    return tuple(given)


def _may_be_transposed(path: str, chunk: tuple[int, ...]) -> bool:
    """Whether an array may be one of frames of many environments."""
    return path.startswith("frames") and len(chunk) > 1


def _parse_sharding(
    document: Mapping[str, Any], chunk: tuple[int, ...], dtype: np.dtype[Any], where: str
) -> tuple[int, int, dict[str, Any]]:
    """The rows of an inner chunk, how many of these lie side by side in a row, the compressor."""
    sharding = _named(document, "sharding_indexed", "codecs", where)
    inner = _sizes(sharding.get("chunk_shape"), "inner chunk_shape", where)
    width = chunk[1] if len(inner) == len(chunk) > 1 and inner[1] == 1 else 1
    row = chunk[1:] if width == 1 else (1, *chunk[2:])
    if inner[1:] != row or chunk[0] % inner[0]:
        raise FormatError(f"{where}: expected inner chunks that divide {chunk}, found {inner}")
    if inner[0] > 1 and math.prod(inner) * dtype.itemsize > MAX_INNER_BYTES:
        raise FormatError(
            f"{where}: expected inner chunks of one row, or of at most {MAX_INNER_BYTES:,} bytes, "
            f"found {inner}"
        )
    _expect(sharding.get("index_location", "end"), "end", "index_location", where)
    _expect(sharding.get("index_codecs"), INDEX_CODECS, "index_codecs", where)
    codecs = sharding.get("codecs")
    n_codecs = 3
    if not isinstance(codecs, list) or len(codecs) != n_codecs:
        raise FormatError(
            f"{where}: expected inner codecs bytes, a compressor, crc32c: {codecs!r:.200}"
        )
    _check_bytes(codecs[0], dtype, where)
    if not isinstance(codecs[2], dict) or codecs[2].get("name") != "crc32c":
        raise FormatError(
            f"{where}: expected crc32c as the last inner codec, found {codecs[2]!r:.200}"
        )
    if not isinstance(codecs[1], dict):
        raise FormatError(f"{where}: expected a compressor, found {codecs[1]!r:.200}")
    return inner[0], width, checked_codec(codecs[1], where, dtype.itemsize)


def checked_codec(document: dict[str, Any], where: str, itemsize: int) -> dict[str, Any]:
    """A compressor of the standard set, with all of its configuration; raises FormatError."""
    name, given = document.get("name"), document.get("configuration", {})
    if not isinstance(given, dict):
        raise FormatError(
            f"{where}: codec {name!r:.200}: expected a configuration, found {given!r:.200}"
        )
    if name == "gzip":
        return {"name": "gzip", "configuration": {"level": _level(given, 0, 9, 5, where)}}
    if name == "zstd":
        if not isinstance(given.get("checksum", False), bool):
            raise FormatError(f"{where}: zstd: checksum: expected a bool")
        level = _level(given, -131_072, 22, 1, where)
        checksum = given.get("checksum", False)
        return {"name": "zstd", "configuration": {"level": level, "checksum": checksum}}
    if name == "blosc":
        cname, shuffle = given.get("cname", "lz4hc"), given.get("shuffle", "noshuffle")
        size, block = given.get("typesize", itemsize), given.get("blocksize", 0)
        if cname not in _BLOSC_NAMES or shuffle not in ("noshuffle", "shuffle", "bitshuffle"):
            raise FormatError(
                f"{where}: blosc: expected cname {', '.join(_BLOSC_NAMES)} and a known shuffle, "
                f"found {cname!r:.200} and {shuffle!r:.200}"
            )
        if not _is_int(size) or not 1 <= size <= 255 or not _is_int(block) or block < 0:  # noqa: PLR2004
            raise FormatError(
                f"{where}: blosc: typesize {size!r:.200} or blocksize {block!r:.200} is none"
            )
        return {
            "name": "blosc",
            "configuration": {
                "typesize": size,
                "cname": cname,
                "clevel": _level(given, 0, 9, 5, where, "clevel"),
                "shuffle": shuffle,
                "blocksize": block,
            },
        }
    raise FormatError(
        f"{where}: expected a codec of the standard set (blosc, zstd, gzip), found {name!r:.200}"
    )


def _level(
    given: Mapping[str, Any], least: int, most: int, default: int, where: str, key: str = "level"
) -> int:
    level = given.get(key, default)
    if not _is_int(level) or not least <= level <= most:
        raise FormatError(f"{where}: {key}: expected {least} to {most}, found {level!r:.200}")
    return int(level)


def _check_bytes(document: object, dtype: np.dtype[Any], where: str) -> None:
    if not isinstance(document, dict) or document.get("name") != "bytes":
        raise FormatError(f"{where}: expected the codec 'bytes', found {document!r:.200}")
    endian = _named(document, "bytes", "codecs", where).get("endian", "little")
    if dtype.itemsize > 1 and endian != "little":
        raise FormatError(f"{where}: expected little-endian values, found {endian!r:.200}")


def _named(document: object, name: str, what: str, where: str) -> dict[str, Any]:
    if not isinstance(document, dict) or document.get("name") != name:
        raise FormatError(f"{where}: {what}: expected {name!r:.200}, found {document!r:.200}")
    configuration = document.get("configuration", {})
    if not isinstance(configuration, dict):
        raise FormatError(
            f"{where}: {what}: expected a configuration, found {configuration!r:.200}"
        )
    return configuration


def _expect(found: object, expected: object, what: str, where: str) -> None:
    if isinstance(found, bool) or found != expected:
        raise FormatError(f"{where}: {what}: expected {expected!r:.200}, found {found!r:.200}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sizes(value: object, what: str, where: str, least: int = 1) -> tuple[int, ...]:
    most_ndim = 9
    if (
        not isinstance(value, list)
        or len(value) > most_ndim
        or not all(_is_int(n) and least <= n < 1 << LANE_SHIFT for n in value)
    ):
        raise FormatError(f"{where}: {what}: expected sizes within bounds, found {value!r:.200}")
    return tuple(value)
