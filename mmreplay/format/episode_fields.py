"""What a store keeps of each episode, beside its steps: the fields that a user declares.

Invariant: no field has the name of a column of `episodes`, or of an argument of what takes fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mmreplay.errors import SchemaError
from mmreplay.schema import Field
from mmreplay.texts import Text

EpisodeField = Field | Text

STARTED = "started"
"""The field that every new store has: when each episode began, ns since 1970 UTC; 0: not known."""

MOST_BYTES = 1 << 16
"""Of a field, of one episode."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_TAKEN = {
    *("id", "length", "return", "terminated", "truncated", "lane", "env", STARTED),
    *("number", "row", "environment", "end", "episode", "episodes"),
    *("self", "frame", "frames", "mask", "path", "zarr.json"),
}


def episode_fields(given: Any) -> dict[str, EpisodeField]:
    """The fields that a user declares, checked; raises SchemaError."""
    if not isinstance(given, Mapping | None):
        raise SchemaError(f"episode: expected a dict of fields by name, found {given!r:.80}")
    out = dict(given or {})
    for name, one in out.items():
        if not isinstance(name, str) or not _NAME.match(name) or name.endswith(".tmp"):
            raise SchemaError(
                f"episode: the name {name!r:.120} cannot be a field's; use up to 100 letters, "
                f"digits, '_', '-' and '.', and begin with a letter or '_'"
            )
        if name in _TAKEN:
            raise SchemaError(
                f"episode: the name {name!r} is taken, by a column of `episodes` or an argument of "
                f"reset(); rename it"
            )
        is_plain = isinstance(one, Text) or (
            isinstance(one, Field) and one == Field(one.shape, one.dtype)
        )
        if not is_plain or one.row_bytes > MOST_BYTES:
            raise SchemaError(
                f"episode: {name}: expected mmreplay.Text(width), or mmreplay.Field(shape, dtype) "
                f"of at most {MOST_BYTES:,} bytes, and nothing else; found {one!r:.120}"
            )
    return out


def field_name(name: str) -> str:
    """A foreign name as that of a field: ``options/x`` is ``options.x``."""
    out = re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("/", "."))[:90]
    out = out if _NAME.match(out) else f"_{out}"
    return f"{out}_" if (out in _TAKEN and out != STARTED) or out.endswith(".tmp") else out


def with_started(fields: Mapping[str, EpisodeField]) -> dict[str, EpisodeField]:
    """With the field that every new store has."""
    return {STARTED: Field((), "int64"), **fields}


def fields_from_json(
    document: Mapping[str, Any], plain: Callable[[Mapping[str, Any]], Field]
) -> dict[str, EpisodeField]:
    """The fields as a store's attributes have them; `plain` reads one of numbers.

    Raises TypeError, or SchemaError, if they are not as written. Stores from before there were
    fields of episodes have none.
    """
    out: dict[str, EpisodeField] = {
        name: Text(one["text"]) if one.keys() == {"text"} else plain(one)
        for name, one in document.items()
    }
    declared = episode_fields({name: one for name, one in out.items() if name != STARTED})
    if out != declared and out != with_started(declared):
        raise TypeError(f"{STARTED}: expected int64, found {document[STARTED]!r:.200}")
    return out
