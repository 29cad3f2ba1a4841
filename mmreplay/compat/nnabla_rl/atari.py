"""Buffers for stacked screens of Atari games: each screen is stored once, as bytes.

Invariant: a state comes back as the stack that was appended: float32 in [0, 1], (k, 84, 84). A
trajectory reads as a list of its experiences, slices included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.replay_buffer import ReplayBuffer
from mmreplay.compat.nnabla_rl.trajectories import TrajectoryReplayBuffer
from mmreplay.ids import Ids


class MemoryEfficientAtariBuffer(ReplayBuffer):
    """A `ReplayBuffer` of screens, stacked or single; as floats in [0, 1] or as bytes.

    Args:
        capacity: most experiences to keep.
        stacked_frames: screens per state.
        path: as for `ReplayBuffer`.
    """

    def __init__(self, capacity: int, stacked_frames: int = 4, *, path: StorePath = None) -> None:
        self._stacked_frames = stacked_frames
        super().__init__(capacity, path=path)


class AtariTrajectory(Sequence[Experience]):
    """Experiences of a trajectory, each read when it is used; slices are lists."""

    def __init__(self, read: Callable[[Ids], list[Experience]], ids: Ids) -> None:
        self._read, self._ids = read, ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, key: int) -> Experience: ...
    @overload
    def __getitem__(self, key: slice) -> list[Experience]: ...
    def __getitem__(self, key: int | slice) -> Experience | list[Experience]:
        """An experience, or a list of them; InvalidIdError if the trajectory was evicted."""
        ids = self._ids[key]
        if not isinstance(key, slice):
            return self._read(np.array([ids]))[0]
        return self._read(ids) if len(ids) else []


class MemoryEfficientAtariTrajectoryBuffer(TrajectoryReplayBuffer):
    """A `TrajectoryReplayBuffer` of stacked screens, each stored once, as bytes.

    Experiences are read when they are used. States have four screens. A step that does not continue
    the previous one begins a game, whose first stack is one screen repeated.

    Args:
        num_trajectories, path: as for `TrajectoryReplayBuffer`.
    """

    _stacked_frames = 4

    def _whole(self, ids: Ids) -> Sequence[Experience]:
        return AtariTrajectory(self._reader.at, ids)
