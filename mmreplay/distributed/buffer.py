"""`buffer`: what a learner samples from, over the live store of a run on its machine.

Invariant: it is the `Dataset` that `load` returns; only the limiter lets `sample` wait, and counts.
"""

from __future__ import annotations

import os
from typing import Any

from mmreplay.arguments import whole_number
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.load import load
from mmreplay.distributed.limiter import MOST_RANKS, Limiter


def buffer(path: str | os.PathLike[str], *, rank: int = 0, **settings: Any) -> Dataset:
    """Open the store of a run for training, in any process of the receiver's machine.

    `sample`, `sample_sequences`, `sample_windows` and `sample_portions` wait until the run's
    `min_size` and `samples_per_insert` allow that many items more; epochs are not limited.

    Args:
        path: the store's.
        rank: the number of this learner among those of the machine, 0 to 255: each counts its own
            samples. Give each another seed, such as ``(seed, rank)``.
        settings: stack, n_step, gamma, seed, prefetch, prioritized, …, as for `load`.

    Raises:
        StoreNotFoundError: no run has written this store, or there is none.
        SchemaError, LockedError: as `load`.
    """
    rank = whole_number("rank", rank, 0, MOST_RANKS - 1)
    data = load(path, **settings)
    try:
        data.limiter = Limiter(data.store.path, rank)
    except BaseException:
        data.close()
        raise
    return data
