"""Runs of steps as an index of transitions."""

import numpy as np
import pytest

from mmreplay.errors import SchemaError
from mmreplay.sampling.selection import Selection
from tests.support.lane_history import History, loaded


def ids(*values):
    return np.array(values, np.int64)


def rows(*lengths, capacity=None):
    return loaded([History.of(*lengths, capacity=capacity)])


def test_what_was_never_a_transition_of_an_index_is_refused():
    selection = Selection(ids(0, 28), ids(2, 1), [1], ["a"])
    assert selection.now(rows(29)).n_transitions == 3
    with pytest.raises(SchemaError, match="but 28 does not exist any more"):
        selection.now(rows(28))
