"""Convert experiences of nnabla-rl to the values of a row, states to frames, and back.

Invariant: an experience that is read equals the one that was appended, except for the entries of
its info that have no column; states of Atari games as pixels divided by 255.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Field

Experience = tuple[Any, ...]
"""(s, a, r, non_terminal, s_next, info); a state is an array, or a tuple of arrays."""
Frames = Array | dict[str, Array]

TIME_LIMIT = "TimeLimit.truncated"

_REWARD = "reward_array"
_INFO = "info."
_PARTS = 6
_IMAGE = 2
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,90}\Z")


def checked(experience: Any) -> Experience:
    """The six parts of an experience; an info that is missing or not a dict becomes {}."""
    if not isinstance(experience, (tuple, list)) or len(experience) < _PARTS - 1:
        raise SchemaError(
            f"experience: expected (s, a, r, non_terminal, s_next, info), found {experience!r:.100}"
        )
    if isinstance(experience[1], tuple):
        raise SchemaError(
            f"action: expected a number or an array, found a tuple, {experience[1]!r:.100}; join "
            f"its parts into one array"
        )
    *parts, info = (*experience[:_PARTS], {})[:_PARTS]
    return (*parts, info if isinstance(info, Mapping) else {})


def content(state: Any) -> object:
    """A copy of a state, to compare it with others."""
    if isinstance(state, tuple):
        return tuple(content(part) for part in state)
    found = np.asarray(state)
    if found.dtype.hasobject:
        raise SchemaError(f"state: expected numbers, found {state!r:.100}")
    return found.dtype.str, found.shape, found.tobytes()


def fields_for(experience: Experience) -> dict[str, Any]:
    """The fields of a store for experiences like this one, without the frame."""
    action, reward = np.asarray(experience[1]), np.asarray(experience[2])
    fields = {f"{_INFO}{key}": _field(key, value) for key, value in experience[5].items()}
    extras = {name: field for name, field in fields.items() if field is not None}
    if reward.ndim:
        extras[_REWARD] = Field(reward.shape, reward.dtype)
    return {
        "action": Field(action.shape, action.dtype),
        "extras": extras,
        "reward_dtype": "float64",  # a Python float comes back as it was
    }


def _field(key: Any, value: Any) -> Field | None:
    """The field of an entry of an info; None if it is not stored."""
    is_number = isinstance(value, (bool, int, float, np.ndarray, np.generic))
    if not is_number or not isinstance(key, str) or not _KEY.match(key) or key == TIME_LIMIT:
        return None
    with contextlib.suppress(SchemaError):  # an array of strings or objects
        # Later values of an int may be floats.
        array = np.asarray(value, np.float64 if type(value) is int else None)
        return Field(array.shape, array.dtype)
    return None


def row_values(
    experience: Experience, fields: Mapping[str, Field]
) -> tuple[Array, float, dict[str, Any]]:
    """The action, the reward and the extra columns of an experience, which have these fields."""
    _, action, reward, _, _, info = experience
    extras: dict[str, Any] = {}
    for name in fields:
        key = name.removeprefix(_INFO)
        if key == name:
            continue
        if key not in info:
            raise SchemaError(f"info: expected {key!r}, as in the first experience, found none")
        extras[name] = info[key]
    if _REWARD in fields:
        extras[_REWARD] = np.asarray(reward)
        reward = np.sum(reward)
    return np.asarray(action), float(reward), extras


def info_of(extras: Mapping[str, Array], i: int) -> dict[str, Any]:
    """The info of the i-th transition of a batch with these extras; {} if none is stored."""
    return {
        name.removeprefix(_INFO): column[i] if column.ndim > 1 else column[i].item()
        for name, column in extras.items()
        if name.startswith(_INFO)
    }


def experiences_of(batch: Batch, states: list[Any], following: list[Any]) -> list[Experience]:
    """The experiences of a batch, from its B states and the B states that follow."""
    rewards: Any = batch.extras.get(_REWARD, batch.reward.tolist())
    live = batch.non_terminal.astype(np.float64).tolist()
    infos = [info_of(batch.extras, i) for i in range(len(states))]
    return [*zip(states, batch.action, rewards, live, following, infos, strict=True)]


class States:
    """Arrays or tuples of arrays, stored as they are."""

    stack: int | None = None

    def frame(self, state: Any) -> Frames:
        """The newest frame of a state, or the parts of a tuple by number."""
        if isinstance(state, tuple):
            return {str(number): np.asarray(part) for number, part in enumerate(state)}
        return np.asarray(state)

    def check(self, state: Any, following: Any, *, begins: bool) -> None:
        """Raise SchemaError if the two cannot be rebuilt from frames; `begins` an episode."""

    def field(self, frame: Frames) -> Any:
        """The field for frames like this one, or fields."""
        if isinstance(frame, dict):
            return {key: Field(part.shape, part.dtype) for key, part in frame.items()}
        return Field(frame.shape, frame.dtype)

    def states(self, observation: Frames) -> list[Any]:
        """(B, ...) observations as B states."""
        if isinstance(observation, dict):
            parts = [observation[str(number)] for number in range(len(observation))]
            return list(zip(*parts, strict=True))
        return list(observation)


class AtariStates(States):
    """Stacks of `stack` screens, or single ones; floats in [0, 1] or bytes, stored as bytes."""

    def __init__(self, stack: int) -> None:
        self.stack: int | None = stack

    def frame(self, state: Any) -> Frames:
        """The newest screen of a state."""
        screens = np.asarray(state)
        if screens.ndim not in (_IMAGE, _IMAGE + 1) or not screens.size:
            raise SchemaError(
                f"state: expected one screen (84, 84) or a stack of them (4, 84, 84), found "
                f"{screens.shape}"
            )
        newest: Array = screens if screens.ndim == _IMAGE else screens[-1]
        return newest

    def check(self, state: Any, following: Any, *, begins: bool) -> None:
        """Raise SchemaError if the stacks are not one step apart."""
        before, after = np.asarray(state), np.asarray(following)
        if before.ndim == _IMAGE and after.ndim == _IMAGE:
            return
        if not np.array_equal(before[1:], after[:-1]):
            raise SchemaError(
                "s_next: expected the stack of s without its oldest screen and with a new one, "
                "found other screens"
            )
        shown = before[-(self.stack or 1) :]
        if begins and (shown != shown[:1]).any():
            raise SchemaError(
                "s: a state that is not the previous s_next begins an episode, whose first stack "
                "is one screen repeated; found different screens. Append the steps of an episode "
                "in order"
            )

    def field(self, frame: Frames) -> Any:
        """The field of a screen."""
        return Field(np.asarray(frame).shape, "uint8")

    def states(self, observation: Frames) -> list[Any]:
        """(B, k, H, W) bytes as float32 in [0, 1]."""
        return list(np.divide(np.asarray(observation), np.float32(255), dtype=np.float32))
