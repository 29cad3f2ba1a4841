"""Episodes of Atari games, decoded when they are looked at.

Invariant: a trajectory reads as the list of its experiences does, slices included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from mmreplay.columns import Ids
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.states import AtariStates, States
from mmreplay.compat.nnabla_rl.trajectories import TrajectoryReplayBuffer

__all__ = ["AtariTrajectory", "MemoryEfficientAtariTrajectoryBuffer"]


class AtariTrajectory(Sequence[Experience]):
    """Experiences that follow one another, each read when it is asked for; slices are lists.

    Args:
        read: gives the experiences of ids.
        begin: the first row.
        length: how many.
    """

    def __init__(self, read: Callable[[Ids], list[Experience]], begin: int, length: int) -> None:
        """See the class."""
        self._read, self._ids = read, np.arange(begin, begin + length)

    def __len__(self) -> int:
        """How many experiences."""
        return len(self._ids)

    @overload
    def __getitem__(self, key: int) -> Experience: ...
    @overload
    def __getitem__(self, key: slice) -> list[Experience]: ...
    def __getitem__(self, key: int | slice) -> Experience | list[Experience]:
        """An experience, or a list of them.

        Raises:
            IndexError: there are not as many.
            InvalidIdError: the episode has been removed since.
        """
        ids = self._ids[key]
        if not isinstance(key, slice):
            return self._read(np.array([ids]))[0]
        return self._read(ids) if len(ids) else []


class MemoryEfficientAtariTrajectoryBuffer(TrajectoryReplayBuffer):
    """A `TrajectoryReplayBuffer` of stacked screens, each stored once, as bytes.

    Trajectories are read when they are looked at. States have four screens.

    Args:
        num_trajectories, path: as for `TrajectoryReplayBuffer`.
    """

    def _states(self) -> States:
        return AtariStates(_STACK)

    def _part(self, begin: int, length: int) -> Sequence[Experience]:
        return AtariTrajectory(self._reader.at, begin, length)


_STACK = 4
