"""Hindsight around datasets and buffers: what it draws, what it refuses, what it leaves alone."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, Hindsight, SchemaError
from mmreplay.batches.transitions import TransitionGatherer

GOAL = Field((2,), "float32")
FRAME = {"observation": Field((3,), "float32"), "achieved_goal": GOAL, "desired_goal": GOAL}


def sparse(achieved, desired, info):
    """As of Gymnasium-Robotics' Fetch."""
    return -(np.linalg.norm(achieved - desired, axis=-1) > 0.1).astype(np.float32)


def frame(row, episode=0):
    """One whose goal tells row and episode."""
    return {
        "observation": np.array([row, episode, 0], "float32"),
        "achieved_goal": np.array([row, episode], "float32"),
        "desired_goal": np.array([-1, -1], "float32"),
    }


def play(target, n_steps, episode=0, **extras):
    target.reset(frame(0, episode))
    for step in range(n_steps):
        target.step(0, -1.0, frame(step + 1, episode), truncated=step == n_steps - 1, **extras)


def new(path, **changes):
    given = {"frame": FRAME, "action": Field((), "int64"), "stack": None, "flush_s": 0}
    return mmreplay.ReplayBuffer(path, **given | changes)


@pytest.fixture
def buffer(tmp_path, quick_disk):
    with new(tmp_path / "s.zarr") as out:
        for episode in range(3):
            play(out, 10, episode)
        yield out


def test_a_goal_is_reached_where_it_was_achieved_and_nowhere_else(buffer):
    batch = Hindsight(buffer, sparse, probability=1).sample(500)
    goal = batch.observation["desired_goal"]
    assert (goal[:, 1] == batch.observation["observation"][:, 1]).all()  # of the same episode
    assert (goal[:, 0] > batch.observation["observation"][:, 0]).all()  # of its future
    reached = goal[:, 0] == batch.observation["observation"][:, 0] + 1
    assert batch.reward.tolist() == np.where(reached, 0.0, -1.0).tolist()
    assert 0.1 < reached.mean() < 0.9
    assert np.array_equal(goal, batch.next_observation["desired_goal"])
    after = buffer.transitions(batch.extras["hindsight"]).next_observation
    assert np.array_equal(after["achieved_goal"], goal)


def test_the_same_seed_gives_the_same_goals_also_after_resuming(tmp_path, quick_disk):
    def run(path, *, interrupted):
        buffer = new(path, seed=7)
        play(buffer, 20)
        out = []
        for _ in range(3):
            out.append(Hindsight(buffer, sparse).sample(16).extras["hindsight"].tolist())
            if interrupted:
                buffer.close()
                buffer = mmreplay.ReplayBuffer(path, stack=None, seed=0, flush_s=0)
        buffer.close()
        return out

    whole = run(tmp_path / "a.zarr", interrupted=False)
    assert run(tmp_path / "b.zarr", interrupted=True) == whole
    assert whole[0] != whole[1]


def test_the_reward_gets_the_extras_of_the_steps(tmp_path, quick_disk):
    seen = []

    def reward(achieved, desired, info):
        seen.append({name: (array.shape, array.dtype.name) for name, array in info.items()})
        return info["scale"].astype(float)

    extras = {"scale": Field((), "int16"), "pose": Field((4,), "float32")}
    with new(tmp_path / "s.zarr", extras=extras, n_step=3, gamma=0.5) as buffer:
        play(buffer, 5, scale=3, pose=np.zeros(4, "float32"))
        batch = Hindsight(buffer, reward, probability=1).relabel([0, 4])
    assert batch.reward.tolist() == [3 + 1.5 + 0.75, 3]
    assert seen == [{"scale": ((6,), "int16"), "pose": ((6, 4), "float32")}]


def test_out_is_filled_again_and_only_if_it_came_from_here(buffer):
    hindsight = Hindsight(buffer, sparse, probability=0.5)
    batch = hindsight.sample(32)
    arrays = batch.reward, batch.observation["desired_goal"], batch.extras["hindsight"]
    for _ in range(3):
        assert hindsight.sample(32, out=batch) is batch
        assert arrays[0] is batch.reward
        assert arrays[1] is batch.observation["desired_goal"]
        as_recorded = (batch.observation["desired_goal"] == -1).all(axis=1)
        assert as_recorded.tolist() == (batch.extras["hindsight"] == -1).tolist()
    with pytest.raises(SchemaError, match="out: expected a batch of 32"):
        hindsight.sample(32, out=buffer.sample(32))


