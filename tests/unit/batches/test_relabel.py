"""Relabelled samples are what a store of the same episode, recorded with that goal, would give."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import Field
from mmreplay.batches.relabel import STRATEGIES
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.checks import check_same
from tests.support.oracle.layout import Episode, Layout
from tests.support.oracle.model import LANE_SHIFT, LaneModel, Model
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import episodes

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)


def reward(achieved, desired, info):
    """Of three parts, so that it tells which goals it was given, and the extras of which step."""
    size = len(achieved)
    far = np.abs(achieved.astype(float) - desired).reshape(size, -1).sum(1)
    return achieved.reshape(size, -1)[:, 0] / 3 - far / 7 + info["bonus"]


def success(achieved, desired, info):
    return (achieved == desired).reshape(len(achieved), -1).all(1) & (info["bonus"] != 77)


def layout_of(goal, codec="raw", **changes):
    shard = None if codec == "raw" else 6
    frame = {
        "observation": Field((3,), "uint8", codec, 2, shard),
        "achieved_goal": Field(goal, "int16", codec, 3, shard),
        "desired_goal": Field(goal, "int16", codec, 2, shard),
    }
    return Layout(frame, Field((2,), "float32"), {"bonus": Field((), "int8")}, **changes)


def opened(path, layout, **settings):
    """A buffer of a new store, in which each of many environments has a lane."""
    return layout.create_buffer(path, mmreplay.ReplayBuffer, **settings)


# ---------------------------------------------------------------- the oracle


def span_of(lane, row):
    return next(span for span in lane.spans() if span[0] <= row < span[1])


def goal_rows(lane, row, strategy):
    """The rows of a lane that a transition's goal may come from."""
    start, stop = span_of(lane, row)
    oldest = lane.transitions()[0]
    return {
        "future": range(row + 1, stop),
        "final": range(stop - 1, stop),
        "episode": range(max(start, oldest), stop),
    }[strategy]


def recorded_with(lane, span, goal, terminal):
    """The episode alone, as it would have been recorded with another goal."""
    out = LaneModel(lane.schema)
    out.rows = [dataclasses.replace(row) for row in lane.rows[span[0] : span[1]]]
    for row in out.rows:
        row.frame = {**row.frame, "desired_goal": goal}
    before = out.rows[:-1]
    steps = (
        np.stack([row.frame["achieved_goal"] for row in out.rows[1:]]),
        np.stack([goal] * len(before)),
        {name: np.stack([row.extras[name] for row in before]) for name in lane.schema.extras},
    )
    rewards = reward(*steps)
    ends = None if terminal is None else terminal(*steps)
    for number, row in enumerate(before):
        row.reward = np.array(rewards[number], lane.schema.reward_dtype)
        if ends is not None:
            row.non_terminal = int(not ends[number])
    return out


def check_relabelled(batch, model, strategy, terminal, how, *, live):
    """Every sample of a batch against an episode that was recorded with its goal."""
    for place, (one, goal) in enumerate(
        zip(batch.id.tolist(), batch.extras["hindsight"].tolist(), strict=True)
    ):
        number, row = divmod(one, 1 << LANE_SHIFT)
        lane = model.lanes[number]
        span = span_of(lane, row)
        episode = LaneModel(lane.schema)
        episode.rows = lane.rows[span[0] : span[1]]
        if goal >= 0:
            assert goal >> LANE_SHIFT == number
            goal_row = goal & ((1 << LANE_SHIFT) - 1)
            assert goal_row in goal_rows(lane, row, strategy)
            achieved = lane.rows[goal_row].frame["achieved_goal"]
            episode = recorded_with(lane, span, achieved, terminal)
        alone = Model(lane.schema)
        alone.lanes = [episode]
        is_newest = span[1] == len(lane.rows)
        expected = alone.batch([row - span[0]], **how, live=live and is_newest)
        if terminal is not None and goal >= 0:  # ends the episode in its middle, too
            expected.terminated[:] = ~expected.non_terminal
        for name in ("reward", "discount", "non_terminal", "action", "weight"):
            check_same(getattr(batch, name)[place], getattr(expected, name)[0], name)
        for name in ("terminated", "truncated"):
            check_same(getattr(batch, name)[place], getattr(expected, name)[0], name)
        for name in ("observation", "next_observation"):
            for key, frames in getattr(expected, name).items():
                check_same(getattr(batch, name)[key][place], frames[0], f"{name}[{key}]")
        check_same(batch.extras["bonus"][place], expected.extras["bonus"][0], "bonus")


def check_samples(data, model, strategy, terminal, *, probability=0.7):
    how = dataclasses.asdict(data.settings)
    hindsight = mmreplay.Hindsight(data, reward, strategy, probability, terminal=terminal)
    size, live = by_effort(10, 60, 60), data.store.live.readers[0].is_live
    batch = hindsight.sample(size)
    check_relabelled(batch, model, strategy, terminal, how, live=live)
    again = hindsight.sample(size, out=batch)
    assert again is batch
    check_relabelled(batch, model, strategy, terminal, how, live=live)
    ids = np.concatenate((model.ids()[:5], model.ids()[-5:]))
    every = hindsight.relabel(ids)
    assert every.id.tolist() == ids.tolist()
    check_relabelled(every, model, strategy, terminal, how, live=live)


