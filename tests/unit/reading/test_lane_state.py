"""Whether a lane is live, crashed or closed, and what a store of several is."""

import pytest

from mmreplay.reading.lane_state import lane_state, store_state
from mmreplay.system.locks import DirectoryLock


def test_a_lane_is_live_as_long_as_a_writer_holds_it(tmp_path):
    lock = DirectoryLock(tmp_path, who=str)
    assert lane_state(tmp_path, closed=False) == "live"
    assert lane_state(tmp_path, closed=True) == "live"
    lock.release()
    assert lane_state(tmp_path, closed=False) == "crashed"
    assert lane_state(tmp_path, closed=True) == "closed"


@pytest.mark.parametrize(
    ("lanes", "store"),
    [
        (["closed", "live", "crashed"], "live"),
        (["closed", "crashed"], "crashed"),
        (["closed", "closed"], "closed"),
        ([], "unknown"),
    ],
)
def test_a_store_is_live_if_any_lane_is_and_crashed_if_any_is_left_open(lanes, store):
    assert store_state(lanes) == store
