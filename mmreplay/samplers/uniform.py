"""Uniform sampling with replacement.

Invariant: each transition of the index is drawn with the same probability, by one draw each; no
draw is ever rejected.
"""

from __future__ import annotations

import numpy as np

from mmreplay.columns import Ids
from mmreplay.episodes import Index
from mmreplay.errors import EmptyBufferError

__all__ = ["uniform_ids"]


def uniform_ids(index: Index, generator: np.random.Generator, size: int) -> Ids:
    """Ids of `size` transitions: int64 (size,).

    Raises:
        EmptyBufferError: there is no transition yet.
    """
    count = index.n_transitions
    if not count:
        raise EmptyBufferError(
            f"expected {size} transitions to sample from 1 or more, found none; a transition "
            f"needs a reset and a step"
        )
    # A product of doubles, which rounds to `count` for no draw below 1; each transition's share is
    # right to one part in 2^53. `Generator.integers` costs three times as much.
    return index.at((generator.random(size) * count).astype(np.int64))