GOALS = [(2,), (), (2, 1, 2)]
SETTINGS = st.fixed_dictionaries(
    {
        "stack": st.sampled_from([None, 1, 2, 4]),
        "n_step": st.sampled_from([1, 2, 3, 9]),
        "gamma": st.sampled_from([0.9, 1.0, 0.0]),
        "padding": st.sampled_from(["reset", "zero"]),
        "stack_axis": st.sampled_from([0, -1]),
    }
)


@settings(max_examples=by_effort(5, 30, 500))
@given(st.data())
def test_a_relabelled_sample_equals_one_of_the_episode_recorded_with_that_goal(data):
    layout = layout_of(
        data.draw(st.sampled_from(GOALS)),
        data.draw(st.sampled_from(["raw", "lz4"])),
        lanes=data.draw(st.sampled_from([None, 1, 3])),
        capacity=data.draw(st.sampled_from([None, 3, 17, 40])),
        reward_dtype=data.draw(st.sampled_from(["float32", "float64"])),
    )
    n_lanes = layout.lanes or 1
    script = data.draw(
        st.lists(st.tuples(st.integers(0, n_lanes - 1), episodes(60)), min_size=1, max_size=6)
    )
    how, strategy = data.draw(SETTINGS), data.draw(st.sampled_from(STRATEGIES))
    terminal = data.draw(st.sampled_from([None, success]))
    model = layout.model()
    with scratch_directory() as folder:
        path = folder / "s.zarr"
        with opened(path, layout, **how) as buffer:
            pair = Pair(buffer, model, np.random.default_rng(len(script)))
            for lane, episode in script:
                pair.episode(episode, lane)  # the last one may still be running
            if len(model):
                check_samples(buffer, model, strategy, terminal)
        if len(model):
            with mmreplay.load(path, **how) as dataset:
                check_samples(dataset, model, strategy, terminal)


def test_long_episodes_partly_evicted_and_running(tmp_path, quick_disk):
    layout = layout_of((), capacity=150, lanes=2)
    model = layout.model()
    path = tmp_path / "s.zarr"
    with opened(path, layout) as buffer:
        writer = buffer.writer
        pair = Pair(writer, model, np.random.default_rng(0))
        lost = frozenset({100, 180})
        pair.episode(Episode(200, "terminated", lost), 0)
        pair.episode(Episode(30, "truncated"), 0)
        pair.episode(Episode(190, "interrupted", lost), 1)
        writer.flush()
        with mmreplay.load(path, 4, 5, padding="zero") as data:
            assert len(data) == 150
            assert data.store.lanes[1].base > 0
            for strategy, terminal in itertools.product(STRATEGIES, [None, success]):
                check_samples(data, model, strategy, terminal)


# ---------------------------------------------------------------- which goals come


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_the_rows_of_the_strategy(tmp_path, quick_disk, strategy):
    layout = layout_of((), capacity=100, lanes=2)
    model = layout.model()
    n_draws = 60_000
    with opened(tmp_path / "s.zarr", layout, stack=None, seed=3) as buffer:
        pair = Pair(buffer, model, np.random.default_rng(0))
        for length, end in ((1, "truncated"), (4, "terminated"), (12, "interrupted"), (7, "both")):
            pair.episode(Episode(length, end), 0)
        pair.episode(Episode(20, "truncated"), 1)
        pair.episode(Episode(45, "interrupted"), 1)
        hindsight = mmreplay.Hindsight(buffer, reward, strategy, 0.6)
        batches = [hindsight.sample(20_000) for _ in range(n_draws // 20_000)]
    ids = np.concatenate([batch.id for batch in batches])
    goals = np.concatenate([batch.extras["hindsight"] for batch in batches])
    assert abs((goals >= 0).mean() - 0.6) < 5 * (0.24 / n_draws) ** 0.5
    chi_squared, freedom = 0.0, 0
    for one in model.ids().tolist():
        number, row = divmod(one, 1 << LANE_SHIFT)
        expected = [number << LANE_SHIFT | r for r in goal_rows(model.lanes[number], row, strategy)]
        found = goals[(ids == one) & (goals >= 0)]
        assert np.isin(found, expected).all()
        counts = (found[:, None] == np.array(expected)).sum(0)
        share = found.size / len(expected)
        chi_squared += float(((counts - share) ** 2 / share).sum())
        freedom += len(expected) - 1
    # Five standard deviations either way: neither unfair nor fairer than chance.
    assert abs(chi_squared - freedom) <= 5 * (2 * freedom) ** 0.5


def test_a_goal_of_the_final_observation_comes_as_often_as_any_other(tmp_path):
    layout = layout_of(())
    with mmreplay.create(tmp_path / "s.zarr", **layout.create_arguments(), flush_s=0) as writer:
        Pair(writer, layout.model(), np.random.default_rng(0)).episode(Episode(2, "truncated"))
    with mmreplay.load(tmp_path / "s.zarr", stack=None) as data:
        goals = mmreplay.Hindsight(data, reward, "future", 1).relabel([0] * 4000).extras
    assert np.bincount(goals["hindsight"]).tolist()[0] == 0
    assert abs(np.bincount(goals["hindsight"])[2] - 2000) < 5 * 1000**0.5
