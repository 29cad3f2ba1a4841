"""Read zarr.json of any origin: bytes checked against docs/format.md, then dicts and specs.

Invariant: what `parse_array` and `parse_root` return has been checked; nothing later needs to doubt
a shape, a dtype, a chunk length or a codec.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import marshal
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format import layout
from mmreplay.format.compression import checked_codec
from mmreplay.format.episode_fields import fields_from_json
from mmreplay.format.layout import (
    ATTRIBUTE,
    DIGEST,
    FORMAT,
    KINDS,
    MAX_CHUNK_BYTES,
    MAX_ENVIRONMENTS,
    MAX_INNER_BYTES,
    ArraySpec,
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
_SHORT_BYTES = 8192  # longer documents are not cached; ours have some 1,500
_MARSHAL_BY_VALUE = 2
"""The newest version in which equal values give equal bytes."""
_MOST_LETTERS = 255
_ROWS = range(1 << LANE_SHIFT)


def plain(metadata: object) -> dict[str, Any]:
    """Metadata as it comes back from zarr.json; raises SchemaError if JSON cannot hold it."""
    if not isinstance(metadata, Mapping):
        raise SchemaError(f"metadata: expected a dict, found {type(metadata).__name__}")
    document = dict(metadata)
    try:
        data = layout.dump(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"metadata: cannot be written as JSON: {error}") from error
    if _extent(document)[0] > _MAX_OWN_DEPTH:
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
            raise ValueError("a key appears twice")
        return out

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not a JSON number")

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text:.40} is too large for a number")
        return number

    try:
        load = functools.partial(json.loads, data, parse_constant=refuse, parse_float=finite)
        document = load()
        levels, n_keys = _extent(document)
        if n_keys != data.count(b":"):  # one in a text, or a key twice: this takes longer
            document = load(object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected JSON, found something else: {error}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(document).__name__}")
    if levels > _MAX_DEPTH:
        raise FormatError(f"{where}: expected JSON of at most {_MAX_DEPTH} levels, found more")
    return document


def _extent(document: Any) -> tuple[int, int]:
    """Levels and keys of a JSON value, without recursion, which would fail in a deep one."""
    levels, n_keys, nested = -1, 0, list[Any]([[document]])
    while nested:
        levels, inside = levels + 1, list[Any]()
        for one in nested:
            n_keys += len(one) if isinstance(one, dict) else 0
            inside += one.values() if isinstance(one, dict) else one
        nested = [value for value in inside if value.__class__ in (dict, list)]
    return levels, n_keys


def parse_root(data: bytes, where: str) -> dict[str, Any]:
    """The checked attributes of a store or a lane; raises FormatError."""
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
        text = f"found {version!r:.80}; a newer mmreplay may read it"
        raise FormatError(f"{where}: expected format {FORMAT}, {text}")
    kind = own.get("kind")
    if kind not in KINDS:
        raise FormatError(f"{where}: expected kind {', '.join(KINDS)}; found {kind!r:.200}")
    _check(own, _OF_ALL, where)
    if kind == "lane":
        _check_lane(own, where)
    return {key: value for key, value in own.items() if key != DIGEST}


def is_of_another_format(document: Mapping[str, Any]) -> bool:
    """Whether the checksum of the attributes says that their `format` is no damage."""
    own = _inside(document, "attributes", ATTRIBUTE)
    is_other = isinstance(own, dict) and own.get("format") != FORMAT
    return bool(is_other and own.get(DIGEST) == layout.digest(own))


def _check_lane(own: dict[str, Any], where: str) -> None:
    _check(own, _OF_A_LANE, where)
    for low, high in (("first", "rows"), ("first_final", "finals")):
        if own[low] > own[high]:
            raise FormatError(
                f"{where}: {low}: expected at most {high} = {own[high]}, found {own[low]}"
            )
    n = own["environments"] or 1
    if own["rows"] * n not in _ROWS:
        raise FormatError(
            f"{where}: rows: expected fewer than 2**{LANE_SHIFT} transitions of {n:,} "
            f"environments, found {own['rows']:,} steps"
        )


def _check(own: dict[str, Any], rules: Mapping[str, _Rule], where: str) -> None:
    for key, (is_right, expected) in rules.items():
        value = own.get(key, "nothing")
        if not is_right(value):
            raise FormatError(f"{where}: {key}: expected {expected}, found {value!r:.200}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_int(value) and value in _ROWS


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def _is_none_or(numbers: range) -> Callable[[object], bool]:
    return lambda value: value is None or (_is_int(value) and value in numbers)


_Rule = tuple[Callable[[object], bool], str]
_OF_ALL: dict[str, _Rule] = {
    "uuid": (_is_uuid, "a uuid of 32 hex digits"),
    "capacity": (_is_none_or(_ROWS[1:]), "null, or 1 or more"),
    "padding": (lambda value: value in ("reset", "zero"), "'reset' or 'zero'"),
}
_OF_A_LANE: dict[str, _Rule] = {
    "environments": (
        _is_none_or(range(1, MAX_ENVIRONMENTS + 1)),
        f"null, or 1 to {MAX_ENVIRONMENTS:,}",
    ),
    **dict.fromkeys(
        ("rows", "first", "finals", "first_final", "episodes_before"), (_is_count, "a number")
    ),
    "closed": (lambda value: isinstance(value, bool), "a bool"),
}


def find_copy(document: Mapping[str, Any], where: str) -> layout.Documents | None:
    """The copy in a lane's own zarr.json; None if it has none. FormatError: not as written."""
    given = document.get(layout.COPY)
    if given is None:
        return None
    where = f"{where}: {layout.COPY}"
    if not isinstance(given, dict) or not isinstance(given.get("metadata"), dict):
        raise FormatError(f"{where}: expected metadata in it, found {given!r:.200}")
    for key, value in layout.COPY_KIND.items():
        _compare(given.get(key), value, f"{where}: {key}")
    metadata: layout.Documents = given["metadata"]
    return metadata


