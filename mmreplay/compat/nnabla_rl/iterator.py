"""`BufferIterator`: batches that go through a buffer once per epoch.

Invariant: an epoch has each experience once, except those that fill its last batch.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from mmreplay.compat.nnabla_rl.reader import checked_count
from mmreplay.compat.nnabla_rl.replay_buffer import ReplayBuffer
from mmreplay.ids import Ids


class BufferIterator:
    """Goes through a buffer in batches; raises StopIteration at the end of each epoch.

    Args:
        buffer: an epoch has the experiences that it holds when the epoch begins.
        batch_size: B.
        shuffle: in another order each epoch, from numpy's global generator.
        repeat: fill the last batch from the next epoch, which continues from there; otherwise the
            last batch is shorter and the iterator ends.

    Raises:
        SchemaError: a batch_size that is not 1 or more.
    """

    def __init__(
        self, buffer: ReplayBuffer, batch_size: int, shuffle: bool = True, repeat: bool = True
    ) -> None:
        checked_count("batch_size", batch_size)
        self._buffer, self._batch_size = buffer, batch_size
        self._shuffle, self._repeat = shuffle, repeat
        self._is_new_epoch = False
        self._left = self._order()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Any, dict[str, Any]]:
        """The next batch, as `sample_indices` gives it.

        Raises:
            StopIteration: the previous batch was the last one of an epoch.
        """
        if self._is_new_epoch:
            self._is_new_epoch = False
            raise StopIteration
        if self._repeat and not len(self._left):
            self.reset()
        chosen = self._take(self._batch_size)
        if not len(chosen):
            raise StopIteration
        missing = self._batch_size - len(chosen)
        if self._repeat and missing:
            self.reset()
            chosen = np.concatenate((chosen, self._take(missing)))
        self._is_new_epoch = missing > 0 or not len(self._left)
        return self._buffer.sample_indices(chosen.tolist())

    next = __next__

    def is_new_epoch(self) -> bool:
        """Whether the previous batch was the last one of an epoch."""
        return self._is_new_epoch

    def reset(self) -> None:
        """Begin an epoch."""
        self._is_new_epoch = False
        self._left = self._order()

    def _order(self) -> Ids:
        count = len(self._buffer)
        # As the original, which draws from numpy's global generator.
        return np.random.permutation(count) if self._shuffle else np.arange(count)  # noqa: NPY002

    def _take(self, count: int) -> Ids:
        taken, self._left = self._left[:count], self._left[count:]
        return taken
