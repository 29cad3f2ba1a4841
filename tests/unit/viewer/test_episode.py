"""One episode: how long it is, and its rows, the damaged ones apart."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, InvalidIdError, SchemaError
from mmreplay.viewer.episode import Episode, find_episode, kept_episodes, read_rows
from mmreplay.viewer.shown_columns import shown_columns
from mmreplay.viewer.viewed_store import GoneError
from tests.support.viewed import FRAME, frame_of, play, record_pictures


@pytest.fixture
def recorded(tmp_path, quick_disk):
    record_pictures(tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def test_an_episode_is_found_by_its_first_id(recorded):
    with mmreplay.open(recorded) as store:
        found = [find_episode(store, int(one)) for one in store.episodes["id"]]
    assert [(one.first, one.length, one.end) for one in found] == [
        (0, 9, "terminated"),
        (9, 21, "truncated"),
        (30, 7, "truncated"),
    ]


@pytest.mark.parametrize("wrong", [1, 8, 37, 1 << 40, (1 << 62) + 3])
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


@pytest.fixture
def record_cut(tmp_path, quick_disk):
    """Records steps of a long episode, and keeps 25: `record_cut(lanes, steps)`; gives all frames.

    With `lanes` two environments do the same; the second one begins again after the 30th step, so
    that the capacity of all keeps 25 steps of each.
    """

    def record(lanes=None, steps=40):
        width = lanes or 1
        frames = [[frame_of(FRAME, 100 * t + n) for n in range(width)] for t in range(steps + 1)]
        with mmreplay.create(
            tmp_path / "s.zarr", FRAME, Field((), "int64"), lanes=lanes, capacity=25 * width
        ) as writer:
            if lanes is None:
                writer.reset(frames[0][0])
                for t in range(steps):
                    writer.step(t % 4, float(t), frames[t + 1][0])
                return np.array(frames)
            none = np.zeros(width, np.bool_)
            writer.reset(np.array(frames[0]))
            for t in range(steps):
                ends = np.array([False, t == 29])
                actions, rewards = np.full(width, t % 4), np.full(width, float(t))
                writer.step(actions, rewards, np.array(frames[t + 1]), ends, none)
                if ends.any():
                    writer.reset(np.array(frames[t + 1]), mask=ends)
        return np.array(frames)

    return record


def check_rows(store, episode, frames, first):
    """The rows of an episode from its step `first` on."""
    steps = np.arange(first, first + episode.length)
    column, action, reward, flag, _ = shown_columns(store.schema)
    shown, damage = read_rows(store, episode, column, 0, episode.length + 1)
    assert np.array_equal(shown, frames[first : first + episode.length + 1])
    assert damage == []
    for one, expected in ((action, steps % 4), (reward, steps), (flag, steps * 0 + 1)):
        rows, _ = read_rows(store, episode, one, 0, episode.length)
        assert np.array_equal(rows[:-1], expected[:-1])


def test_what_is_left_of_an_episode_longer_than_the_capacity_is_shown(tmp_path, record_cut):
    frames = record_cut(steps=140)
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert len(store.episodes) == 0
        (row,), evicted = kept_episodes(store)
        assert (row["id"], row["length"], row["truncated"]) == (115, 25, True)
        assert np.isnan(row["return"])
        assert evicted.tolist() == [115]
        episode = find_episode(store, 115)
        assert episode == Episode(115, 25, "truncated", 115)
        check_rows(store, episode, frames[:, 0], 115)


def test_what_is_left_of_episodes_of_environments_that_step_together_is_shown(tmp_path, record_cut):
    frames = record_cut(2)
    with mmreplay.open(tmp_path / "s.zarr") as store:
        found, evicted = kept_episodes(store)
        whole = store.episodes
        assert np.array_equal(found[: len(whole)], whole)
        assert evicted.tolist() == [0, 15, 15]
        assert found["length"].tolist() == [10, 25, 15]
        assert found["terminated"].tolist() == [False, False, True]
        episodes = [find_episode(store, int(one)) for one in found["id"]]
        assert [one.evicted for one in episodes] == [0, 15, 15]
        check_rows(store, episodes[1], frames[:, 0], 15)
        check_rows(store, episodes[2], frames[:, 1], 15)
        with pytest.raises(InvalidIdError, match="No episode"):
            find_episode(store, episodes[1].first + 2)  # its next step


def test_what_is_left_of_a_live_episode_says_how_much_was_evicted(tmp_path, quick_disk):
    with mmreplay.create(tmp_path / "s.zarr", FRAME, Field((), "int64"), capacity=25) as writer:
        writer.reset(frame_of(FRAME, 0))
        writer.step(0, 0.0, frame_of(FRAME, 1))
        with mmreplay.open(tmp_path / "s.zarr") as store:
            for step in range(2, 41):
                writer.step(0, 0.0, frame_of(FRAME, step))
            assert find_episode(store, 15) == Episode(15, 25, "open", 15)
            writer.step(0, 0.0, frame_of(FRAME, 41))
            with pytest.raises(GoneError, match="or its beginning, was evicted"):
                find_episode(store, 15)


def test_rows_of_every_column_are_those_of_the_trajectory(recorded):
    with mmreplay.open(recorded) as store:
        whole, columns = store.trajectory(1), shown_columns(store.schema)
        episode = find_episode(store, 9)
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
    data[3] ^= 0xFF  # in the first inner chunk: rows 16 to 19, frames 7 to 10 of the episode
    path.write_bytes(data)
    with mmreplay.open(recorded) as store:
        episode, column = find_episode(store, 9), shown_columns(store.schema)[0]
        rows, damage = read_rows(store, episode, column, 0, 22)
    assert [(start, stop) for start, stop, _ in damage] == [(one, one + 1) for one in range(7, 11)]
    assert all("verify" in why or str(path) in why for _, _, why in damage)
    assert not rows[7:11].any()
    assert rows[:7].any(axis=(1, 2)).all()
    assert rows[11:].any(axis=(1, 2)).all()
