"""The info of an experience as columns: its numbers and arrays, by the keys that lead to them.

Invariant: an entry that has a column is read as it was appended, or is missing as it was missing;
other entries have none.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from mmreplay.columns import Array
from mmreplay.schema import Field

__all__ = ["InfoColumns"]

_GIVEN = "info_given"
_NAME_CHARACTERS = 90


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry that has a column.

    Attributes:
        keys: that lead to it, from the outermost dict inwards.
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
    def of(cls, info: Mapping[Any, Any]) -> tuple[Self, dict[str, Field]]:
        """The columns that infos like this one need, and their fields."""
        entries: list[Entry] = []
        extras: dict[str, Field] = {}
        for keys, value in _leaves(info):
            name = "info." + re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join(keys))[:_NAME_CHARACTERS]
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

    def values(self, info: Mapping[Any, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
        """What the columns get from an info: zeros for entries that it does not have."""
        if not self.entries:
            return {}
        found = {entry.column: _value(info, entry.keys) for entry in self.entries}
        given = np.array([value is not None for value in found.values()])
        for name, value in found.items():
            if value is None:
                found[name] = np.zeros(fields[name].shape, fields[name].dtype)
        return {**found, _GIVEN: given}

    def info(self, extras: Mapping[str, Array], i: int) -> dict[str, Any]:
        """The info of the i-th transition of a batch with these extras."""
        out: dict[str, Any] = {}
        for number, entry in enumerate(self.entries):
            if extras[_GIVEN][i, number]:
                inner = out
                for key in entry.keys[:-1]:
                    inner = inner.setdefault(key, {})
                value = extras[entry.column][i]
                inner[entry.keys[-1]] = value.item() if entry.plain else value
        return out


def _leaves(
    info: Mapping[Any, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The entries that can be columns, with the keys that lead to them."""
    for key, value in info.items():
        if not isinstance(key, str):
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, (*before, key))
        elif isinstance(value, (bool, int, float, np.ndarray, np.generic)):
            found = np.asarray(value)
            if found.dtype.kind in "biuf" and found.size:
                yield (*before, key), value


def _value(info: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        info = info.get(key) if isinstance(info, Mapping) else None
    return info
