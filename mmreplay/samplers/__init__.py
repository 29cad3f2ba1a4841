"""Samplers turn an index into ids; they know nothing of storage."""

from mmreplay.samplers.epoch import epoch_ids
from mmreplay.samplers.uniform import uniform_ids

__all__ = ["epoch_ids", "uniform_ids"]
