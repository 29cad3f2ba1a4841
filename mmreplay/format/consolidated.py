"""zarr's consolidated metadata: a copy of every zarr.json of a closed lane, in the lane's own.

Invariant: it is a copy. What it says of an array is checked as the array's own document is, and
where both are there and differ, the own one is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmreplay.errors import FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec

__all__ = ["EMPTY", "Copy", "documents_of", "documents_of_log", "find_copy"]

_INLINE = {"kind": "inline", "must_understand": False}

EMPTY = {**_INLINE, "metadata": {}}
"""What zarr-python puts into each group in a copy."""

Documents = dict[str, dict[str, Any]]
"""What stands in each zarr.json below a lane or log, by the path of its directory."""


def documents_of(arrays: Iterable[tuple[ArraySpec, int]]) -> Documents:
    """The documents of some arrays, (spec, rows) each, and of the groups that hold them."""
    out = {spec.path: json.loads(layout.array_json(spec, rows)) for spec, rows in arrays}
    groups = layout.group_paths(out)
    return out | {path: json.loads(layout.group_json()) for path in groups}


def documents_of_log(name: str, attributes: Mapping[str, Any], below: Documents) -> Documents:
    """A log of a vector lane, and what is below it, by path below the lane."""
    own = json.loads(layout.group_json(attributes))
    return {name: own, **{f"{name}/{path}": document for path, document in below.items()}}


def root_json(attributes: Mapping[str, Any], documents: Documents) -> bytes | None:
    """zarr.json of a closed lane with a copy of the others; None if nobody would read it.

    With attributes of nearly the length, or the depth, that is allowed there is no room for one.
    """
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


def find_copy(document: Mapping[str, Any], where: str) -> Copy | None:
    """The copy in a lane's own zarr.json, not looked into yet; None if there is none."""
    given = document.get(layout.COPY)
    return None if given is None else Copy(given, f"{where}: {layout.COPY}")


@dataclass(frozen=True, slots=True)
class Copy:
    """The documents of a lane, or of one of its logs, as its own zarr.json has them.

    `given` is the value in there, `where` names it in messages, `log` the log whose documents are
    meant, empty for all. Whatever is asked raises FormatError if it has not the form that it must
    have.
    """

    given: Any
    where: str
    log: str = ""

    def of_log(self, name: str, attributes: Mapping[str, Any]) -> Copy | None:
        """The part that is about a log; None if that says other attributes than its own does.

        Then it is of another close than the log is.
        """
        document = self.documents().get(name)
        own = document.get("attributes") if isinstance(document, dict) else None
        own = own.get(layout.ATTRIBUTE) if isinstance(own, dict) else None
        if not isinstance(own, dict):
            return None
        copied = {key: value for key, value in own.items() if key != layout.DIGEST}
        return Copy(self.given, self.where, name) if copied == attributes else None

    def documents(self) -> Mapping[str, Any]:
        """Every document that is there, by path."""
        given = self.given
        if not isinstance(given, dict) or not isinstance(given.get("metadata"), dict):
            raise FormatError(f"{self.where}: expected metadata in it, found {given!r:.200}")
        for key, value in _INLINE.items():
            if given.get(key) != value or type(given.get(key)) is not type(value):
                raise FormatError(
                    f"{self.where}: {key}: expected {value!r}, found {given.get(key)!r:.200}"
                )
        metadata: dict[str, Any] = given["metadata"]
        return metadata

    def array(self, path: str) -> tuple[ArraySpec, int] | None:
        """The spec and the rows of an array, as `parse.parse_array` gives them; None if missing."""
        key = f"{self.log}/{path}" if self.log else path
        document = self.documents().get(key)
        if document is None:
            return None
        return parse.array_spec(document, path, self.name(path))

    def name(self, path: str) -> str:
        """What to call an array's document in a message."""
        return f"{self.where}: {self.log}/{path}" if self.log else f"{self.where}: {path}"
