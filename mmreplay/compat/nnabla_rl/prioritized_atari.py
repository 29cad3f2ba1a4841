"""Buffers of stacked screens of Atari games that draw by priority.

Invariant: they draw as `PrioritizedReplayBuffer` does, and store as `MemoryEfficientAtariBuffer`.
"""

from __future__ import annotations

from mmreplay.compat.nnabla_rl.buffers import Path
from mmreplay.compat.nnabla_rl.priorities import Prioritized
from mmreplay.compat.nnabla_rl.reading import checked_count
from mmreplay.compat.nnabla_rl.states import AtariStates, States
from mmreplay.errors import SchemaError

__all__ = ["ProportionalPrioritizedAtariBuffer", "RankBasedPrioritizedAtariBuffer"]

_NORMALIZATIONS = ("batch_max", "buffer_max")


class ProportionalPrioritizedAtariBuffer(Prioritized):
    """Screens drawn in proportion to priority ** alpha.

    Args:
        capacity: most experiences to keep.
        alpha, beta, betasteps, error_clip, epsilon: see `mmreplay.PrioritizedReplayBuffer`.
        normalization_method: weights are divided by the largest of the buffer, ``buffer_max``, or
            of the batch, ``batch_max``.
        stacked_frames: screens a state, in what comes out.
        path: as for `ReplayBuffer`.
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        betasteps: int = 50000000,
        error_clip: tuple[float, float] | None = (-1, 1),
        epsilon: float = 1e-8,
        normalization_method: str = "buffer_max",
        stacked_frames: int = 4,
        *,
        path: Path = None,
    ) -> None:
        """See the class."""
        if normalization_method not in _NORMALIZATIONS:
            raise SchemaError(
                f"normalization_method: expected one of {_NORMALIZATIONS}, found "
                f"{normalization_method!r}"
            )
        checked_count("stacked_frames", stacked_frames)
        self._stacked_frames = stacked_frames
        how = {
            "alpha": alpha,
            "beta": beta,
            "betasteps": betasteps,
            "error_clip": error_clip,
            "epsilon": epsilon,
            "variant": "proportional",
        }
        by_batch = normalization_method == "batch_max"
        super().__init__(capacity, how, path=path, by_batch=by_batch)

    def _states(self) -> States:
        return AtariStates(self._stacked_frames)


class RankBasedPrioritizedAtariBuffer(Prioritized):
    """Screens drawn in proportion to rank ** -alpha.

    Args:
        capacity: most experiences to keep.
        alpha, beta, betasteps, error_clip: see `mmreplay.PrioritizedReplayBuffer`.
        reset_segment_interval, sort_interval: of no effect: ranks are always exact.
        stacked_frames: screens a state, in what comes out.
        path: as for `ReplayBuffer`.
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.7,
        beta: float = 0.5,
        betasteps: int = 50000000,
        error_clip: tuple[float, float] | None = (-1, 1),
        reset_segment_interval: int = 1000,  # noqa: ARG002  see the class
        sort_interval: int = 1000000,  # noqa: ARG002  see the class
        stacked_frames: int = 4,
        *,
        path: Path = None,
    ) -> None:
        """See the class."""
        checked_count("stacked_frames", stacked_frames)
        self._stacked_frames = stacked_frames
        how = {
            "alpha": alpha,
            "beta": beta,
            "betasteps": betasteps,
            "error_clip": error_clip,
            "variant": "rank",
        }
        super().__init__(capacity, how, path=path)

    def _states(self) -> States:
        return AtariStates(self._stacked_frames)
