"""Draws of transitions: uniform with or without replacement, and in groups that lie together.

Invariant: each transition of the index is equally likely, and no draw is rejected. The same random
numbers give the same transitions of the same index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Transitions
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Ids
from mmreplay.sampling.epoch import Blocks


def check_not_empty(index: Transitions) -> int:
    """How many transitions there are; EmptyBufferError if there is none."""
    count = index.n_transitions
    if not count:
        raise EmptyBufferError("there is no transition yet; a transition needs a reset and a step")
    return count


def uniform_ids(index: Transitions, draws: npt.NDArray[np.float64]) -> Ids:
    """One transition for each draw in [0, 1): int64 (B,); raises as `check_not_empty`."""
    # The product never rounds up to the count, and each transition's share is right to one part in
    # 2^53. `Generator.integers` costs three times as much.
    return index.at((draws * check_not_empty(index)).astype(np.int64))


def distinct_ids(index: Transitions, size: int, seed: int) -> Ids:
    """Ids of distinct transitions, in any order: int64 (size,); SchemaError if there are fewer."""
    return index.at(distinct_ranks(check_not_empty(index), size, seed, "transitions"))


def distinct_ranks(total: int, size: int, seed: int, what: str) -> Ids:
    """Distinct numbers in [0, total): int64 (size,); SchemaError if there are fewer."""
    if size > total:
        raise SchemaError(
            f"expected at most the {total:,} {what} there are, as each is drawn once; found "
            f"{size:,}; draw fewer, or with replacement"
        )
    # A generator per draw: the total is known only when the store is read, and may differ when it
    # is read again.
    return np.random.default_rng(seed).choice(total, size, replace=False)


def grouped_ids(index: Transitions, blocks: Blocks, n_groups: int, group: int, seed: int) -> Ids:
    """Ids of `n_groups` groups of one block each, one after the other: (n_groups * group,).

    A block is drawn in proportion to its transitions; those of a group are distinct unless its
    block has fewer. Raises as `check_not_empty`.
    """
    random = np.random.default_rng(seed)
    members = blocks.members(blocks.keys(uniform_ids(index, random.random(n_groups))))
    absent = index.invalid(members.reshape(-1)).reshape(members.shape)
    order = random.random(members.shape)
    order[absent] = 1  # behind all others
    shuffled = order.argsort(1, kind="stable")
    # If there are too few, they repeat from the first on, which is random.
    turns = np.arange(group) % (~absent).sum(1)[:, None]
    chosen = np.take_along_axis(shuffled, turns, 1)
    return np.take_along_axis(members, chosen, 1).reshape(-1)
