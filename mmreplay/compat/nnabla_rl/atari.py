"""Buffers for stacked screens of Atari games: each screen is stored once, as bytes.

Invariant: a state comes out as the stack that was appended: float32 in [0, 1], (k, 84, 84).
"""

from __future__ import annotations

from mmreplay.compat.nnabla_rl.buffers import Path, ReplayBuffer
from mmreplay.compat.nnabla_rl.reading import checked_count
from mmreplay.compat.nnabla_rl.states import AtariStates, States

__all__ = ["MemoryEfficientAtariBuffer"]


class MemoryEfficientAtariBuffer(ReplayBuffer):
    """A `ReplayBuffer` of screens, stacked or single; as floats in [0, 1] or as bytes.

    Args:
        capacity: most experiences to keep.
        stacked_frames: screens a state, in what comes out.
        path: as for `ReplayBuffer`.
    """

    def __init__(self, capacity: int, stacked_frames: int = 4, *, path: Path = None) -> None:
        """See the class."""
        checked_count("stacked_frames", stacked_frames)
        self._stacked_frames = stacked_frames
        super().__init__(capacity, path=path)

    def _states(self) -> States:
        return AtariStates(self._stacked_frames)
