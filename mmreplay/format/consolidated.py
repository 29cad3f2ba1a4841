"""zarr's consolidated metadata: a copy of every zarr.json of a closed lane, in the lane's own.

Invariant: it is a copy. What it says of an array is checked as the array's own document is, and
where both are there and differ, the own one is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mmreplay.errors import FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec

_INLINE = {"kind": "inline", "must_understand": False}

EMPTY = {**_INLINE, "metadata": {}}
"""What zarr-python puts into each group in a copy."""

Documents = dict[str, dict[str, Any]]
"""What stands in each zarr.json below a lane, by the path of its directory."""


def documents_of(arrays: Mapping[str, tuple[ArraySpec, int]]) -> Documents:
    """The documents of arrays, (spec, rows) by path, and of the groups that hold them."""
    out = {path: json.loads(layout.array_json(*one)) for path, one in arrays.items()}
    groups = layout.group_paths(out)
    return out | {path: json.loads(layout.group_json()) for path in groups}


def root_json(attributes: Mapping[str, Any], documents: Documents) -> bytes | None:
    """zarr.json of a closed lane with a copy of the others; None if too long or too deep."""
    paths = sorted(documents, key=lambda path: (path.count("/"), path))  # as zarr-python does
    metadata = {path: documents[path] for path in paths}
    root = json.loads(layout.group_json(attributes))
    data = layout.dump(root | {layout.COPY: {**_INLINE, "metadata": metadata}})
    if len(data) > layout.MAX_METADATA_BYTES:
        return None
    try:
        parse.parse_json(data, "")
    except FormatError:
        return None
    return data


def find_copy(document: Mapping[str, Any], where: str) -> Documents | None:
    """The copy in a lane's own zarr.json; None if it has none. FormatError: not as written."""
    given = document.get(layout.COPY)
    if given is None:
        return None
    where = f"{where}: {layout.COPY}"
    if not isinstance(given, dict) or not isinstance(given.get("metadata"), dict):
        raise FormatError(f"{where}: expected metadata in it, found {given!r:.200}")
    for key, value in _INLINE.items():
        if given.get(key) != value or type(given.get(key)) is not type(value):
            raise FormatError(f"{where}: {key}: expected {value!r}, found {given.get(key)!r:.200}")
    metadata: Documents = given["metadata"]
    return metadata
