"""The index of a vector lane, against lists of what happened to each environment."""

import numpy as np
import pytest

from mmreplay.episode_index import TickIndex
from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.uniform import uniform_ids
from tests.support.even_draws import even_draws
from tests.support.oracle.ticks import TicksOnDisk
from tests.support.oracle.vector_pair import in_memory

PART = 1 << LANE_SHIFT


class Source:
    """What is on disk now, replaced as a whole where the model has grown."""

    def __init__(self, model):
        self.width = model.width
        self.now = TicksOnDisk(model)

    def __getattr__(self, name):
        return getattr(self.now, name)


def bounds(model, source):
    return model.base, len(model.ticks), source.now.starts


def loaded(model):
    source = Source(model)
    index = TickIndex(source, "lane")
    base, head, starts = bounds(model, source)
    index.load(base, head, model.capacity, starts)
    return index, source


def grown(index, source, model):
    source.now = TicksOnDisk(model)
    index.extend(*bounds(model, source))


def compare(index, model, random):
    cells = model.ids().tolist()
    head = len(model.ticks)
    assert index.n_transitions == len(cells)
    assert index.ids().tolist() == cells
    assert index.window(0) == tuple(n * model.width for n in (model.base, model.first, head))
    start, stop = index.extent(0)
    assert (start, stop) == (model.first * model.width, head * model.width)
    assert (np.flatnonzero(index.present(0, start, stop)) + start).tolist() == cells
    probes = np.array(
        [-1, -(1 << 45), 1 << 60, PART, PART + 3, *range(max(start - 9, 0), stop + 9)]
    )
    valid = set(cells)
    assert index.invalid(probes).tolist() == [one not in valid for one in probes.tolist()]
    ranks = random.permutation(len(cells))
    assert sorted(index.at(ranks).tolist()) == cells
    assert index.at(ranks[:5]).tolist() == index.at(ranks).tolist()[:5]
    low = model.first * model.width
    expected = {
        cell: (
            one.number + PART,
            at,
            len([earlier for earlier in one.cells(model.width)[:at] if earlier >= low]),
            one.length - at,
        )
        for one in model.episodes
        for at, cell in enumerate(one.cells(model.width))
    }
    found = np.array(cells, np.int64)
    span = index.span(found)
    columns = (span.steps.starts, span.back, span.oldest, span.left)
    assert list(zip(*(x.tolist() for x in columns), strict=True)) == [expected[c] for c in cells]
    for ahead in (1, 2, 5):
        steps = index.steps(found, ahead, back=False)
        assert (steps.stride, steps.lag) == (model.width, 1)
        assert steps.starts.tolist() == span.steps.starts.tolist()
        assert steps.back.tolist() == span.back.tolist()
        if ahead == 1:
            assert steps.left is None
        else:
            assert steps.left.tolist() == np.minimum(span.left, ahead).tolist()
    compare_episodes(index, model)


def compare_episodes(index, model):
    """Each episode stands once, with the steps that it has left; ended ones are found by number."""
    found = index.episodes(0)
    numbers = np.setdiff1d(np.arange(found.start, found.stop), found.cut)
    firsts, steps = index.ended(0, numbers)
    here = list(zip(firsts.tolist(), steps.tolist(), [True] * len(firsts), strict=True))
    there = found.steps.nonzero()[0]
    columns = (found.firsts(there), found.steps[there], found.whole()[there])
    listed = list(zip(*(x.tolist() for x in columns), strict=True))
    assert found.steps[found.place] == 0
    assert found.stride == model.width
    assert sorted(here + listed) == sorted(
        (cells[0], len(cells), len(cells) == one.length) for one, cells in model.kept()
    )
    if found.start > found.known:  # those below ended before first
        assert index.ended(0, np.array([found.start - 1]))[1].min() > 0


@pytest.mark.parametrize("seed", range(24))
def test_a_cell_is_a_transition_if_and_only_if_it_is_of_an_episode(seed):
    random = np.random.default_rng(seed)
    width = int(random.choice([1, 2, 3, 8]))
    capacity = None if random.random() < 0.3 else int(random.integers(width, 60))
    model = in_memory(width, capacity, seed)
    rate = float(random.choice([0, 0.05, 0.3, 0.9]))
    if random.random() < 0.7:
        model.play(int(random.choice([1, 30, 200])), rate)
        model.evict(random.random())
    index, source = loaded(model)
    compare(index, model, random)
    for _ in range(8):
        model.play(int(random.choice([0, 1, 1, 2, 40])), rate)
        if random.random() < 0.5:
            model.evict(random.random())
        grown(index, source, model)
        if random.random() < 0.6:  # most changes are not seen one by one
            compare(index, model, random)
    compare(index, model, random)
    again, _ = loaded(model)
    compare(again, model, random)


def test_an_episode_that_runs_on_while_hundreds_end_is_known_as_one_that_runs():
    model = in_memory(4, 100)
    index, source = loaded(model)
    long = {0}
    for tick in range(500):
        model.reset(set(range(4)) - model.running.keys())
        if tick == 250:
            long = {1}  # the first long one ends, and its start and all up to there may go
        model.step(truncated=set(range(4)) - long)
        if tick % 7 == 0:
            model.evict()
            grown(index, source, model)
            compare_episodes(index, model)
    grown(index, source, model)
    compare(index, model, np.random.default_rng(0))
    assert index._ended._low > 500


