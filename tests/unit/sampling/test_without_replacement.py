"""Draws without replacement: nothing comes twice."""

import pytest

from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.without_replacement import distinct_ids
from tests.support.lane_history import History, loaded


def test_without_replacement_each_transition_is_drawn_once(index):
    count = index.n_transitions
    for size in (1, 5, count):
        drawn = distinct_ids(index, size, 7)
        assert len(set(drawn.tolist())) == size
        assert not index.invalid(drawn).any()
        assert distinct_ids(index, size, 7).tolist() == drawn.tolist()
    assert distinct_ids(index, 9, 1).tolist() != distinct_ids(index, 9, 2).tolist()


def test_more_than_there_are_is_refused(index):
    count = index.n_transitions
    with pytest.raises(SchemaError, match=f"at most the {count} transitions there are"):
        distinct_ids(index, count + 1, 0)
    with pytest.raises(EmptyBufferError, match="a transition needs a reset and a step"):
        distinct_ids(loaded([History(1, 0), History(1, 0)]), 1, 0)
