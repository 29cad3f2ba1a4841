"""The two sources of an index of ticks, a lane on disk and the tests' own, take the same calls."""

import inspect

import pytest

from mmreplay.episode_index import TickSource
from mmreplay.reading.lane_ticks import LaneTicks
from tests.support.oracle.ticks import TicksOnDisk

METHODS = ["counts", "ended", "ends", "episodes", "numbers", "start_envs", "start_ticks"]


def test_these_are_all_methods_of_a_source():
    found = [name for name, one in vars(TickSource).items() if inspect.isfunction(one)]
    assert sorted(name for name in found if not name.startswith("_")) == METHODS


@pytest.mark.parametrize("source", [LaneTicks, TicksOnDisk])
@pytest.mark.parametrize("name", METHODS)
def test_a_source_takes_what_an_index_gives(source, name):
    asked, given = (inspect.signature(getattr(one, name)) for one in (TickSource, source))
    assert list(given.parameters) == list(asked.parameters)
