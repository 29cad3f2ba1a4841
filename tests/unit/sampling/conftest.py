"""An index that the tests of several samplers draw from."""

import numpy as np
import pytest

from mmreplay.episode_index import RowIndex
from mmreplay.ids import LANE_SHIFT


@pytest.fixture
def index():
    """Two lanes with episodes of several lengths: 60 transitions."""
    out = RowIndex(2)
    out.load(0, 0, 41, np.array([0, 5, 6, 20]), None)
    out.load(1, 0, 30, np.array([0, 1, 10]), 25)
    return out


@pytest.fixture
def whole_episodes(index):
    """(first id, steps) of the episodes that begin at a reset that is still there."""
    ids, out = index.ids(), []
    for steps in np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1):
        lane, row = divmod(int(steps[0]), 1 << LANE_SHIFT)
        if row in index.resets(lane):
            out.append((int(steps[0]), len(steps)))
    return out
