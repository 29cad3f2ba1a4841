"""stable-baselines3: its replay buffers, with the transitions in a store.

Invariant: a relabelled transition has the reward that the environment gives for its goal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmreplay.adapters.disk_replay_buffer import BaseBuffer, DiskReplayBuffer, HerReplayBuffer
from mmreplay.arguments import whole_number
from mmreplay.batches.batch import Batch
from mmreplay.datasets.hindsight import STRATEGIES, Hindsight
from mmreplay.datasets.replay_buffer import ReplayBuffer as StoredBuffer
from mmreplay.errors import SchemaError
from mmreplay.ids import Array, Ids

__all__ = ["DiskHerReplayBuffer", "DiskReplayBuffer"]


class DiskHerReplayBuffer(DiskReplayBuffer, HerReplayBuffer):
    """A `DiskReplayBuffer` that replaces `HerReplayBuffer`: samples have goals reached later.

    Transitions of running episodes are sampled, too. Each transition gets another goal with
    probability n_sampled_goal / (n_sampled_goal + 1).

    Args:
        buffer_size, action_space: as for `DiskReplayBuffer`.
        observation_space: a dict with ``achieved_goal`` and ``desired_goal``.
        env: passed by the model; its ``compute_reward`` is called, with empty infos.
        n_sampled_goal: samples with another goal, per sample with its own.
        goal_selection_strategy: ``future``, ``final`` or ``episode``; see `mmreplay.Hindsight`.
        copy_info_dict: must be False, as infos are not stored.
        *more, **of_buffer: what follows `action_space` in `DiskReplayBuffer`, without `n_steps`,
            `gamma` and `stack`.

    Raises:
        SchemaError: an unknown strategy, `copy_info_dict`, `n_steps`; or as `DiskReplayBuffer`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        env: Any,
        *more: Any,
        n_sampled_goal: int = 4,
        goal_selection_strategy: str = "future",
        copy_info_dict: bool = False,
        **of_buffer: Any,
    ) -> None:
        if copy_info_dict:
            raise SchemaError(
                "copy_info_dict: expected False, as infos are not stored and compute_reward gets "
                "empty ones; if it needs them, use stable-baselines3's own buffer"
            )
        super().__init__(
            buffer_size, observation_space, action_space, *more, stack=None, **of_buffer
        )
        if self.n_steps > 1:
            raise SchemaError(f"n_steps: expected 1 with goals, found {self.n_steps}")
        self.env = env
        self.n_sampled_goal = whole_number("n_sampled_goal", n_sampled_goal, 0)
        self.her_ratio = 1 - 1 / (self.n_sampled_goal + 1)
        name = getattr(goal_selection_strategy, "name", goal_selection_strategy)
        self.goal_selection_strategy = strategy = str(name).lower()
        if strategy not in STRATEGIES:
            text = f"goal_selection_strategy: expected one of {STRATEGIES}, found {name!r}"
            raise SchemaError(text)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.env = None  # until `set_env`

    def truncate_last_trajectory(self) -> None:
        """Does nothing: an episode ends where the next observation belongs to another one."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions, and goals for a share of them."""
        return BaseBuffer.sample(self, batch_size, env)

    def _read(self, buffer: StoredBuffer, ids: Ids) -> Batch:
        strategy, ratio = self.goal_selection_strategy, self.her_ratio
        return Hindsight(buffer, self._reward, strategy, ratio).relabel(ids)

    def _reward(self, achieved: Array, desired: Array, _: Any) -> Array:
        if self.env is None:
            raise SchemaError(f"{self.path}: expected an environment first; call set_env(env)")
        infos: list[dict[str, Any]] = [{} for _ in achieved]
        (rewards,) = self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])
        return np.asarray(rewards, np.float32)
