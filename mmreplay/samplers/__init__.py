"""Samplers turn an index into ids; they know nothing of storage."""

from mmreplay.samplers.epoch import epoch_ids
from mmreplay.samplers.ranked import RankDistribution, RankedPriorities
from mmreplay.samplers.uniform import uniform_ids

__all__ = ["RankDistribution", "RankedPriorities", "epoch_ids", "uniform_ids"]