def schema_from_json(document: Any, where: str) -> Schema:
    """The schema as `Schema.to_json` wrote it; raises FormatError if it is not valid."""
    try:
        frame = document["frame"]
        if "dict" in frame:
            frames: Any = {key: _field_from_json(one) for key, one in frame["dict"].items()}
        else:
            frames = _field_from_json(frame)
        extras, derived = (
            {key: _field_from_json(one) for key, one in of.items()}
            for of in (document["extras"], document.get("derived", {}))
        )
        action = _field_from_json(document["action"])
        reward = document["reward"]
        if reward not in _DTYPES:  # numpy would make a dtype of many another text
            raise TypeError(f"no dtype: {reward!r:.80}")
        episode = fields_from_json(document.get("episode", {}), _field_from_json)
        return Schema.make(frames, action, extras, reward, episode=episode, derived=derived)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"{where}: the schema cannot be read: {error!s:.400}") from error


def _field_from_json(document: Mapping[str, Any]) -> Field:
    dtype, shape = document["dtype"], document["shape"]
    if dtype not in _DTYPES or not isinstance(shape, list) or not all(map(_is_int, shape)):
        raise TypeError(f"no field: {document!r:.200}")
    fill = document.get("fill")
    if isinstance(fill, str):  # JSON has no numbers that are not finite
        fill = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}[fill]
    return Field(tuple(shape), dtype, fill=fill)


def parse_array(data: bytes, path: str, where: str) -> tuple[ArraySpec, int]:
    """The spec and the rows that an array's zarr.json says; raises FormatError."""
    return array_spec(parse_json(data, where), path, where)


def array_spec(document: Any, path: str, where: str) -> tuple[ArraySpec, int]:
    """As `parse_array`, of what stands in the document, as `parse_json` gave it."""
    # Documents of many lanes are equal: each is checked once.
    data = marshal.dumps(document, _MARSHAL_BY_VALUE)
    if len(data) <= _SHORT_BYTES:
        with contextlib.suppress(FormatError):  # without `where`; raised again below
            return _array_spec_once(data, path)
    return _array_spec(document, path, where)


@functools.lru_cache(maxsize=4096)
def _array_spec_once(data: bytes, path: str) -> tuple[ArraySpec, int]:
    return _array_spec(marshal.loads(data), path, "")  # noqa: S302 (made here, of JSON)


def _array_spec(document: Any, path: str, where: str) -> tuple[ArraySpec, int]:
    """Read what an array may choose, and compare all else with what would be written for that."""
    if not isinstance(document, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(document).__name__}")
    for key, value in (("zarr_format", 3), ("node_type", "array")):
        _compare(document.get(key), value, f"{where}: {key}")
    name = document.get("data_type")
    if not isinstance(name, str) or name not in _DTYPES:
        raise FormatError(f"{where}: data_type: expected a number or bool, found {name!r:.200}")
    dtype = np.dtype(name)
    shape = _sizes(document.get("shape"), "shape", where, least=0)
    grid = _inside(document, "chunk_grid", "configuration", "chunk_shape")
    chunk = _sizes(grid, "chunk_grid: chunk_shape", where)
    if not shape or chunk[1:] != shape[1:] or len(chunk) != len(shape):
        raise FormatError(f"{where}: expected chunks of whole rows, found {chunk} of {shape}")
    if math.prod(chunk) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise FormatError(
            f"{where}: expected chunks of at most {MAX_CHUNK_BYTES:,} bytes, found {chunk}"
        )
    names = document.get("dimension_names")
    if names is not None and not (isinstance(names, list) and len(names) == len(shape)):
        raise FormatError(f"{where}: dimension_names: expected {len(shape)}, found {names!r:.200}")
    if not all(isinstance(name, str) and len(name) <= _MOST_LETTERS for name in names or ()):
        raise FormatError(f"{where}: dimension_names: expected texts, found {names!r:.200}")
    dims = None if names is None else tuple(names)
    inner, width, codec = 0, 1, None
    kind = _inside(document, "codecs", 0, "name")
    if kind == "sharding_indexed":
        sharding = _inside(document, "codecs", 0, "configuration")
        inner, width, codec = _parse_sharding(sharding, chunk, dtype, where)
    elif kind == "transpose" and path.startswith("frames") and len(chunk) > 1:
        width = chunk[1]  # frames of many environments
    spec = ArraySpec(path, shape[1:], dtype, chunk[0], inner, codec, width, dims=dims)
    written = json.loads(layout.array_json(spec, shape[0]))
    _compare(_usual(document, spec), _usual(written, spec), where)
    return spec, shape[0]


