"""Draws of groups: several transitions of one block each.

Invariant: each transition of the index is drawn equally often on average. A block is drawn as often
as its transitions are many, and gives each of them the same share of the group.
"""

from __future__ import annotations

import numpy as np

from mmreplay.episode_index import Transitions
from mmreplay.ids import Ids
from mmreplay.sampling.blocks import Blocks
from mmreplay.sampling.uniform import uniform_ids


def grouped_ids(index: Transitions, blocks: Blocks, n_groups: int, group: int, seed: int) -> Ids:
    """Ids of `n_groups` groups, one after the other: int64 (n_groups * group,).

    Those of a group are distinct, unless its block has fewer transitions. Raises EmptyBufferError
    if there is no transition yet.
    """
    # A generator of its own, as of other draws whose numbers depend on the index.
    random = np.random.default_rng(seed)
    members = blocks.members(blocks.keys(uniform_ids(index, random.random(n_groups))))
    absent = index.invalid(members.reshape(-1)).reshape(members.shape)
    order = random.random(members.shape)
    order[absent] = 1  # behind all others
    places = order.argsort(1, kind="stable")
    # If there are too few, they come again from the first on: which one that is, is random.
    turns = np.arange(group) % (~absent).sum(1)[:, None]
    chosen = np.take_along_axis(places, turns, 1)
    return np.take_along_axis(members, chosen, 1).reshape(-1)
