"""Samplers: every transition with the same probability, or each of them once."""

import numpy as np
import pytest

from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.epoch import epoch_ids
from mmreplay.sampling.trajectories import TrajectorySampler
from mmreplay.sampling.uniform import uniform_ids
from mmreplay.sampling.windows import PortionSampler, Windows, WindowSampler
from mmreplay.sampling.without_replacement import distinct_ids


@pytest.fixture
def index():
    """Two lanes with episodes of several lengths: 60 transitions."""
    out = Index(2)
    out.load(0, 0, 41, np.array([0, 5, 6, 20]), None)
    out.load(1, 0, 30, np.array([0, 1, 10]), 25)
    return out


def test_each_transition_is_drawn_with_the_same_probability(index):
    n_draws = 200_000
    drawn = uniform_ids(index, np.random.default_rng(0).random(n_draws))
    found, counts = np.unique(drawn, return_counts=True)
    valid = index.ids()
    assert found.tolist() == valid.tolist()
    expected = n_draws / len(valid)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    degrees = len(valid) - 1
    # Four standard deviations either way: neither unfair nor fairer than chance.
    assert abs(chi_squared - degrees) < 4 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000])
def test_each_draw_gives_one_transition_and_the_same_draws_the_same(index, size):
    draws = np.random.default_rng(1).random(size)
    drawn = uniform_ids(index, draws)
    assert (drawn.dtype, drawn.shape) == (np.dtype("int64"), (size,))
    assert not index.invalid(drawn).any()
    assert uniform_ids(index, draws).tolist() == drawn.tolist()
    assert [uniform_ids(index, draws[n : n + 1])[0] for n in range(size)] == drawn.tolist()


def test_a_single_transition_is_all_that_is_drawn():
    index = Index(3)
    index.load(1, 0, 2, np.array([0]), None)
    draws = np.random.default_rng(0).random(5)
    assert uniform_ids(index, draws).tolist() == [1 << LANE_SHIFT] * 5


def test_the_least_draw_is_the_oldest_transition_and_the_greatest_the_newest(index):
    draws = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert uniform_ids(index, draws).tolist() == [index.ids()[0], index.ids()[-1]]


def test_every_transition_has_its_stretch_of_the_draws(index):
    count = index.n_transitions
    draws = (np.arange(count) + 0.5) / count
    assert uniform_ids(index, draws).tolist() == index.ids().tolist()


def test_nothing_can_be_drawn_from_nothing():
    for head in (0, 1):
        index = Index(2)
        index.load(0, 0, head, np.arange(head), None)
        with pytest.raises(EmptyBufferError, match="a transition needs a reset and a step"):
            uniform_ids(index, np.array([0.5]))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 100])
