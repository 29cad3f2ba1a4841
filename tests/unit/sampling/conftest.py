"""An index that the tests of several samplers draw from."""

import pytest

from mmreplay.ids import LANE_SHIFT
from tests.support.lane_history import History, loaded


@pytest.fixture
def index():
    """Two lanes with episodes of several lengths: 62 transitions."""
    return loaded([History.of(4, 13, 20), History.of(8, 19, capacity=25)])


@pytest.fixture
def whole_episodes():
    """(first id, steps) of the episodes all of whose steps can be sampled."""
    return [(0, 4), (4, 13), (17, 20), ((1 << LANE_SHIFT) + 8, 19)]