def _compare(found: Any, expected: Any, where: str) -> None:
    """Raise FormatError for the first difference between two JSON values."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if unknown := found.keys() - expected.keys():
            raise FormatError(f"{where}: unknown keys {sorted(unknown)!r:.200}")
        for key, value in expected.items():
            _compare(found.get(key), value, f"{where}: {key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for number, value in enumerate(expected):
            _compare(found[number], value, f"{where}[{number}]")
    elif type(found) is not type(expected) or found != expected:  # True == 1 == 1.0
        raise FormatError(f"{where}: expected {expected!r:.200}, found {found!r:.200}")


def _usual(document: dict[str, Any], spec: ArraySpec) -> dict[str, Any]:
    """A document with one spelling for what can be spelled in several ways."""
    out = copy.deepcopy({**document, "attributes": {}})
    if out.get("fill_value") == 0:  # or False, or 0.0
        out["fill_value"] = 0
    for key in ("storage_transformers", "dimension_names"):
        if not out.get(key):
            out.pop(key, None)
    codecs = out.get("codecs")
    if spec.codec is not None:
        sharding = _inside(codecs, 0, "configuration")
        sharding.setdefault("index_location", "end")
        codecs = sharding["codecs"]
        codecs[1] = spec.codec
    for codec in codecs if isinstance(codecs, list) else ():
        if not isinstance(codec, dict) or not isinstance(codec.get("configuration", {}), dict):
            continue
        if codec.get("name") == "bytes" and (spec.dtype.itemsize == 1 or len(codec) == 1):
            codec["configuration"] = {"endian": "little"}
        if not codec.get("configuration"):
            codec.pop("configuration", None)
    return out


def _inside(value: Any, *keys: str | int) -> Any:
    """What stands at some keys inside of a JSON value; None if it is missing."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for key in keys:
            value = value[key]
        return value
    return None


def _parse_sharding(
    sharding: Any, chunk: tuple[int, ...], dtype: np.dtype[Any], where: str
) -> tuple[int, int, dict[str, Any]]:
    """The rows of an inner chunk, how many of these lie side by side in a row, the compressor."""
    inner = _sizes(_inside(sharding, "chunk_shape"), "inner chunk_shape", where)
    width = chunk[1] if len(inner) == len(chunk) > 1 and inner[1] == 1 else 1
    row = chunk[1:] if width == 1 else (1, *chunk[2:])
    if inner[1:] != row or chunk[0] % inner[0]:
        raise FormatError(f"{where}: expected inner chunks that divide {chunk}, found {inner}")
    if inner[0] > 1 and math.prod(inner) * dtype.itemsize > MAX_INNER_BYTES:
        raise FormatError(
            f"{where}: expected inner chunks of one row, or of at most {MAX_INNER_BYTES:,} bytes, "
            f"found {inner}"
        )
    codecs, n_codecs = _inside(sharding, "codecs"), 3
    if not isinstance(codecs, list) or len(codecs) != n_codecs or not isinstance(codecs[1], dict):
        raise FormatError(
            f"{where}: expected inner codecs bytes, a compressor, crc32c; found {codecs!r:.200}"
        )
    return inner[0], width, checked_codec(codecs[1], where, dtype.itemsize)


def _sizes(value: object, what: str, where: str, least: int = 1) -> tuple[int, ...]:
    most_ndim = 9
    if (
        not isinstance(value, list)
        or len(value) > most_ndim
        or not all(_is_int(n) and least <= n < 1 << LANE_SHIFT for n in value)
    ):
        raise FormatError(f"{where}: {what}: expected sizes within bounds, found {value!r:.200}")
    return tuple(value)
