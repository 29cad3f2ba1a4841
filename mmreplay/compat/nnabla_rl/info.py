"""The info of an experience as columns: its numbers and arrays, by the keys that lead to them.

An info that is no dict but a number or an array is one entry that no key leads to.

Invariant: an entry that has a column is read as it was appended, or is missing as it was missing or
did not fit its column; other entries have none. No info is refused.
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
        for keys, value, field in _leaves(info):
            wanted = re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join((_WHOLE, *keys)))[:_NAME_CHARACTERS]
            name, number = wanted, 1
            while name in extras:
                number += 1
                name = f"{wanted}_{number}"
            extras[name] = field
            entries.append(Entry(keys, name, not isinstance(value, (np.ndarray, np.generic))))
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
        """What the columns get from an info: zeros for what is not there or does not fit."""
        if not self.entries:
            return {}
        found = {
            entry.column: _fitting(_value(info, entry.keys), fields[entry.column])
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


def _leaves(
    found: Any, keys: tuple[str, ...] = (), around: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Field]]:
    """The entries that can be columns: the keys that lead to them, the value and its field."""
    if isinstance(found, Mapping):
        if not any(found is outer for outer in around):
            for key, value in found.items():
                if isinstance(key, str):
                    yield from _leaves(value, (*keys, key), (*around, found))
    elif isinstance(found, (bool, int, float, np.ndarray, np.generic)):
        field = _field(found)
        if field is not None:
            yield keys, found, field


def _field(value: Any) -> Field | None:
    """The field for values like this one; None if there can be none."""
    array = np.asarray(value)
    if type(value) is int and array.dtype.kind in "iu":
        array = array.astype(np.float64)  # it may be no whole number the next time
    try:
        return Field(array.shape, array.dtype)
    except SchemaError:
        return None


def _value(info: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        info = info.get(key) if isinstance(info, Mapping) else None
    return info


def _fitting(value: Any, field: Field) -> Array | None:
    """A value as its column holds it; None if there is none, or if it does not fit."""
    if value is None or isinstance(value, Mapping):
        return None
    try:
        return field.coerce_loosely(value, "info")
    except Exception:  # noqa: BLE001 (an info may be anything, and fail in any way as an array)
        return None