def test_a_larger_capacity_brings_back_only_what_has_its_whole_context():
    model = in_memory(2, 20)
    model.play(300, 0.01)
    model.evict()
    assert model.base > 100
    model.model.capacity = None
    index, source = loaded(model)
    compare(index, model, np.random.default_rng(0))
    # The oldest frame of the largest stack is that of the oldest tick that is there.
    steps = index.steps(index.ids(), 1, back=True)
    places = steps.frames(np.arange(-64, 2))
    ticks = places[places < PART] // 2
    assert ticks.min() >= model.base
    source.now.columns["frames"].take(places)


def test_a_step_that_ended_by_a_reset_after_it_was_seen_is_the_last_of_its_episode():
    model = in_memory(2)
    model.reset([0, 1])
    model.step()
    index, source = loaded(model)
    compare(index, model, np.random.default_rng(0))
    model.reset([0])  # sets `ends` in the newest tick, which was read before
    grown(index, source, model)
    model.step()
    grown(index, source, model)
    compare(index, model, np.random.default_rng(0))
    assert index.steps(np.array([0, 1]), 3, back=True).left.tolist() == [1, 2]


def test_draws_are_uniform_over_transitions_where_many_cells_are_absent():
    random = np.random.default_rng(1)
    model = in_memory(5, 150)
    model.play(200, 0.4)
    model.evict()
    index, _ = loaded(model)
    cells = index.ids()
    assert len(cells) < 5 * (len(model.ticks) - model.first)  # some are absent
    drawn = uniform_ids(index, even_draws(7 * len(cells)))
    assert np.unique(drawn, return_counts=True)[1].tolist() == [7] * len(cells)
    counts = np.bincount(cells.searchsorted(uniform_ids(index, random.random(100 * len(cells)))))
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert abs(chi_square - len(cells)) < 4 * np.sqrt(2 * len(cells))


def test_ticks_of_more_transitions_than_the_capacity_give_none_and_smaller_ones_after_them_do():
    model = in_memory(4)
    model.reset([0, 1, 2, 3])
    model.step()
    model.step(truncated=[0, 1, 2])
    source = Source(model)
    index = TickIndex(source, "lane")
    index.load(0, 2, 3, source.now.starts)
    assert (index.n_transitions, index.ids().tolist()) == (0, [])
    assert index.at(np.empty(0, np.int64)).tolist() == []
    model.step()
    grown(index, source, model)
    assert index.n_transitions == 1
    assert index.ids().tolist() == index.at(np.array([0])).tolist() == [11]


def test_nothing_can_be_sampled_of_a_lane_without_ticks():
    index, _ = loaded(in_memory(3))
    assert (index.n_transitions, index.ids().tolist(), index.window(0)) == (0, [], (0, 0, 0))
    assert index.at(np.empty(0, np.int64)).tolist() == []
    assert index.invalid(np.array([0, -1])).tolist() == [True, True]
    compare_episodes(index, in_memory(3))


# ---------------------------------------------------------------- damage


@pytest.fixture
def damaged():
    """An index of a lane of 4 environments, and what is on disk."""
    model = in_memory(4)
    model.play(60, 0.2)
    index, source = loaded(model)
    return index, source.now


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("episode", lambda old: np.where(old >= 0, 1 << 60, old)),
        ("episode", lambda old: np.where(old >= 0, 5000, old)),
        ("episode", lambda old: np.full_like(old, -1)),
        ("episode", lambda old: np.full_like(old, -100)),
        ("episode", lambda old: np.full_like(old, np.iinfo(np.int64).min)),
        ("tick", lambda old: old + 1000),
        ("tick", lambda old: np.full_like(old, -3)),
        ("tick", lambda old: np.full_like(old, np.iinfo(np.int64).max)),
        ("count", lambda old: 10 * old),
        ("count", np.zeros_like),
        ("count", lambda old: -old),
        ("count", lambda old: old[::-1].copy()),
        ("flags", np.ones_like),
    ],
)
def test_damage_is_told_and_nothing_outside_of_the_columns_is_read(damaged, name, change):
    index, disk = damaged
    cells = index.ids()
    array = getattr(disk, name)
    array[...] = change(array)
    told = 0
    calls = [
        lambda: index.load(0, len(disk.count), 50, disk.starts),
        lambda: index.at(np.arange(index.n_transitions)),
        lambda: index.steps(cells, 3, back=True),
        lambda: index.span(cells),
        lambda: index.episodes(0),
        index.ids,
    ]
    for call in calls:
        try:
            call()
        except CorruptStoreError as error:
            assert str(error).startswith("lane: ")
            assert "mmreplay verify" in str(error)
            told += 1
    assert told


@pytest.mark.parametrize("last", [-1, 60 * 4 + 1, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
def test_a_count_that_no_ticks_can_have_is_told_before_it_is_taken(damaged, last):
    index, disk = damaged
    version = index.version
    disk.count[-1] = last
    with pytest.raises(CorruptStoreError, match="disagree on how many transitions"):
        index.load(0, len(disk.count), None, disk.starts)
    assert index.version == version