def test_ids_and_weights_of_a_prioritized_buffer_stay_its_own(tmp_path, quick_disk):
    fields = {"frame": FRAME, "action": Field((), "int64"), "stack": None, "flush_s": 0}
    with mmreplay.PrioritizedReplayBuffer(tmp_path / "s.zarr", alpha=1.0, **fields) as buffer:
        play(buffer, 4)
        hindsight = Hindsight(buffer, sparse, probability=1)
        hindsight.update_priorities(buffer.ids, [0.0, 0.0, 0.0, 9.0])
        assert buffer.priorities(buffer.ids).argmax() == 3
        batch = hindsight.sample(50)
        weights = 1 / buffer.probabilities(batch.id) ** 0.4
        assert np.allclose(batch.weight, weights / weights.max())
        newest = batch.id == 3
        assert newest.sum() > 45
        assert set(batch.extras["hindsight"][newest].tolist()) == {3}
        assert set(batch.reward[newest].tolist()) == {0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "past"}, "strategy: expected one of"),
        ({"probability": 1.5}, "probability"),
        ({"probability": "most"}, "probability"),
        ({"probability": float("nan")}, "probability"),
        ({"reward": 3}, r"reward: expected a function of \(achieved_goal, desired_goal, info\)"),
        ({"terminal": True}, "terminal: expected a function"),
        ({"reward": lambda achieved, desired: 0}, "reward: .*<lambda>.*too many positional"),
        ({"terminal": lambda a, b, c, d: 0}, "terminal: .*<lambda>.*missing a required .* 'd'"),
        ({"desired_goal": "goal"}, "name the goals' keys"),
        ({"achieved_goal": "observation"}, "one shape and dtype"),
        ({"data": "store.zarr"}, "put Decorated and Mixture around Hindsight"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(buffer, changes, message):
    with pytest.raises(SchemaError, match=message):
        Hindsight(**{"data": buffer, "reward": sparse} | changes)


def test_data_without_goals_or_with_a_sample_of_its_own_is_refused(buffer, tmp_path):
    class Own(mmreplay.ReplayBuffer):
        def sample(self, batch_size, out=None, *, replace=True, group=None):
            return self.transitions([0] * batch_size)

    with new(tmp_path / "plain.zarr", frame=Field((2,))) as plain:
        with pytest.raises(SchemaError, match="expected dict observations with 'achieved_goal'"):
            Hindsight(plain, sparse)
    buffer.__class__ = Own
    with pytest.raises(SchemaError, match=r"do not override sample\(\)"):
        Hindsight(buffer, sparse)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda achieved, desired, info: -1.0,
        lambda achieved, desired, info: np.zeros((len(achieved), 1)),
        lambda achieved, desired, info: ["no"] * len(achieved),
    ],
)
def test_a_reward_that_is_not_one_number_a_step_is_refused(buffer, wrong):
    with pytest.raises(SchemaError, match=r"reward: expected numbers of shape \(4,\)"):
        Hindsight(buffer, wrong, probability=1).sample(4)


def test_the_mark_never_hides_an_extra(tmp_path, quick_disk):
    with new(tmp_path / "s.zarr", extras={"hindsight": Field((), "uint8")}) as buffer:
        play(buffer, 3, hindsight=7)
        with pytest.raises(SchemaError, match="mark="):
            Hindsight(buffer, sparse)
        batch = Hindsight(buffer, sparse, probability=1, mark="goal_row").sample(4)
    assert batch.extras["hindsight"].tolist() == [7] * 4
    assert (batch.extras["goal_row"] >= batch.id).all()


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_of_many_environments_the_mark_is_the_step_after_which_the_goal_was_achieved(
    tmp_path, quick_disk, strategy
):
    """-2 is the first observation, which no step came before; in the second of two lanes."""
    path = tmp_path / "run.zarr"
    with mmreplay.create(path, FRAME, Field((), "int64"), lanes=3, flush_s=0) as writer:
        no = np.zeros(3, bool)
        for episode in range(2):
            ended = np.array([True, False, True])
            writer.reset(many(0, episode), ended if episode else None)
            for step in range(4):
                writer.step([0] * 3, [-1] * 3, many(step + 1, episode), no, ended & (step == 3))
    with new(tmp_path / "one.zarr") as buffer:
        play(buffer, 5)
    with mmreplay.load([tmp_path / "one.zarr", path], stack=None) as data:
        ids = data.ids[data.ids >> mmreplay.LANE_SHIFT == 1]
        batch = Hindsight(data, sparse, strategy, 1).relabel(ids.repeat(40))
        at_first = batch.extras["hindsight"] == -2
        after = data.transitions(batch.extras["hindsight"][~at_first]).next_observation
    marks, goals = batch.extras["hindsight"], batch.observation["desired_goal"]
    assert at_first.any() == (strategy == "episode")
    assert (goals[at_first, 0] == 0).all()
    steps = marks[~at_first]
    assert set(steps.tolist()) <= set(ids.tolist())
    assert (goals[~at_first] == after["achieved_goal"]).all()
    assert (steps % 3 == batch.id[~at_first] % 3).all()
    if strategy != "episode":
        assert (steps >= batch.id[~at_first]).all()


def many(row, episode):
    """The frames of three environments."""
    one = frame(row, episode)
    return {name: np.stack([value] * 3) for name, value in one.items()}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_reads_each_batch_once_and_has_the_same_goals_again(buffer, monkeypatch, prefetch):
    buffer.flush()
    read = []
    fetch = TransitionGatherer.fetch
    monkeypatch.setattr(
        TransitionGatherer,
        "fetch",
        lambda self, columns, steps, out=None: (
            read.append(steps.ids.size) or fetch(self, columns, steps, out)
        ),
    )
    goals = []
    for _ in range(2):
        with mmreplay.load(buffer.store.path, stack=None, prefetch=prefetch) as data:
            hindsight = Hindsight(data, sparse, probability=0.5)
            epochs = [list(hindsight.batches(7)) for _ in range(2)]
            state = data.generator.bit_generator.state
            goals.append([b.extras["hindsight"].tolist() for epoch in epochs for b in epoch])
            for batch in epochs[0]:
                assert np.isin(batch.id, buffer.ids).all()
        with mmreplay.load(buffer.store.path) as plain:
            assert state == plain.generator.bit_generator.state
    assert sum(read) == 2 * 2 * len(buffer)
    assert goals[0] == goals[1]
    assert sorted(goals[0][0]) != sorted(goals[0][5])


def test_a_selection_has_goals_of_its_episodes_in_every_way(buffer):
    best = buffer.select(episodes=[1])
    hindsight = Hindsight(best, sparse, probability=1)
    assert len(hindsight) == 10
    batches = [hindsight.sample(300), *hindsight.batches(4), hindsight.sample(9, replace=False)]
    for batch in batches:
        assert np.isin(batch.id, best.ids).all()
        assert (batch.observation["desired_goal"][:, 1] == 1).all()
