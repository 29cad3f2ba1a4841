"""The replay buffers of nnabla-rl on an mmreplay store: the same names, arguments and results.

Each takes one more keyword, ``path=``, and is a context manager; docs/compat.md has the rest.
"""

from mmreplay.compat.nnabla_rl.prioritized import (
    PrioritizedReplayBuffer,
    ProportionalPrioritizedAtariBuffer,
    ProportionalPrioritizedReplayBuffer,
    RankBasedPrioritizedAtariBuffer,
    RankBasedPrioritizedReplayBuffer,
)
from mmreplay.compat.nnabla_rl.replay_buffer import (
    BufferIterator,
    DecorableReplayBuffer,
    HindsightReplayBuffer,
    MemoryEfficientAtariBuffer,
    ReplacementSamplingReplayBuffer,
    ReplayBuffer,
)
from mmreplay.compat.nnabla_rl.trajectories import (
    MemoryEfficientAtariTrajectoryBuffer,
    TrajectoryReplayBuffer,
)

__all__ = [
    "BufferIterator",
    "DecorableReplayBuffer",
    "HindsightReplayBuffer",
    "MemoryEfficientAtariBuffer",
    "MemoryEfficientAtariTrajectoryBuffer",
    "PrioritizedReplayBuffer",
    "ProportionalPrioritizedAtariBuffer",
    "ProportionalPrioritizedReplayBuffer",
    "RankBasedPrioritizedAtariBuffer",
    "RankBasedPrioritizedReplayBuffer",
    "ReplacementSamplingReplayBuffer",
    "ReplayBuffer",
    "TrajectoryReplayBuffer",
]
