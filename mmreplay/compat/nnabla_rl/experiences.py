"""Experiences as nnabla-rl has them, as what a row holds, and back.

Invariant: an experience that is read is, value for value, the one that was appended, less those
entries of its info that have no column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.compat.nnabla_rl.info import InfoColumns
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Field

Experience = tuple[Any, ...]
"""(s, a, r, non_terminal, s_next, info); a state is an array, or a tuple of arrays."""

_REWARD = "reward_array"
_PARTS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How experiences like one that was seen lie in a row.

    Attributes:
        is_array: whether rewards are arrays, which then have a column of their own.
        info: the columns of the info.
    """

    is_array: bool
    info: InfoColumns

    @classmethod
    def of(cls, experience: Experience) -> tuple[Self, dict[str, Any]]:
        """The layout for experiences like this one, and the store's fields but for the frame."""
        action, reward = np.asarray(experience[1]), np.asarray(experience[2])
        info, extras = InfoColumns.of(experience[5])
        if reward.ndim:
            extras[_REWARD] = Field(reward.shape, reward.dtype)
        fields = {
            "action": Field(action.shape, action.dtype),
            "extras": extras,
            "reward_dtype": "float64",  # a Python float comes back as it was
        }
        return cls(reward.ndim > 0, info), fields

    def to_json(self) -> dict[str, Any]:
        """For the store's metadata."""
        return {"is_array": self.is_array, "info": self.info.to_json()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """What `to_json` returned."""
        return cls(found["is_array"], InfoColumns.from_json(found["info"]))

    def values(
        self, experience: Experience, fields: Mapping[str, Field]
    ) -> tuple[Array, float, dict[str, Any]]:
        """The action, the reward and the extra columns of an experience."""
        _, action, reward, _, _, info = experience
        extras = self.info.values(info, fields)
        if self.is_array:
            extras[_REWARD] = np.asarray(reward)
            reward = np.sum(reward)
        return np.asarray(action), float(reward), extras

    def experiences(
        self, batch: Batch, states: list[Any], following: list[Any]
    ) -> list[Experience]:
        """The experiences of a batch, from its B states and those after them."""
        rewards: Any = batch.extras[_REWARD] if self.is_array else batch.reward.tolist()
        live = batch.non_terminal.astype(np.float64).tolist()
        return [
            (s, action, r, non_terminal, s_next, self.info.info(batch.extras, i))
            for i, (s, action, r, non_terminal, s_next) in enumerate(
                zip(states, batch.action, rewards, live, following, strict=True)
            )
        ]


def checked(experience: Any) -> Experience:
    """The six parts of an experience; the info may be missing, and what comes after it goes.

    Raises SchemaError if it is none.
    """
    if not isinstance(experience, (tuple, list)) or len(experience) < _PARTS - 1:
        raise SchemaError(
            f"experience: expected (s, a, r, non_terminal, s_next, info), found {experience!r:.100}"
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
