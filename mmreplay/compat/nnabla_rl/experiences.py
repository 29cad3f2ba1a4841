"""Experiences as nnabla-rl has them, as what a row holds, and back.

Invariant: an experience that is read is, value for value, the one that was appended, less those
entries of its info that have no column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Field

Experience = tuple[Any, ...]
"""(s, a, r, non_terminal, s_next, info); a state is an array, or a tuple of arrays."""

_REWARD = "reward_array"
_INFO, _GIVEN = "info.", "info_given"
_PARTS = 6
_MOST_CHARACTERS = 90


def checked(experience: Any) -> Experience:
    """The six parts of an experience; the info may be missing, and what comes after it goes.

    Raises SchemaError if it is none.
    """
    if not isinstance(experience, (tuple, list)) or len(experience) < _PARTS - 1:
        raise SchemaError(
            f"experience: expected (s, a, r, non_terminal, s_next, info), found {experience!r:.100}"
        )
    if isinstance(experience[1], tuple):
        raise SchemaError(
            f"action: expected a number or an array, found a tuple, {experience[1]!r:.100}; join "
            f"its parts into one array"
        )
    return (*experience[:_PARTS], {})[:_PARTS]


def content(state: Any) -> object:
    """What tells a state from another, and stays when the environment writes over its arrays."""
    if isinstance(state, tuple):
        return tuple(content(part) for part in state)
    found = np.asarray(state)
    if found.dtype.hasobject:
        raise SchemaError(f"state: expected numbers, found {state!r:.100}")
    return found.dtype.str, found.shape, found.tobytes()


def fields_for(experience: Experience) -> dict[str, Any]:
    """The fields of a store for experiences like this one, but for the frame."""
    action, reward = np.asarray(experience[1]), np.asarray(experience[2])
    found = {f"{_INFO}{key}": _field(value) for key, value in _entries(experience[5]).items()}
    extras = {name: field for name, field in found.items() if field is not None}
    if extras:
        extras[_GIVEN] = Field((len(extras),), "bool")
    if reward.ndim:
        extras[_REWARD] = Field(reward.shape, reward.dtype)
    return {
        "action": Field(action.shape, action.dtype),
        "extras": extras,
        "reward_dtype": "float64",  # a Python float comes back as it was
    }


def _field(value: Any) -> Field | None:
    """The field for values like this one of an info; None if it is not stored."""
    if not isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return None
    with contextlib.suppress(SchemaError, OverflowError):
        # An int may be no whole number the next time.
        array = np.asarray(value, np.float64 if type(value) is int else None)
        return Field(array.shape, array.dtype)
    return None


def _entries(info: Any) -> dict[str, Any]:
    """Those of an info whose keys can name columns; of one that is no dict, itself by ``""``."""
    if not isinstance(info, Mapping):
        return {"": info}
    return {
        key: value
        for key, value in info.items()
        if isinstance(key, str)
        and key.isascii()
        and key.replace(".", "_").isidentifier()
        and len(key) <= _MOST_CHARACTERS
    }


def _info_columns(extras: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in extras if name.startswith(_INFO))


def row_values(
    experience: Experience, fields: Mapping[str, Field]
) -> tuple[Array, float, dict[str, Any]]:
    """The action, the reward and the extra columns of an experience, which have these fields."""
    _, action, reward, _, _, info = experience
    extras: dict[str, Any] = {}
    if names := _info_columns(fields):
        entries = _entries(info)
        found = [_fitting(entries.get(name[len(_INFO) :]), fields[name]) for name in names]
        extras[_GIVEN] = np.array([value is not None for value in found])
        for name, value in zip(names, found, strict=True):
            extras[name] = _nothing(fields[name]) if value is None else value
    if _REWARD in fields:
        extras[_REWARD] = np.asarray(reward)
        reward = np.sum(reward)
    return np.asarray(action), float(reward), extras


def _fitting(value: Any, field: Field) -> Array | None:
    """A value in the dtype of its column, or None if it is missing or does not fit."""
    with contextlib.suppress(SchemaError):
        return None if value is None else field.coerce_loosely(value, "info")
    return None


def _nothing(field: Field) -> Array:
    return np.zeros(field.shape, field.dtype)


def info_of(extras: Mapping[str, Array], i: int) -> Any:
    """The info of the i-th transition of a batch with these extras; {} if none is stored."""
    if not (names := _info_columns(extras)):
        return {}
    given = zip(names, extras[_GIVEN][i], strict=True)
    found = {name[len(_INFO) :]: extras[name][i] for name, is_given in given if is_given}
    out = {key: value if value.ndim else value.item() for key, value in found.items()}
    return out.get("", out)


def experiences_of(batch: Batch, states: list[Any], following: list[Any]) -> list[Experience]:
    """The experiences of a batch, from its B states and those after them."""
    rewards: Any = batch.extras.get(_REWARD, batch.reward.tolist())
    live = batch.non_terminal.astype(np.float64).tolist()
    return [
        (s, action, r, non_terminal, s_next, info_of(batch.extras, i))
        for i, (s, action, r, non_terminal, s_next) in enumerate(
            zip(states, batch.action, rewards, live, following, strict=True)
        )
    ]
