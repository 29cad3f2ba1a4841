"""Batches that go through a buffer once an epoch.

Invariant: in an epoch each experience comes once, but for those that fill up its last batch.
"""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl


@pytest.fixture
def buffer(experiences):
    with nnabla_rl.ReplayBuffer() as made:
        made.append_all(experiences.episode_of(0, 10, "terminated"))
        yield made


def numbers(batch):
    found, info = batch
    assert info["weights"].shape == (len(found), 1)
    return [int(one[2]) for one in found]


def test_without_repeat_the_last_batch_is_shorter_and_the_iterator_ends(buffer):
    iterator = nnabla_rl.BufferIterator(buffer, 4, shuffle=False, repeat=False)
    assert [numbers(batch) for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [*iterator] == []
    iterator.reset()
    assert numbers(iterator.next()) == [0, 1, 2, 3]


def test_with_repeat_the_next_epoch_goes_on_from_the_fill(buffer):
    iterator = nnabla_rl.BufferIterator(buffer, 4, shuffle=False)
    assert [numbers(batch) for batch in iterator][-1] == [8, 9, 0, 1]
    assert [numbers(batch) for batch in iterator] == [[2, 3, 4, 5], [6, 7, 8, 9]]
    assert [numbers(batch) for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]


def test_shuffled_epochs_have_every_experience_in_orders_of_numpys_seed(buffer):
    def epochs():
        np.random.seed(3)  # noqa: NPY002  (what the original draws from)
        iterator = nnabla_rl.BufferIterator(buffer, 3, repeat=False)
        return [number for batch in iterator for number in numbers(batch)]

    assert sorted(epochs()) == [*range(10)]
    assert epochs() == epochs() != [*range(10)]
