"""Relabelled samples are what a store of the same episode, recorded with that goal, would give."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import Field
from mmreplay.datasets.hindsight import STRATEGIES
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.goals import check_relabelled, goals_of
from tests.support.oracle.layout import Episode, Layout
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import episodes


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


def check_samples(data, model, strategy, terminal, *, probability=0.7):
    how = dataclasses.asdict(data.settings)
    del how["stacked"]  # no key is a gray image
    hindsight = mmreplay.Hindsight(data, reward, strategy, probability, terminal=terminal)
    checks.forget(data.store, model)
    ids = np.concatenate((model.ids()[:5], model.ids()[-5:]))
    batch = hindsight.sample(by_effort(10, 60, 60))
    for again in (False, True):
        if again:
            assert hindsight.sample(len(batch.id), out=batch) is batch
        check_relabelled(batch, model, reward, strategy, terminal, how)
    every = hindsight.relabel(ids)
    assert every.id.tolist() == ids.tolist()
    check_relabelled(every, model, reward, strategy, terminal, how)


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
        environments=data.draw(st.sampled_from([None, 1, 3])),
        capacity=data.draw(st.sampled_from([None, 3, 17, 40])),
        reward_dtype=data.draw(st.sampled_from(["float32", "float64"])),
    )
    n = layout.environments or 1
    script = data.draw(
        st.lists(st.tuples(st.integers(0, n - 1), episodes(60)), min_size=1, max_size=6)
    )
    how, strategy = data.draw(SETTINGS), data.draw(st.sampled_from(STRATEGIES))
    terminal = data.draw(st.sampled_from([None, success]))
    model = layout.model()
    with scratch_directory() as folder:
        path = folder / "s.zarr"
        with layout.create_buffer(path, mmreplay.ReplayBuffer, **how) as buffer:
            pair = Pair(buffer, model, np.random.default_rng(len(script)))
            for env, episode in script:
                pair.episode(episode, env)  # the last one may still be running
            if len(model):
                check_samples(buffer, model, strategy, terminal)
        model.end_session()
        if len(model):
            with mmreplay.load(path, **how) as dataset:
                check_samples(dataset, model, strategy, terminal)


@pytest.mark.parametrize("environments", [None, 2])
def test_long_episodes_partly_evicted_and_running(tmp_path, quick_disk, environments):
    layout = layout_of((), capacity=60, environments=environments)
    model = layout.model()
    with layout.create(tmp_path / "s.zarr") as writer:
        pair = Pair(writer, model, np.random.default_rng(0))
        lost = frozenset({40, 70})
        pair.episode(Episode(80, "terminated", lost))
        pair.episode(Episode(12, "truncated"))
        pair.episode(Episode(75, "interrupted", lost), (environments or 1) - 1)
        writer.flush()
        with mmreplay.load(tmp_path / "s.zarr", 4, 5, padding="zero") as data:
            assert 59 <= len(data) <= 60
            assert data.store.lanes[0].base > 0
            for strategy, terminal in (("future", success), ("episode", None)):
                check_samples(data, model, strategy, terminal)


# ---------------------------------------------------------------- which goals come


@pytest.mark.parametrize("environments", [None, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_those_of_the_strategy(tmp_path, quick_disk, strategy, environments):
    layout = layout_of((), capacity=100, environments=environments)
    model = layout.model()
    n_draws = 20_000
    with layout.create_buffer(
        tmp_path / "s.zarr", mmreplay.ReplayBuffer, stack=None, seed=3
    ) as buffer:
        pair = Pair(buffer, model, np.random.default_rng(0))
        for length, end in ((45, "both"), (1, "truncated"), (4, "terminated"), (12, "interrupted")):
            pair.episode(Episode(length, end))
        for length in (20, 45):
            pair.episode(Episode(length, "interrupted"), (environments or 1) - 1)
        hindsight = mmreplay.Hindsight(buffer, reward, strategy, 0.6)
        batch = hindsight.sample(n_draws)
    ids, goals = batch.id, batch.extras["hindsight"]
    assert abs((goals != -1).mean() - 0.6) < 5 * (0.24 / n_draws) ** 0.5
    chi_squared, freedom = 0.0, 0
    for one in model.ids().tolist():
        expected = goals_of(model, one, strategy)
        found = goals[(ids == one) & (goals != -1)]
        assert np.isin(found, expected).all()
        counts = (found[:, None] == np.array(expected)).sum(0)
        share = found.size / len(expected)
        chi_squared += float(((counts - share) ** 2 / share).sum())
        freedom += len(expected) - 1
    # Five standard deviations either way: neither unfair nor fairer than chance.
    assert abs(chi_squared - freedom) <= 5 * (2 * freedom) ** 0.5
