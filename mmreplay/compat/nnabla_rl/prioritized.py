"""`PrioritizedReplayBuffer`: whole states, drawn by priority.

Invariant: both variants differ in how a priority becomes a probability, and in nothing else.
"""

from __future__ import annotations

from mmreplay.compat.nnabla_rl.buffers import Path
from mmreplay.compat.nnabla_rl.priorities import Prioritized
from mmreplay.errors import SchemaError

__all__ = ["PrioritizedReplayBuffer"]

_VARIANTS = {"proportional": "proportional", "rank_based": "rank"}


class PrioritizedReplayBuffer(Prioritized):
    """Experiences drawn by priority, proportional to it or by rank.

    Args:
        capacity: most experiences to keep.
        alpha, beta, betasteps, error_clip, epsilon: see `mmreplay.PrioritizedReplayBuffer`.
        reset_segment_interval, sort_interval: of no effect: ranks are always exact.
        variant: ``proportional`` or ``rank_based``.
        path: as for `ReplayBuffer`.

    Source: Schaul et al. (2016), "Prioritized Experience Replay".
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        betasteps: int = 10000,
        error_clip: tuple[float, float] | None = (-1, 1),
        epsilon: float = 1e-8,
        reset_segment_interval: int = 1000,  # noqa: ARG002  see the class
        sort_interval: int = 1000000,  # noqa: ARG002  see the class
        variant: str = "proportional",
        *,
        path: Path = None,
    ) -> None:
        """See the class."""
        if variant not in _VARIANTS:
            raise SchemaError(f"variant: expected one of {[*_VARIANTS]}, found {variant!r}")
        how = {
            "alpha": alpha,
            "beta": beta,
            "betasteps": betasteps,
            "error_clip": error_clip,
            "epsilon": epsilon,
            "variant": _VARIANTS[variant],
        }
        super().__init__(capacity, how, path=path)
