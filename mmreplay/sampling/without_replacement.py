"""Draws without replacement.

Invariant: every choice of as many is drawn with the same probability, in every order; nothing is
drawn and thrown away. The cost depends on how many are drawn, as long as they are few beside those
that there are.
"""

from __future__ import annotations

import numpy as np

from mmreplay.episode_index import Transitions
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids


def distinct_ranks(total: int, size: int, seed: int) -> Ids:
    """Distinct numbers, each 0 or more and below `total`, which is `size` or more: int64 (n,)."""
    # A generator of its own: the total is known only when the store is read, and may differ when it
    # is read again.
    return np.random.default_rng(seed).choice(total, size, replace=False)


def distinct_ids(index: Transitions, size: int, seed: int) -> Ids:
    """Ids of distinct transitions, in any order: int64 (size,).

    Raises EmptyBufferError if there is no transition yet, SchemaError if there are fewer than
    `size`.
    """
    total = index.n_transitions
    if not total:
        raise EmptyBufferError(
            "there is no transition to sample yet; a transition needs a reset and a step"
        )
    if size > total:
        raise SchemaError(
            f"expected at most the {total:,} transitions there are, as each is drawn once; found "
            f"{size:,}; ask for fewer, or draw with replacement"
        )
    return index.at(distinct_ranks(total, size, seed))