def test_over_all_ranks_an_epoch_holds_each_transition_exactly_once(index, shuffle, world_size):
    parts = [
        epoch_ids(index.ids(), seed=3, epoch=5, shuffle=shuffle, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(np.concatenate(parts).tolist()) == index.ids().tolist()


def test_the_order_depends_on_the_seed_and_the_number_of_the_epoch_alone(index):
    def order(seed, epoch, **changes):
        given = {"shuffle": True, "rank": 0, "world_size": 1, **changes}
        return epoch_ids(index.ids(), seed=seed, epoch=epoch, **given).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    whole = order(1, 4)
    assert order(1, 4, rank=1, world_size=3) == whole[1::3]
    assert order(1, 0, shuffle=False) == order(2, 7, shuffle=False) == index.ids().tolist()


def test_an_epoch_of_nothing_is_empty():
    assert (
        epoch_ids(Index(1).ids(), seed=0, epoch=0, shuffle=True, rank=0, world_size=1).tolist()
        == []
    )


# ---------------------------------------------------------------- windows


def naive_starts(index, windows):
    """Ids of the first steps after the burn-in, by trying every step of every episode."""
    ids = index.ids()
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    out = []
    for steps in np.split(ids, breaks) if ids.size else []:
        found = set()
        for offset in range(0, len(steps), windows.stride):
            if windows.boundary == "pad":
                found.add(int(steps[offset]))
            elif offset + windows.steps <= len(steps):
                found.add(int(steps[offset + windows.burn_in]))
        if windows.boundary == "shift":
            found.add(int(steps[max(len(steps) - windows.length, 0)]))
        out += sorted(found)
    return out


WINDOWS = [
    Windows(length, burn_in, boundary, stride)
    for length, burn_in in ((1, 0), (3, 0), (4, 2), (10, 1), (1, 5))
    for boundary in ("drop", "pad", "shift")
    for stride in (1, 2, 5)
]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_every_window_of_an_index_is_found_once_and_no_other(index, windows):
    assert WindowSampler(windows).every(index).tolist() == naive_starts(index, windows)


@pytest.mark.parametrize("capacity", [None, 40, 3])
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_windows_of_an_index_that_grows_are_those_of_a_new_one(lanes, capacity):
    random = np.random.default_rng(lanes)
    index = Index(lanes)
    for lane in range(lanes):
        index.load(lane, 0, 0, np.empty(0, np.int64), capacity)
    samplers = {one: WindowSampler(one) for one in WINDOWS[::4]}
    heads = [0] * lanes
    for turn in range(200):
        lane = int(random.integers(lanes))
        grown = int(random.integers(1, 9))
        starts = heads[lane] + np.flatnonzero(random.random(grown) < 0.2)
        if not heads[lane]:
            starts = np.unique(np.append(0, starts))
        heads[lane] += grown
        index.extend(lane, 0, heads[lane], starts)
        if turn % 7 and turn < 180:  # most changes are not seen one by one
            continue
        for windows, sampler in samplers.items():
            expected = naive_starts(index, windows)
            if not expected:
                with pytest.raises(EmptyBufferError):
                    sampler.every(index)
                continue
            assert sampler.every(index).tolist() == expected, windows
            draws = (np.arange(len(expected)) + 0.5) / len(expected)
            assert sampler.draw(index, draws).tolist() == expected


def test_episodes_that_can_no_longer_be_sampled_are_not_kept():
    index = Index(1)
    index.load(0, 0, 0, np.empty(0, np.int64), 50)
    sampler = WindowSampler(Windows(2))
    for episode in range(2000):
        index.extend(0, 0, 4 * (episode + 1), np.array([4 * episode]))
        sampler.draw(index, np.array([0.5])) if episode else None
    assert len(sampler._sums._ended[0].sums) < 500


def test_a_sampler_takes_another_index_for_another():
    sampler = WindowSampler(Windows(2))
    for head in (5, 9, 5):
        index = Index(1)
        index.load(0, 0, head, np.array([0]), None)
        assert sampler.every(index).tolist() == list(range(head - 2))


def test_where_no_window_fits_the_longest_episode_is_named(index):
    with pytest.raises(EmptyBufferError, match=r"the 25 steps \(5 of burn-in and 20\).* has 20 "):
        WindowSampler(Windows(20, 5)).draw(index, np.array([0.5]))
    with pytest.raises(EmptyBufferError, match=r"no whole episode has the 21 steps.* has 20 "):
        PortionSampler(Windows(21)).draw(index, np.zeros((2, 1)))
    for sampler in (WindowSampler(Windows(2)), WindowSampler(Windows(2, 0, "pad"))):
        with pytest.raises(EmptyBufferError, match="there is no episode of a step yet"):
            sampler.draw(Index(2), np.array([0.5]))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"length": 0}, "length: expected a whole number, 1 or more; found 0"),
        ({"length": 2.0}, "length"),
        ({"length": True}, "length"),
        ({"length": None}, "length"),
        ({"burn_in": -1}, "burn_in: expected a whole number, 0 or more"),
        ({"stride": 0}, "stride"),
        ({"boundary": "keep"}, "boundary: expected 'drop', 'pad' or 'shift', found 'keep'"),
        ({"boundary": None}, "boundary"),
    ],
)
def test_a_window_out_of_its_range_is_refused(wrong, match):
    with pytest.raises(SchemaError, match=match):
        Windows(**{"length": 3} | wrong)


# ---------------------------------------------------------------- portions and whole episodes


def whole_episodes(index):
    """(first id, steps) of the episodes that begin at a reset that is still there."""
    ids = index.ids()
    out = []
    for steps in np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1):
        lane, row = divmod(int(steps[0]), 1 << LANE_SHIFT)
        if row in index.resets(lane):
            out.append((int(steps[0]), len(steps)))
    return out


def test_portions_and_trajectories_are_of_whole_episodes(index):
    assert index.window(1) == (0, 3, 30)  # the second lane's episode of 8 steps was cut into
    whole = whole_episodes(index)
    assert [steps for _, steps in whole] == [4, 13, 20, 19]
    count = len(whole)
    draws = (np.arange(count) + 0.5) / count
    drawn = TrajectorySampler().draw(index, draws)
    assert drawn.tolist() == [first for first, _ in whole]
    # Of 52 steps in episodes of 13 or more, each stands for its episode.
    draws = (np.arange(52) + 0.5) / 52
    drawn = PortionSampler(Windows(13)).draw(index, np.stack((draws, np.zeros(52))))
    first, counts = np.unique(drawn, return_counts=True)
    assert list(zip(first.tolist(), counts.tolist(), strict=True)) == whole[1:]
    newest = PortionSampler(Windows(13)).draw(index, np.stack((draws, np.full(52, 1 - 1e-9))))
    ends = {start + steps - 13 for start, steps in whole[1:]}
    assert set(newest.tolist()) == ends


def test_without_replacement_each_is_drawn_once(index):
    count = index.n_transitions
    for size in (1, 5, count):
        drawn = distinct_ids(index, size, 7)
        assert len(set(drawn.tolist())) == size
        assert not index.invalid(drawn).any()
        assert distinct_ids(index, size, 7).tolist() == drawn.tolist()
    assert distinct_ids(index, 9, 1).tolist() != distinct_ids(index, 9, 2).tolist()
    with pytest.raises(SchemaError, match=f"at most the {count} transitions there are"):
        distinct_ids(index, count + 1, 0)
    with pytest.raises(EmptyBufferError, match="a transition needs a reset and a step"):
        distinct_ids(Index(2), 1, 0)
    sampler = TrajectorySampler()
    whole = [first for first, _ in whole_episodes(index)]
    assert sorted(sampler.draw_distinct(index, 4, 3).tolist()) == whole
    with pytest.raises(SchemaError, match="at most the 4 whole episodes there are"):
        sampler.draw_distinct(index, 5, 3)
    with pytest.raises(EmptyBufferError, match="there is no whole episode"):
        sampler.draw(Index(1), np.array([0.5]))
