"""The info of an experience as columns: its numbers and arrays, by the keys that lead to them.

An info that is no dict but a number or an array is one entry that no key leads to.

Invariant: an entry that has a column is read as it was appended, or is missing as it was missing;
other entries have none.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Field

_GIVEN, _WHOLE = "info_given", "info"
_NAME_CHARACTERS = 95


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry that has a column.

    Attributes:
        keys: that lead to it, from the outermost dict inwards; none if it is the whole info.
        column: its name.
        plain: whether it is a Python number, and no array.
    """

    keys: tuple[str, ...]
    column: str
    plain: bool


@dataclasses.dataclass(frozen=True, slots=True)
class InfoColumns:
    """The columns for infos like one that was seen."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, info: Any) -> tuple[Self, dict[str, Field]]:
        """The columns that infos like this one need, and their fields."""
        entries: list[Entry] = []
        extras: dict[str, Field] = {}
        for keys, value in _leaves(info):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join((_WHOLE, *keys)))[:_NAME_CHARACTERS]
            while name in extras:
                name += "_"
            plain = not isinstance(value, (np.ndarray, np.generic))
            # A plain number that is whole now may be none the next time.
            found = np.asarray(value, np.float64 if type(value) in (int, float) else None)
            extras[name] = Field(found.shape, found.dtype)
            entries.append(Entry(keys, name, plain))
        if entries:
            extras[_GIVEN] = Field((len(entries),), "bool")
        return cls(tuple(entries)), extras

    @classmethod
    def from_json(cls, found: Sequence[Mapping[str, Any]]) -> Self:
        """What `to_json` returned."""
        return cls(tuple(Entry(tuple(e["keys"]), e["column"], e["plain"]) for e in found))

    def to_json(self) -> list[dict[str, Any]]:
        """For the store's metadata."""
        return [dataclasses.asdict(entry) for entry in self.entries]

    def values(self, info: Any, fields: Mapping[str, Field]) -> dict[str, Any]:
        """What the columns get from an info: zeros for entries that it does not have."""
        if not self.entries:
            return {}
        found = {
            entry.column: _value(info, entry.keys) if entry.keys else _whole(info, fields)
            for entry in self.entries
        }
        given = np.array([value is not None for value in found.values()])
        for name, value in found.items():
            if value is None:
                found[name] = np.zeros(fields[name].shape, fields[name].dtype)
        return {**found, _GIVEN: given}

    def info(self, extras: Mapping[str, Array], i: int) -> Any:
        """The info of the i-th transition of a batch with these extras; {} if none is stored."""
        out: dict[str, Any] = {}
        for number, entry in enumerate(self.entries):
            if extras[_GIVEN][i, number]:
                value = extras[entry.column][i]
                value = value.item() if entry.plain else value
                if not entry.keys:
                    return value
                inner = out
                for key in entry.keys[:-1]:
                    inner = inner.setdefault(key, {})
                inner[entry.keys[-1]] = value
        return out


def _leaves(found: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The entries that can be columns, with the keys that lead to them."""
    if isinstance(found, Mapping):
        for key, value in found.items():
            if isinstance(key, str):
                yield from _leaves(value, (*keys, key))
    elif isinstance(found, (bool, int, float, np.ndarray, np.generic)):
        array = np.asarray(found)
        if array.dtype.kind in "biuf" and array.size:
            yield keys, found


def _value(info: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        info = info.get(key) if isinstance(info, Mapping) else None
    return info


def _whole(info: Any, fields: Mapping[str, Field]) -> Any:
    """An info that is no dict; None if it does not fit its column, as nobody asked for one."""
    try:
        return None if info is None else fields[_WHOLE].coerce_loosely(info, "info")
    except SchemaError:
        return None
