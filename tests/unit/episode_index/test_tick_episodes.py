"""The episodes that a tick is part of, against lists of what happened to each environment."""

import numpy as np
import pytest

from mmreplay.episode_index.tick_episodes import NEVER, TickEpisodes
from mmreplay.errors import CorruptStoreError
from tests.support.oracle.ticks import TicksOnDisk
from tests.support.oracle.vector_pair import in_memory


@pytest.fixture
def model():
    pair = in_memory(5)
    pair.play(60)
    return pair.model


def test_any_move_finds_the_episodes_that_are_others(model):
    episodes = TickEpisodes(TicksOnDisk(model), "lane")
    numbers, before = model.columns("ticks")["episode"], np.full(5, -(1 << 62))
    for tick in (0, 1, 2, 2, 30, 31, 7, 59):
        changed = episodes.move(tick)
        assert changed.tolist() == np.flatnonzero(numbers[tick] != before).tolist()
        here = model.ticks[tick]
        begins = [here[env].tick if env in here else NEVER for env in range(5)]
        assert episodes.begins.tolist() == begins
        before = numbers[tick]


def test_after_an_episode_without_a_start_it_is_where_it_was(model):
    source = TicksOnDisk(model)
    episodes, starts = TickEpisodes(source, "lane"), source.starts
    newest = max(one.number for one in model.ticks[59].values())
    episodes.move(0)
    begins = episodes.begins.tolist()
    source.starts = (starts[0], newest)
    with pytest.raises(CorruptStoreError):
        episodes.move(59)
    source.starts = starts
    assert episodes.begins.tolist() == begins
    episodes.move(59)
    assert episodes.begins.tolist() != begins
