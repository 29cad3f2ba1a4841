"""A buffer whose samples have goals that their episode reached later.

Invariant: what is stored is not changed; `buffer[i]` is the experience as it was appended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.experiences import Experience, checked, info_of
from mmreplay.compat.nnabla_rl.replay_buffer import Draw, ReplayBuffer
from mmreplay.datasets.hindsight import Hindsight
from mmreplay.errors import SchemaError
from mmreplay.ids import Array

RewardFunction = Callable[[Array, Array, dict[str, Any]], Any]

_STATE_PARTS = 3
_DESIRED, _ACHIEVED = "1", "2"


class HindsightReplayBuffer(ReplayBuffer):
    """Experiences, a share of which is sampled with a goal reached later in the same episode.

    States are tuples (observation, desired_goal, achieved_goal).

    Args:
        reward_function: ``reward_function(achieved_goal, desired_goal, info)`` of one step: the
            goal achieved after it, the new desired goal, and the info of the experience.
        hindsight_prob: the share, in [0, 1].
        capacity: most experiences to keep; None keeps all.
        path: as for `ReplayBuffer`.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay: strategy "future".
    """

    def __init__(
        self,
        reward_function: RewardFunction,
        hindsight_prob: float = 0.8,
        capacity: int | None = None,
        *,
        path: StorePath = None,
    ) -> None:
        self._reward_function, self._probability = reward_function, hindsight_prob
        self._hindsight: Hindsight | None = None
        super().__init__(capacity, path=path)

    def append(self, experience: Experience) -> None:
        """See `ReplayBuffer.append`.

        Raises:
            RuntimeError: the state is not a tuple of three.
            SchemaError: as `ReplayBuffer.append`; or a reward of several numbers.
        """
        s, action, reward, non_terminal, s_next, info = checked(experience)
        if not isinstance(s, tuple) or len(s) != _STATE_PARTS:
            raise RuntimeError(
                "state: expected a tuple (observation, desired_goal, achieved_goal), found "
                f"{type(s).__name__}"
            )
        if np.size(reward) != 1:
            raise SchemaError(f"reward: expected one number, found {reward!r:.100}")
        value = float(np.asarray(reward).reshape(()))
        super().append((s, action, value, non_terminal, s_next, info))

    def _runs(self, draw: Draw, num_steps: int) -> tuple[Any, dict[str, Any]]:
        if num_steps > 1:
            raise NotImplementedError("num_steps: expected 1, as goals are of one step each")
        if self._hindsight is None:
            self._hindsight = Hindsight(
                self.core,
                functools.partial(_rewards, self._reward_function),
                probability=self._probability,
                achieved_goal=_ACHIEVED,
                desired_goal=_DESIRED,
            )
        batch = self._hindsight.relabel(self.core.store.live.look(draw))
        return self._experiences(batch), {"weights": np.ones((len(batch), 1))}


def _rewards(
    function: RewardFunction, achieved: Array, desired: Array, extras: dict[str, Array]
) -> Array:
    """The rewards of N steps."""
    pairs = enumerate(zip(achieved, desired, strict=True))
    return np.array([float(function(*pair, info_of(extras, i))) for i, pair in pairs])
