"""Samplers turn an index into ids; they know nothing of storage."""

from mmreplay.samplers.distinct import distinct_ids
from mmreplay.samplers.distribution import RankDistribution
from mmreplay.samplers.epoch import epoch_ids
from mmreplay.samplers.prioritized import Prioritization
from mmreplay.samplers.ranked import RankedPriorities
from mmreplay.samplers.trajectories import TrajectorySampler
from mmreplay.samplers.uniform import uniform_ids
from mmreplay.samplers.windows import PortionSampler, Windows, WindowSampler

__all__ = [
    "PortionSampler",
    "Prioritization",
    "RankDistribution",
    "RankedPriorities",
    "TrajectorySampler",
    "WindowSampler",
    "Windows",
    "distinct_ids",
    "epoch_ids",
    "uniform_ids",
]
