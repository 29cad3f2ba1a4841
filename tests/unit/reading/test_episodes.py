"""The whole episodes of a lane: of vector lanes here, of others in test_joined_lanes."""

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import CorruptStoreError
from mmreplay.storage import chunk_files
from tests.support.oracle.handmade_vectors import episodes_of


def found(path):
    with mmreplay.open(path) as store:
        return [tuple(one) for one in store.episodes.tolist()]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_episodes_are_those_of_the_arrays_in_the_order_of_starts(vector, width, closed):
    for seed in range(3):
        lane = vector(width=width, n_ticks=80, name=f"{seed}.zarr", seed=seed)
        if closed:
            lane.close()
        expected = episodes_of(lane, live=not closed)
        assert len(expected) > 3
        assert found(lane.path) == expected


def test_returns_are_summed_over_pieces_of_files(vector, monkeypatch):
    lane = vector(n_ticks=200)
    monkeypatch.setattr(chunk_files, "_PIECE_BYTES", 60)
    assert found(lane.path) == episodes_of(lane, live=True)


def test_episodes_whose_first_steps_went_are_not_whole(vector):
    lane = vector(n_ticks=400, capacity=300)
    lane.evict(150)
    with mmreplay.open(lane.path) as store:
        first = store.lanes[0].first
        expected = [one for one in episodes_of(lane, live=True) if one[0] >= first * 3]
        assert first > 150
        assert [tuple(one) for one in store.episodes.tolist()] == expected


def frame(value):
    return np.array([value] * 3, "uint8")


def step(value, **ends):
    return value, value, frame(value), ends, {"x": np.zeros(2, "float32")}


@pytest.fixture
def lane(vector):
    return vector(n_ticks=0)


def flags(path):
    with mmreplay.open(path) as store:
        return store.episodes[["id", "length", "terminated", "truncated"]].tolist()


def test_a_start_without_a_step_is_no_episode(lane):
    lane.model.reset({0: frame(1), 2: frame(2)})
    lane.model.reset({0: frame(3)})
    lane.model.step({0: step(4)})
    lane.model.reset({1: frame(5)})
    lane.commit()
    assert flags(lane.path) == [(0, 1, False, False)]
    lane.close()
    assert flags(lane.path) == [(0, 1, False, True)]


def test_a_reset_in_mid_episode_truncates_at_the_newest_tick(lane):
    lane.model.reset({0: frame(1), 1: frame(2)})
    lane.model.step({0: step(3), 1: step(4)})
    lane.commit()
    assert flags(lane.path) == [(0, 1, False, False), (1, 1, False, False)]
    lane.model.reset({1: frame(5)})
    lane.commit()
    assert flags(lane.path) == [(0, 1, False, False), (1, 1, False, True)]


def test_a_life_lost_in_the_newest_tick_ends_no_episode(lane):
    lane.model.reset({0: frame(1)})
    lane.model.step({0: step(3, life_lost=True)})
    lane.commit()
    assert flags(lane.path) == [(0, 1, False, False)]
    lane.model.step({0: step(3, terminated=True)})
    lane.commit()
    assert flags(lane.path) == [(0, 2, True, False)]


def test_a_terminal_step_in_the_newest_tick_is_known_at_once(lane):
    lane.model.reset({0: frame(1), 2: frame(2)})
    lane.model.step({0: step(3, terminated=True), 2: step(4, truncated=True)})
    lane.commit()
    assert flags(lane.path) == [(0, 1, True, False), (2, 1, False, True)]


def test_many_episodes_that_begin_in_tick_0_are_found_where_the_file_has_a_hole(
    tmp_path, vector, quick_disk
):
    """As a copy leaves it that makes holes of zeros."""
    lane = vector(n_ticks=0, width=3)
    lane.model.reset({e: frame(e) for e in range(3)})
    lane.model.step({e: step(e) for e in range(3)})
    lane.commit()
    lane.close()
    spec = lane.specs["starts"]["tick"]
    path = lane.path / "starts" / "tick" / spec.key(0)
    with path.open("r+b") as file:
        file.truncate(0)
        file.truncate(spec.chunk_bytes)
    assert [one[0] for one in found(lane.path)] == [0, 1, 2]


def test_rewards_that_are_not_finite_stay_in_their_episode(lane):
    first, second = step(1, truncated=True), step(2, truncated=True)
    first = (1, float("inf"), *first[2:])
    lane.model.reset({0: frame(1), 1: frame(2)})
    lane.model.step({0: first, 1: second})
    lane.commit()
    assert [one[2] for one in found(lane.path)] == [np.inf, 2.0]


def test_an_episode_that_has_no_start_is_corrupt_where_it_is_read(lane):
    lane.model.reset({0: frame(1)})
    lane.model.step({0: step(3)})
    lane.commit()
    lane.chunk("ticks", "episode", 0)[0, 0] = 5
    with mmreplay.open(lane.path) as store:
        assert len(store) == 1
        for read in (lambda: store.episodes, lambda: store.live.episode_rows("frames", 0, 2)):
            with pytest.raises(CorruptStoreError, match="belongs to episode 5"):
                read()


def test_a_start_that_points_beyond_the_ticks_is_no_episode(lane):
    lane.model.reset({0: frame(1), 1: frame(1)})
    lane.model.step({0: step(3), 1: step(3)})
    lane.commit()
    for path, value in (("tick", 1 << 50), ("tick", -1), ("env", 3), ("env", -1)):
        column = lane.chunk("starts", path, 0)
        kept, column[1] = int(column[1]), value
        assert [one[0] for one in found(lane.path)] == [0]
        column[1] = kept
    assert [one[0] for one in found(lane.path)] == [0, 1]
