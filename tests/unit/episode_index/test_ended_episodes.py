"""The episodes of a vector lane that are over, against lists of what happened."""

import numpy as np
import pytest

from mmreplay.episode_index.ended_episodes import EndedEpisodes, steps_before
from mmreplay.errors import CorruptStoreError
from tests.support.oracle.ticks import TicksOnDisk
from tests.support.oracle.vector_pair import in_memory


def follow(table, model):
    """Show the table what is on disk now; a reset may still end an episode in the newest tick."""
    table._source = TicksOnDisk(model)
    table.follow(model.first, len(model.ticks) - 1, table._source.starts)


def compare(table, model):
    """Those that ended since the oldest tick that counts, in the order of their last cells."""
    ticks = range(model.first, len(model.ticks) - 1)
    lasts = {one.cells(model.width)[-1]: one for one in model.episodes if one.over and one.length}
    over = [one for cell, one in sorted(lasts.items()) if cell // model.width in ticks]
    numbers = np.arange(table.first_from(model.first), table.stop)
    firsts, steps = table.episodes(numbers)
    assert firsts.tolist() == [one.cells(model.width)[0] for one in over]
    assert steps.tolist() == [one.length for one in over]
    assert table.lasts(numbers).tolist() == [one.tick + one.length - 1 for one in over]
    starts = np.array([one.number for one in over], np.int64)
    assert table.numbers(starts).tolist() == numbers.tolist()
    running = np.array([one.number for one in model.running.values()], np.int64)
    assert table.numbers(running).tolist() == [-1] * len(running)


def test_each_is_there_once_and_those_that_went_are_forgotten():
    model = in_memory(4, 100)
    table = EndedEpisodes(TicksOnDisk(model), "lane")
    for _ in range(30):
        model.play(40, 0.5)
        model.evict()
        follow(table, model)
        compare(table, model)
    assert table.origin > 500
    assert table._lasts.size < 700
    assert table._numbers.size < 900


def test_an_episode_that_is_not_there_any_more_is_told_as_damage():
    model = in_memory(4, 100)
    table = EndedEpisodes(TicksOnDisk(model), "lane")
    for _ in range(30):
        model.play(40, 0.5)
        model.evict()
        follow(table, model)
    with pytest.raises(CorruptStoreError, match="lane: a step belongs to episode 0, which is none"):
        table.numbers(np.array([0]))
    with pytest.raises(CorruptStoreError, match="lane: an episode goes on after its end"):
        table.lasts(np.array([table.origin - 1]))


def test_an_episode_begins_no_later_than_its_steps():
    model = in_memory(2)
    model.reset([0, 1])
    model.step(truncated=[0])
    model.reset([0])
    model.step()
    source = TicksOnDisk(model)
    assert steps_before(source, np.array([0, 2]), np.array([0, 1]), "lane").tolist() == [0, 0]
    with pytest.raises(CorruptStoreError, match="start 2 says that its episode begins in tick 1"):
        steps_before(source, np.array([0, 2]), np.array([0, 0]), "lane")
    for number in (-1, 3):
        with pytest.raises(CorruptStoreError, match=f"{number} is none of the starts"):
            steps_before(source, np.array([0, number]), 1, "lane")
