"""One episode: how long it is, and its rows, the damaged ones apart."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, InvalidIdError, SchemaError
from mmreplay.viewer.columns import shown_columns
from mmreplay.viewer.episode import find_episode, read_rows
from mmreplay.viewer.viewed_store import GoneError
from tests.support.viewed import play, record_pictures


@pytest.fixture
def recorded(tmp_path, quick_disk):
    record_pictures(tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def test_an_episode_is_found_by_its_first_id(recorded):
    with mmreplay.open(recorded) as store:
        found = [find_episode(store, int(one)) for one in store.episodes["id"]]
    assert [(one.first, one.length, one.end) for one in found] == [
        (0, 9, "terminated"),
        (10, 21, "truncated"),
        (32, 7, "truncated"),
    ]


@pytest.mark.parametrize("wrong", [1, 9, 40, 1 << 40, (1 << 62) + 3])
def test_no_other_id_is_an_episode(recorded, wrong):
    with mmreplay.open(recorded) as store, pytest.raises(InvalidIdError, match="No episode"):
        find_episode(store, wrong)


def test_a_running_episode_is_open_and_a_killed_one_is_not(tmp_path, quick_disk, kill):
    writer = record_pictures(tmp_path / "s.zarr", episodes=[(3, "")], close=False)
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert (find_episode(store, 0).length, find_episode(store, 0).end) == (3, "open")
        kill(writer)
        assert find_episode(store, 0).end == "truncated"


def test_an_evicted_episode_is_gone(tmp_path, quick_disk):
    frame = Field((2, 2), "uint8", "raw", chunk=8)
    episodes = [(6, "terminated")] * 40
    writer = record_pictures(
        tmp_path / "s.zarr", frame=frame, episodes=episodes, capacity=20, close=False
    )
    with mmreplay.open(tmp_path / "s.zarr") as store, writer:
        oldest = int(store.episodes["id"][0])
        assert find_episode(store, oldest).length == 6
        for _ in range(5):
            play(writer, frame, 6, "terminated")
        with pytest.raises(GoneError, match="evicted"):
            find_episode(store, oldest)


def test_rows_of_every_column_are_those_of_the_trajectory(recorded):
    with mmreplay.open(recorded) as store:
        whole, columns = store.trajectory(1), shown_columns(store.schema)
        episode = find_episode(store, 10)
        frames, action, reward, flag, priority = (
            read_rows(store, episode, one, 3, 20)[0] for one in columns
        )
    assert np.array_equal(frames, whole.observation[3:20])
    assert np.array_equal(action, whole.action[3:20])
    assert np.array_equal(reward, whole.reward[3:20])
    assert np.array_equal(flag != 0, whole.non_terminal[3:20])
    assert np.isnan(priority).all()


def test_more_rows_than_there_are_is_refused(recorded):
    with mmreplay.open(recorded) as store:
        columns, episode = shown_columns(store.schema), find_episode(store, 0)
        assert len(read_rows(store, episode, columns[0], 0, 10)[0]) == 10  # frames: T + 1
        for column, start, stop in ((0, 0, 11), (1, 0, 10), (0, -1, 3), (0, 4, 4), (0, 5, 4)):
            with pytest.raises(SchemaError, match="expected at most"):
                read_rows(store, episode, columns[column], start, stop)


def test_damaged_frames_are_told_apart_from_those_around_them(recorded):
    path = recorded / "frames" / "c.1.0.0"
    data = bytearray(path.read_bytes())
    data[3] ^= 0xFF  # in the first inner chunk: rows 16 to 19, frames 6 to 9 of the episode
    path.write_bytes(data)
    with mmreplay.open(recorded) as store:
        episode, column = find_episode(store, 10), shown_columns(store.schema)[0]
        rows, damage = read_rows(store, episode, column, 0, 22)
    assert [(start, stop) for start, stop, _ in damage] == [(one, one + 1) for one in range(6, 10)]
    assert all("verify" in why or str(path) in why for _, _, why in damage)
    assert not rows[6:10].any()
    assert rows[:6].any(axis=(1, 2)).all()
    assert rows[10:].any(axis=(1, 2)).all()
