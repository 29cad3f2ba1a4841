"""The zarr.json files of a store against docs/format.md.

Invariant: a document that passes says what the same document written by this package says, word
for word but for a user's own attributes and dimension names.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.format import layout, parse
from mmreplay.format.consolidated import EMPTY, find_copy
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.verify.report import reason
from mmreplay.schema import Schema

_COMMON = frozenset("format kind uuid schema capacity padding env versions".split())
_KEYS = {
    "lane": _COMMON | {"rows", "first", "closed"},
    "lanes": _COMMON | {"layout"},
    "vector": _COMMON | {"width"},
    "log": frozenset("format kind uuid rows first closed".split()),
}
_ROOT_KEYS = {"zarr_format", "node_type", "attributes"}
_WITH_COPY = ("lane", "vector")
_OPTIONAL = {
    "lane": {"name", "generator"},
    "vector": {"name"},
    "log": {"generator"},
}
OWN_DIGEST = "attributes.mmreplay: expected crc32c"
"""How the finding begins of attributes that are not what was written."""

_USERS = ("attributes", "dimension_names")
_MAY_BE_DELETED = ("priorities", layout.checksum_spec("priorities").path)
"""By a user who wants new ones."""
_FEW = 8
# Of arrays whose chunk files are read whole.
_MOST_ROWS = {"episodes/starts": 65_536, "priorities": 1 << 20}


def root_problems(data: bytes, own: Mapping[str, Any], path: str) -> Iterator[str]:
    """What is wrong with the zarr.json of a lane or store that `parse.parse_root` accepts.

    `own` is attributes.mmreplay in it.
    """
    document = parse.parse_json(data, path)
    kind = own["kind"]
    copy = {layout.COPY} if kind in _WITH_COPY else set[str]()
    yield from _key_problems(document, _ROOT_KEYS, copy, "zarr.json")
    yield from _key_problems(own, _KEYS[kind], _OPTIONAL.get(kind, set()), "attributes.mmreplay")
    for name in ("env", "versions"):
        if not isinstance(own.get(name, {}), dict):
            yield f"{name}: expected an object, found {own[name]!r:.80}"
    if not isinstance(own.get("name", ""), str):
        yield f"name: expected a text, found {own['name']!r:.80}"
    if "generator" in own:
        yield from _generator_problems(own)
    yield from _digest_problems(document)


def digest_problems(data: bytes) -> Iterator[str]:
    """Whether the attributes in a zarr.json match their crc32c, be they of whatever format."""
    with contextlib.suppress(FormatError):
        yield from _digest_problems(parse.parse_json(data, ""))


def _digest_problems(document: Mapping[str, Any]) -> Iterator[str]:
    with contextlib.suppress(KeyError, TypeError):
        own = document["attributes"][layout.ATTRIBUTE]
        # Some have none: written by hand, or before there was such a checksum.
        if isinstance(own, dict) and own.get(layout.DIGEST) not in (None, layout.digest(own)):
            yield f"{OWN_DIGEST} {own[layout.DIGEST]!r:.80}, found {layout.digest(own)}"


def _generator_problems(own: Mapping[str, Any]) -> Iterator[str]:
    if not own["closed"]:
        yield "generator: expected none in a store that is not closed"
    yield from generator_problems(own["generator"])


def generator_problems(text: Any) -> Iterator[str]:
    """What is wrong with a random state that was saved as text."""
    try:
        np.random.default_rng(0).bit_generator.state = json.loads(text)
    except (
        ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        yield f"generator: expected a random state as text, found something else: {error!s:.200}"


def schema_problems(schema: Schema, document: object) -> Iterator[str]:
    """What is wrong with a schema that `parse.schema_from_json` could read."""
    if schema.to_json() != document:
        yield f"schema: expected {json.dumps(schema.to_json())}, found {json.dumps(document)}"


def layout_problems(specs: Mapping[str, ArraySpec], document: Any) -> Iterator[str]:
    """What is wrong with the layout of a store that `plan.plan_from_layout` could read."""
    yield from _differences(layout.layout_json(specs), document, (), "layout")


def copy_problems(document: bytes, own: Mapping[str, bytes | None], path: str) -> Iterator[str]:
    """Where the copy in a closed lane's zarr.json differs from the documents themselves.

    `own` are these, by path below the lane, None where one is damaged. A zarr library may
    have written the copy.
    """
    copy = find_copy(parse.parse_json(document, path), path)
    try:
        copied = {} if copy is None else copy.documents()
    except FormatError as error:
        yield reason(error, path)
        return
    if copy is not None:
        yield from _few(_copy_problems(copied, own))


def _copy_problems(copied: Mapping[str, Any], own: Mapping[str, bytes | None]) -> Iterator[str]:
    for path in sorted(own.keys() | copied.keys()):
        where = f"{layout.COPY}: {path:.200}"
        if path not in own:
            if path.removeprefix(f"{layout.TICKS}/") not in _MAY_BE_DELETED:
                yield f"{where}: expected arrays and groups of the lane only"
        elif path not in copied:
            yield f"{where}: missing"
        elif own[path] is not None:
            expected, found = _bare(parse.parse_json(own[path] or b"", path)), _bare(copied[path])
            for text in _difference(expected, found, _USERS, where):
                yield f"{text}, unlike its own zarr.json"
            if path in layout.LOGS and _attributes(found) != _attributes(expected):
                yield f"{where}: expected the attributes in its own zarr.json, found others"


def _bare(document: Any) -> Any:
    """A document without what a zarr library writes that says nothing."""
    empty = {"storage_transformers": [], layout.COPY: EMPTY}
    if not isinstance(document, dict):
        return document
    return {
        key: value for key, value in document.items() if key not in empty or value != empty[key]
    }


def _attributes(document: Any) -> Any:
    """attributes.mmreplay in a document, as text; None if there are none."""
    with contextlib.suppress(KeyError, TypeError):
        return json.dumps(document["attributes"][layout.ATTRIBUTE], sort_keys=True)
    return None


def group_problems(data: bytes, path: str) -> list[str]:
    """What is wrong with the zarr.json of a group inside a lane."""
    try:
        document = parse.parse_json(data, path)
    except FormatError as error:
        return [reason(error, path)]
    return list(_differences(json.loads(layout.group_json()), document, ("attributes",)))


def array_problems(
    data: bytes, expected: ArraySpec, rows: int | None, path: str
) -> tuple[ArraySpec | None, int, list[str]]:
    """The array as its zarr.json has it (None if it cannot be used), its rows, and the problems.

    `expected` gives its path, row shape and dtype, and the chunk length of a checksum array; the
    other arrays have each their own. `rows` is None if it is not known how many it must have.
    """
    try:
        spec, n_rows = parse.parse_array(data, expected.path, path)
    except FormatError as error:
        return None, 0, [reason(error, path)]
    text = _unusable(spec, expected)
    if text:
        return None, 0, [text]
    document = parse.parse_json(data, path)
    canonical = json.loads(layout.array_json(spec, n_rows))
    problems = list(_differences(canonical, document, _USERS))
    if rows is not None and n_rows != rows:
        problems.append(f"shape: expected {rows:,} rows, found {n_rows:,}")
    return spec, n_rows, problems


def _unusable(spec: ArraySpec, expected: ArraySpec) -> str:
    """Why an array cannot be what it should be; empty if it can."""
    if (spec.row_shape, spec.dtype) != (expected.row_shape, expected.dtype):
        return (
            f"expected rows of {expected.row_shape} {expected.dtype}, found {spec.row_shape} "
            f"{spec.dtype}"
        )
    if expected.path.startswith("checksums/") and spec.chunk_rows != expected.chunk_rows:
        return f"expected chunks of {expected.chunk_rows:,}, found {spec.chunk_rows:,}"
    most = _MOST_ROWS.get(expected.path)
    if most is not None and spec.chunk_rows > most:
        return f"expected chunks of at most {most:,}, found {spec.chunk_rows:,}"
    if not spec.is_raw and not expected.path.startswith("frames"):
        return f"expected uncompressed rows, found {spec.codec_name}"
    return layout.width_problem(spec, expected.width)


def _differences(
    expected: Any, found: Any, ignored: tuple[str, ...], at: str = ""
) -> Iterator[str]:
    """The first places in which two JSON values differ, and how many more there are."""
    yield from _few(_difference(expected, found, ignored, at))


def _few(texts: Iterator[str]) -> Iterator[str]:
    yield from itertools.islice(texts, _FEW)
    more = sum(1 for _ in texts)
    if more:
        yield f"{more:,} more such"


def _difference(expected: Any, found: Any, ignored: tuple[str, ...], at: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted((expected.keys() | found.keys()) - set(ignored)):
            place = f"{at}.{key}" if at else key
            if key not in found:
                yield f"{place}: missing"
            elif key not in expected:
                yield f"{place:.80}: unknown to format 1"
            else:
                yield from _difference(expected[key], found[key], (), place)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield from _difference(*pair, (), f"{at}[{number}]")
    # 1 == 1.0 == True in Python, but not in a shape.
    elif expected != found or isinstance(expected, bool) != isinstance(found, bool):
        yield f"{at}: expected {expected!r:.200}, found {found!r:.80}"


def _key_problems(
    found: Mapping[str, Any], needed: set[str] | frozenset[str], optional: set[str], what: str
) -> Iterator[str]:
    for key in sorted(needed - found.keys()):
        yield f"{what}: {key} is missing"
    unknown = sorted(found.keys() - needed - optional)
    for key in unknown[:_FEW]:
        yield f"{what}: {key!r:.80} is unknown to format 1"
    if unknown[_FEW:]:
        yield f"{what}: {len(unknown) - _FEW:,} more keys are unknown to format 1"
