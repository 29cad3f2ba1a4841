"""The replay buffers of nnabla-rl on an mmreplay store: the same names, arguments and results.

``from mmreplay.compat import nnabla_rl`` in the place of ``nnabla_rl.replay_buffers``. Each class
takes one more keyword, ``path=``, and is a context manager. docs/compat.md tells what differs.
"""

from mmreplay.compat.nnabla_rl.atari import MemoryEfficientAtariBuffer
from mmreplay.compat.nnabla_rl.atari_trajectories import MemoryEfficientAtariTrajectoryBuffer
from mmreplay.compat.nnabla_rl.buffers import ReplayBuffer
from mmreplay.compat.nnabla_rl.hindsight import HindsightReplayBuffer
from mmreplay.compat.nnabla_rl.prioritized import PrioritizedReplayBuffer
from mmreplay.compat.nnabla_rl.prioritized_atari import (
    ProportionalPrioritizedAtariBuffer,
    RankBasedPrioritizedAtariBuffer,
)
from mmreplay.compat.nnabla_rl.trajectories import TrajectoryReplayBuffer
from mmreplay.compat.nnabla_rl.variants import (
    DecorableReplayBuffer,
    ReplacementSamplingReplayBuffer,
)

__all__ = [
    "DecorableReplayBuffer",
    "HindsightReplayBuffer",
    "MemoryEfficientAtariBuffer",
    "MemoryEfficientAtariTrajectoryBuffer",
    "PrioritizedReplayBuffer",
    "ProportionalPrioritizedAtariBuffer",
    "RankBasedPrioritizedAtariBuffer",
    "ReplacementSamplingReplayBuffer",
    "ReplayBuffer",
    "TrajectoryReplayBuffer",
]
