"""`buffer`: what a learner samples from, over the live store of a run on its machine.

Invariant: it is the `Dataset` that `load` returns; only the limiter lets `sample` wait, and counts.
"""

from __future__ import annotations

import os
from typing import Any

from mmreplay.arguments import true_or_false, whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.windows import FieldWindows, WindowBatch
from mmreplay.datasets.dataset import Dataset, Seed
from mmreplay.datasets.load import load
from mmreplay.distributed.limiter import MOST_RANKS, Limiter
from mmreplay.errors import UnsupportedError
from mmreplay.sampling.draws import Windows


class RunBuffer(Dataset):
    """The `Dataset` of a run's store; made by `buffer`.

    `sample`, `sample_sequences` and `sample_windows` wait until the run's `min_size` and
    `samples_per_insert` allow that many items more; epochs are not limited.
    """

    def __init__(
        self, data: Dataset, seed: Seed, prefetch: int, limiter: Limiter, rank: int
    ) -> None:
        super().__init__(data.store, data.settings, seed, prefetch)
        self.limiter, self._rank = limiter, rank

    def _sample(self, size: int, out: Batch | None, replace: bool, group: int | None) -> Batch:
        self.limiter.wait(size)
        batch = super()._sample(size, out, replace, group)
        self.limiter.sample(size, self._rank)
        return batch

    def _sample_sequences(
        self, size: int, windows: Windows, out: SequenceBatch | None
    ) -> SequenceBatch:
        self.limiter.wait(size)
        batch = super()._sample_sequences(size, windows, out)
        self.limiter.sample(size, self._rank)
        return batch

    def _sample_windows(
        self, size: int, fields: FieldWindows, out: WindowBatch | None
    ) -> WindowBatch:
        self.limiter.wait(size)
        batch = super()._sample_windows(size, fields, out)
        self.limiter.sample(size, self._rank)
        return batch


def buffer(
    path: str | os.PathLike[str], *, rank: int = 0, prioritized: bool = False, **settings: Any
) -> RunBuffer:
    """Open the store of a run for training, in any process of the receiver's machine.

    Args:
        path: the store's.
        rank: the number of this learner among those of the machine, 0 to 255: each counts its own
            samples. Give each another seed, such as ``(seed, rank)``.
        prioritized: not yet.
        settings: stack, n_step, gamma, seed, prefetch, …, as for `load`.

    Raises:
        StoreNotFoundError: no run has written this store, or there is none.
        UnsupportedError: `prioritized`.
        SchemaError: as `load`.
    """
    rank = whole_number("rank", rank, 0, MOST_RANKS - 1)
    if true_or_false("prioritized", prioritized):
        raise UnsupportedError(
            "prioritized: expected False: priorities belong to the process that writes the rows so "
            "far; sample uniformly, or give one process a PrioritizedReplayBuffer"
        )
    data = load(path, **settings)
    try:
        limiter = Limiter(data.store.path)
    except BaseException:
        data.close()
        raise
    seed, prefetch = settings.get("seed", 0), settings.get("prefetch", 0)
    return RunBuffer(data, seed, prefetch, limiter, rank)
