"""Vector lanes through a store: transitions, trajectories and columns, alone and among others."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.store import Store
from tests.support.oracle.handmade_vectors import episodes_of

LANE_1 = 1 << LANE_SHIFT
GAMMA = 0.5


def frames_of(lane, number, path="frames"):
    """All frames of an episode, the first one from the starts; and its cells, (T, 2)."""
    cells = np.argwhere(lane.ticks["episode"] == number)
    first = lane.starts[path][number][None]
    return np.concatenate((first, lane.ticks[path][cells[:, 0], cells[:, 1]])), cells


def naive(lane, cell, k, n, padding):
    """(observation, next observation, reward, discount, action) of a transition."""
    ticks, (tick, env) = lane.ticks, divmod(cell, lane.width)
    frames, cells = frames_of(lane, ticks["episode"][tick, env])
    place = int(np.flatnonzero((cells == (tick, env)).all(1))[0])

    def stack(last):
        wanted = np.arange(last - k + 1, last + 1)
        out = frames[np.maximum(wanted, 0)].copy()
        if padding == "zero":
            out[wanted < 0] = 0
        return out

    total, m, up = 0.0, 0, True
    while m < n and place + m < len(cells) and up:
        t = cells[place + m][0]
        total += GAMMA**m * ticks["rewards"][t, env]
        up, m = bool(ticks["non_terminals"][t, env]), m + 1
    discount = GAMMA**m if up else 0.0
    return stack(place), stack(place + m), total, discount, ticks["actions"][tick, env]


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(("kind", "closed"), [("raw", True), ("lz4", False), ("lz4", True)])
def test_transitions_are_those_of_the_arrays(vector, kind, closed, n_step, padding):
    lane = vector(kind)
    if closed:
        lane.close()
    with mmreplay.open(lane.path) as store:
        assert store.ids.tolist() == np.flatnonzero(lane.ticks["episode"] >= 0).tolist()
        assert len(store) == len(store.ids) == lane.ticks["count"][-1]
        for k in (1, 4):
            batch = store.transitions(
                store.ids, stack=k, n_step=n_step, gamma=GAMMA, padding=padding
            )
            for place, cell in enumerate(store.ids.tolist()):
                seen, following, reward, discount, action = naive(lane, cell, k, n_step, padding)
                assert batch.observation[place].tolist() == seen.tolist()
                assert batch.next_observation[place].tolist() == following.tolist()
                assert batch.reward[place] == np.float32(reward)
                assert batch.discount[place] == np.float32(discount)
                assert batch.action[place] == action


@pytest.mark.parametrize("kind", ["raw", "lz4", "dict"])
def test_trajectories_are_those_of_the_arrays(vector, kind):
    lane = vector(kind)
    with mmreplay.open(lane.path) as store:
        episodes = episodes_of(lane, live=True)
        assert [tuple(one) for one in store.episodes.tolist()] == episodes
        for number, (first, length, total, terminated, truncated) in enumerate(episodes):
            found = store.trajectory(number)
            start = lane.ticks["episode"].ravel()[first]
            for key, path in lane.schema.frame_paths.items():
                frames, cells = frames_of(lane, start, path)
                seen = found.observation[key] if kind == "dict" else found.observation
                assert seen.tolist() == frames.tolist()
            assert found.ids.tolist() == (first + np.arange(length) * lane.width).tolist()
            assert found.reward.sum() == total
            assert (found.terminated, found.truncated) == (terminated, truncated)
            ticks, envs = cells.T
            assert found.action.tolist() == lane.ticks["actions"][ticks, envs].tolist()
            assert found.extras["x"].tolist() == lane.ticks["extras/x"][ticks, envs].tolist()


def test_lazy_trajectories_are_the_whole_ones(vector):
    lane = vector("lz4")
    with mmreplay.open(lane.path) as store:
        expected = [store.trajectory(number) for number in range(len(store.episodes))]
        firsts = np.array([one.ids[0] for one in expected])
        found = store.live.lazy_trajectories(lambda index: firsts)
        for one, other in zip(found, expected, strict=True):
            assert len(one) == len(other)
            assert one.ids.tolist() == other.ids.tolist()
            assert (one.terminated, one.truncated) == (other.terminated, other.truncated)
            assert one.observation.tolist() == other.observation.tolist()
            assert [step.reward for step in one] == other.reward.tolist()
        assert "tick=0 environment=" in repr(found[0])


def test_a_store_is_followed_while_it_grows_and_evicts(vector):
    lane = vector("lz4", capacity=100)
    with mmreplay.open(lane.path) as store:
        for turn in range(8):
            lane.play(30)
            lane.commit()
            if turn > 4:
                lane.evict(30 * turn)
            cells = np.flatnonzero(lane.ticks["episode"] >= 0)
            found = store.ids
            assert found.tolist() == cells[-len(found) :].tolist()
            assert 100 - 3 < len(found) <= 100
            for cell in found[::7].tolist():
                seen, following, *_ = naive(lane, cell, 4, 1, "reset")
                batch = store.transitions([cell], stack=4)
                assert batch.observation[0].tolist() == seen.tolist()
                assert batch.next_observation[0].tolist() == following.tolist()


def test_columns_are_indexed_by_tick_and_environment(vector):
    lane = vector()
    with mmreplay.open(lane.path) as store:
        view, ticks = store.lanes[0], lane.ticks
        assert (view.rows, view.first, view.base, view.environments) == (60, 0, 0, 3)
        assert len(view) == len(view.ids) == ticks["count"][-1]
        assert store.rewards[7, 1] == ticks["rewards"][7, 1]
        assert store.frames[-3:, 0].tolist() == ticks["frames"][-3:, 0].tolist()
        assert view.episode[[5, 2, 5]].tolist() == ticks["episode"][[5, 2, 5]].tolist()
        assert np.asarray(view.ends).tolist() == ticks["ends"].tolist()
        assert store.actions.size == 180
        assert store.rewards.dtype == np.float32


def test_what_another_kind_of_lane_has_is_refused_with_advice(vector, make, story):
    lane, writer = vector(), make("rows.zarr")
    story.play(writer, 3)
    with mmreplay.open(lane.path) as store:
        for one in (store, store.lanes[0]):
            with pytest.raises(SchemaError, match="no resets; see its `ends` and `episode`"):
                _ = one.resets
    with mmreplay.open(writer.path) as store:
        for name in ("ends", "episode"):
            with pytest.raises(SchemaError, match=f"no {name}; see its `resets`"):
                getattr(store.lanes[0], name)


def test_an_id_that_is_none_is_named_by_tick_and_environment(vector):
    lane = vector()
    absent = int(np.flatnonzero(lane.ticks["episode"] < 0)[0])
    place = f"lane 0, tick {absent // 3}, environment {absent % 3}"
    with (
        mmreplay.open(lane.path) as store,
        pytest.raises(InvalidIdError, match=rf"id {absent} \({place}\) .*the ticks are \[0, 60\)"),
    ):
        store.transitions([absent])


def test_a_trajectory_that_went_is_named_by_tick_and_environment(vector):
    lane = vector(n_ticks=120, capacity=300)
    with mmreplay.open(lane.path) as store:
        lazy = store.live.lazy_trajectories(lambda index: store.episodes["id"][:1])[0]
        lane.evict(40)
        lane.play(90)
        lane.commit()
        with pytest.raises(
            InvalidIdError, match=r"tick \d+, environment \d\) .*the oldest tick is"
        ):
            lazy.read()


# ---------------------------------------------------------------- among other lanes


@pytest.mark.parametrize("kind", ["raw", "lz4"])
def test_lanes_of_both_kinds_are_read_as_one(vector, make, story, kind):
    field = {
        "raw": Field((3,), "uint8", "raw", chunk=8),
        "lz4": Field((3,), "uint8", "lz4", chunk=2, shard=8),
    }
    given = {"frame": field[kind], "extras": {"x": Field((2,), "float32")}}
    rows = [make(f"{n}.zarr", **given) for n in range(2)]
    vectors = [vector(kind, width=2 + n, name=f"v{n}.zarr", seed=n) for n in range(2)]
    for writer in rows:
        story.play(writer, 7, "truncated")
        story.play(writer, 5)
    paths = [rows[0].path, vectors[0].path, rows[1].path, vectors[1].path]
    alone = [mmreplay.open(path) for path in paths]
    with Store(paths) as store:
        for _ in range(2):
            ids = [one.ids + (n << LANE_SHIFT) for n, one in enumerate(alone)]
            assert store.ids.tolist() == np.concatenate(ids).tolist()
            batch = store.transitions(store.ids, stack=3, n_step=2)
            parts = [one.transitions(one.ids, stack=3, n_step=2) for one in alone]
            for name in ("observation", "next_observation", "reward", "discount", "action"):
                expected = np.concatenate([getattr(part, name) for part in parts])
                assert getattr(batch, name).tolist() == expected.tolist(), name
            found, place = store.episodes, 0
            for number, one in enumerate(alone):
                for trajectory in range(len(one.episodes)):
                    mine, other = store.trajectory(place), one.trajectory(trajectory)
                    assert mine.observation.tolist() == other.observation.tolist()
                    assert mine.ids.tolist() == (other.ids + (number << LANE_SHIFT)).tolist()
                    assert found["return"][place] == one.episodes["return"][trajectory]
                    place += 1
            assert place == len(found)
            assert store.lanes[2].resets[:].tolist() == alone[2].resets[:].tolist()
            assert store.lanes[3].ends[:].tolist() == alone[3].ends[:].tolist()
            with pytest.raises(SchemaError, match="no resets"):
                _ = store.lanes[1].resets
            for writer in rows:
                story.play(writer, 9)
            for lane in vectors:
                lane.play(11)
                lane.commit()
    for one in alone:
        one.close()


def test_endings_are_those_of_the_episodes(vector, make, story):
    writer, lane = make(extras={"x": Field((2,), "float32")}), vector("raw")
    story.play(writer, 4, "terminated")
    story.play(writer, 2)
    with Store([writer.path, lane.path]) as store:
        episodes = store.episodes
        order = np.random.default_rng(0).permutation(len(episodes))
        found = store.live.lazy_trajectories(lambda index: episodes["id"][order])
        for one, place in zip(found, order.tolist(), strict=True):
            assert len(one) == episodes["length"][place]
            assert one.terminated == episodes["terminated"][place]
            assert one.truncated == episodes["truncated"][place]


def test_a_named_vector_lane_is_one_of_a_store_of_lanes(vector, make, story, tmp_path):
    writer = make(n_lanes=1, extras={"x": Field((2,), "float32")})
    story.play(writer, 3)
    lane = vector(name="store.zarr/lane-00001")
    with mmreplay.open(writer.path) as store:
        assert [one.environments for one in store.lanes] == [1, 3]
        assert np.array_equal(store.lanes[1].rewards[:], lane.ticks["rewards"])
        about = store.info()
        assert (about["lanes"], about["environments"], about["rows"]) == (2, 4, 4 + 60)
