"""What a buffer must give that reads ahead, by the words of docs/semantics.md.

Invariant: a batch is that of its draw, which an earlier call made; if any of it was evicted since,
it is the one that the same numbers draw now.
"""

import dataclasses

import numpy as np
import pytest

from mmreplay import EmptyBufferError
from tests.support.oracle.checks import check_same


def check_equal(found, expected):
    """Two batches of either kind are the same, byte for byte."""
    for field in dataclasses.fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, (np.ndarray, dict)):
            check_same(one, other, field.name)
        elif one != other:
            raise AssertionError(f"{field.name}: expected {other}, found {one}")


class DrawnAhead:
    """Batches of uniform draws, to be expected of a buffer that gave none yet.

    `batch(ids)` is what is expected of these as things are now, `sample()` what the buffer gives.
    """

    def __init__(self, buffer, seed, size, ids, batch, sample=None, check=check_equal):
        self._buffer, self._size, self._ids, self._batch = buffer, size, ids, batch
        self._sample = sample or (lambda: buffer.sample(size))
        self._check = check
        self._numbers = np.random.default_rng(seed)
        self._drawn = []

    def check_next(self):
        """The next batch is as expected, or an error if there is nothing to draw."""
        while len(self._drawn) <= self._buffer.prefetch:
            draws = self._numbers.random(self._size)
            self._drawn.append((draws, self._of(draws)))
        draws, batch = self._drawn.pop(0)
        if batch is None or not np.isin(batch.id, self._ids()).all():
            batch = self._of(draws)
        if batch is None:
            with pytest.raises(EmptyBufferError):
                self._sample()
        else:
            self._check(self._sample(), batch)

    def forget(self):
        """Expect the next batch to be drawn when it is asked for, from where the buffer stands."""
        self._drawn.clear()
        self._numbers.bit_generator.state = self._buffer.generator.bit_generator.state

    def _of(self, draws):
        ids = self._ids()
        return self._batch(ids[(draws * len(ids)).astype(np.int64)]) if len(ids) else None
