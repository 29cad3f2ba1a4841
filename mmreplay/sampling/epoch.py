"""Epochs: every transition once, divided over the ranks of a distributed run.

Invariant: over all ranks, an epoch holds each transition exactly once; the order depends on the
seed and the number of the epoch alone, so that all ranks agree on it.
"""

from __future__ import annotations

import numpy as np

from mmreplay.ids import Ids


def epoch_ids(ids: Ids, *, seed: int, epoch: int, shuffle: bool, rank: int, world_size: int) -> Ids:
    """Of all transitions' ids, those of one epoch for one rank: every `world_size`-th in order."""
    if shuffle:
        ids = np.random.default_rng([seed, epoch]).permutation(ids)
    return ids[rank::world_size]
