"""Runs of steps as an index of transitions, and the order of keys that they lie in."""

import pickle

import numpy as np
import pytest

from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.selection import Keys, Selection
from tests.support.lane_history import History, loaded


def ids(*values):
    return np.array(values, np.int64)


def rows(*lengths, capacity=None):
    return loaded([History.of(*lengths, capacity=capacity)])


def test_keys_put_the_steps_of_an_environment_side_by_side():
    keys = Keys([1, 3])
    entries = np.arange(12) + (1 << LANE_SHIFT)
    found = keys.of(entries)
    assert keys.ids(found).tolist() == entries.tolist()
    assert np.diff(found.reshape(4, 3), axis=0).tolist() == [[1] * 3] * 3
    assert keys.rows(found).tolist() == np.repeat(np.arange(4), 3).tolist()
    assert keys.of(ids(0, 7)).tolist() == [0, 7]
    assert (np.sort(found) >> LANE_SHIFT == 1).all()


def test_what_was_never_a_transition_of_an_index_is_refused():
    selection = Selection(ids(0, 28), ids(2, 1), [1], ["a"])
    assert selection.now(rows(29)).n_transitions == 3
    with pytest.raises(SchemaError, match="but 28 does not exist any more"):
        selection.now(rows(28))


def test_a_pickle_holds_the_runs_and_not_the_index():
    selection = Selection(ids(0, 6), ids(2, 3), [1], ["a"])
    selection.now(rows(5, 10, 14))
    copy = pickle.loads(pickle.dumps(selection))
    assert copy.digest == selection.digest != selection.taken(np.array([True, False])).digest
    assert copy.uuids == ("a",)
    assert copy._now is None
