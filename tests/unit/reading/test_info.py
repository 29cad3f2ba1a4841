"""`Store.info`: the numbers of one answer belong together, and every value is plain."""

import os
import socket

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError
from mmreplay.reading import info

KEYS = set(
    "path paths format uuid versions padding env state lanes environments lane_details rows "
    "kept_rows transitions episodes terminated truncated open non_finite_rewards returns lengths capacity fields bytes_on_disk "
    "bytes_raw bytes_stacked stack saving_raw saving_stacked live episode_fields".split()
)
ROW_BYTES = 3 + 1 + 4 + 3 + 8  # of `make`: frame, action, reward, three flags, step
FINAL_BYTES = 3 + 8 + 8
ACTION = Field((), "uint8", chunk=8)


def allocated(path):
    """What `du` counts."""
    paths = [path, *path.rglob("*")]
    return sum(one.lstat().st_blocks * 512 for one in paths)


@pytest.fixture(scope="module")
def closed(tmp_path_factory, story_of_module):
    """Two whole episodes, one of each end, and a third that the close cuts off."""
    path, story = tmp_path_factory.mktemp("info") / "store.zarr", story_of_module
    frame = Field((3,), "uint8", "raw", chunk=8)
    writer = mmreplay.create(path, frame=frame, action=ACTION, metadata={"id": "Test-v0"})
    story.play(writer, 5, "terminated")
    story.play(writer, 7, "truncated")
    story.play(writer, 2)
    writer.close()
    return writer.path


def test_a_closed_store(closed):
    with mmreplay.open(closed) as store:
        about = store.info()
    assert about.keys() == KEYS
    assert about["path"] == str(closed)
    assert (about["format"], about["state"], about["lanes"]) == (1, "closed", 1)
    assert (about["rows"], about["kept_rows"], about["transitions"]) == (14, 14, 14)
    assert (about["episodes"], about["terminated"], about["truncated"], about["open"]) == (
        3,
        1,
        2,
        0,
    )
    assert about["lengths"] == {"min": 2, "mean": 14 / 3, "max": 7}
    assert about["capacity"] is None
    assert about["env"] == {"id": "Test-v0"}
    assert about["live"] is None
    assert about["padding"] == "reset"
    assert about["versions"].keys() >= {"mmreplay", "numpy"}


def test_the_fields_are_all_columns_with_dtype_shape_and_codec(closed):
    with mmreplay.open(closed) as store:
        fields = store.info()["fields"]
    assert list(fields) == [
        *("frames", "actions", "rewards", "non_terminals", "resets", "ends", "step"),
        *("finals/frames", "finals/id", "finals/first"),
    ]
    assert fields["finals/id"]["bytes_on_disk"] == allocated(closed / "finals" / "id")
    about = fields["frames"]
    assert about.pop("bytes_on_disk") == allocated(closed / "frames")
    assert about == {"dtype": "uint8", "shape": [3], "codec": "raw", "chunk_rows": 8}
    assert (fields["rewards"]["dtype"], fields["rewards"]["shape"]) == ("float32", [])


def test_sizes_count_blocks_raw_rows_and_vectors_in_pairs(closed):
    with mmreplay.open(closed) as store:
        about = store.info()
    assert about["bytes_on_disk"] == allocated(closed)
    assert about["bytes_raw"] == 14 * ROW_BYTES + 3 * FINAL_BYTES
    assert about["stack"] == 1
    assert about["bytes_stacked"] == 14 * (2 * 3 + 1 + 4 + 1)
    assert about["saving_raw"] == about["bytes_raw"] / about["bytes_on_disk"]
    assert about["saving_stacked"] == about["bytes_stacked"] / about["bytes_on_disk"]


def test_an_infinite_return_is_none_because_json_has_no_infinity(make):
    writer = make()
    for reward in (np.inf, 1.0):
        writer.reset(np.zeros(3, np.uint8))
        writer.step(1, reward, np.zeros(3, np.uint8), True)
    writer.close()
    with mmreplay.open(writer.path) as store:
        assert store.info()["returns"] == {"min": 1.0, "mean": None, "max": None}


def test_evicted_rows_are_no_longer_kept(make, story):
    writer = make(capacity=20)
    for _ in range(30):
        story.play(writer, 9, "terminated")
    writer.close()
    with mmreplay.open(writer.path) as store:
        about = store.info()
        first = store.lanes[0].first
        assert about["lane_details"] == [
            {
                "path": str(writer.path),
                "name": None,
                "state": "closed",
                "environments": 1,
                "rows": 270,
                "first": first,
                "base": first - 64,
                "transitions": 20,
                "capacity": 20,
            }
        ]
    assert (about["rows"], about["transitions"], about["capacity"]) == (270, 20, 20)
    assert about["kept_rows"] == 270 - (first - 64)
    assert about["bytes_raw"] < 270 * ROW_BYTES


# ---------------------------------------------------------------- live and crashed


def test_a_live_store_says_who_writes_and_what_is_not_flushed(make, story):
    writer = make()
    story.play(writer, 5, "terminated")
    writer.flush()
    story.play(writer, 3)
    with mmreplay.open(writer.path) as store:
        about = store.info()
        live = about["live"]
        assert about["state"] == "live"
        assert (about["episodes"], about["terminated"], about["open"]) == (2, 1, 1)
        assert about["lengths"] == {"min": 5, "mean": 5.0, "max": 5}  # the open one is not over
        assert live["unflushed_rows"] == 3
        assert live["writers"] == [
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": live["writers"][0]["since"],
                "lanes": [0],
            }
        ]
        assert 0 <= live["last_row_s"] < 60
        assert 0 <= live["last_checkpoint_s"] < 60


@pytest.mark.parametrize("lanes", [None, 2])
def test_all_is_of_one_moment_while_rows_come_and_others_are_evicted(make, monkeypatch, lanes):
    """Whatever looked again after the rows were counted would find newer ones, and fewer old."""
    writer = make(capacity=40, lanes=lanes, flush_s=0)
    shape = (lanes,) if lanes else ()
    frame, no = np.zeros((*shape, 3), np.uint8), np.zeros(shape, bool)

    def play(n_episodes):
        for _ in range(n_episodes):
            writer.reset(frame)
            for t in range(9):
                writer.step(np.zeros(shape, int), np.ones(shape), frame, no | (t == 8), no)
        writer.flush()

    play(20)
    with mmreplay.open(writer.path) as store:
        expected = store.info()
        endings = info.endings
        monkeypatch.setattr(info, "endings", lambda *given: (play(10), endings(*given))[1])
        found = store.info()
        assert len(store) == 40
        assert store.lanes[0].first > expected["lane_details"][0]["first"]
    counted = (
        "rows kept_rows transitions episodes terminated returns lengths lane_details bytes_raw"
    )
    for key in counted.split():
        assert found[key] == expected[key], key


def test_what_a_dead_writer_left_is_crashed_and_its_last_episode_cut_off(make, story, kill):
    writer = make()
    story.play(writer, 5, "terminated")
    story.play(writer, 3)
    kill(writer)
    with mmreplay.open(writer.path) as store:
        about = store.info()
        assert store.endings(store.episodes).tolist() == ["terminated", "truncated"]
        episodes = mmreplay.load(store.path).episodes  # which have more columns
        assert store.endings(episodes[:1]).tolist() == ["terminated"]
        with pytest.raises(SchemaError, match=r"store\.episodes\[:8\]; found \[0, 1\]"):
            store.endings([0, 1])
    assert about["state"] == "crashed"
    assert (about["terminated"], about["truncated"], about["open"]) == (1, 1, 0)
    assert about["live"]["writers"][0]["pid"] == os.getpid()


# ---------------------------------------------------------------- many lanes


def test_a_store_of_many_lanes_is_described_as_one(make, story):
    writer = make(n_lanes=3, capacity=20, action=ACTION)
    story.play(writer, 2, "terminated")
    story.play(writer.writers[1], 4, "truncated")
    writer.close()
    with mmreplay.open(writer.path) as store:
        about = store.info()
    assert about["path"] == str(writer.path)
    assert about["paths"] == [str(writer.path)]
    assert (about["lanes"], about["capacity"]) == (3, 20)
    assert (about["rows"], about["transitions"], about["episodes"]) == (10, 10, 4)
    assert about["bytes_on_disk"] == allocated(writer.path)
    assert [one["transitions"] for one in about["lane_details"]] == [2, 6, 2]
    assert [one["capacity"] for one in about["lane_details"]] == [7, 7, 6]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("lanes", [None, 2])
def test_an_episode_in_which_a_writer_died_ended_as_the_next_opening_sees_it(
    make, kill, lanes, lost
):
    """By the flag of its last step, as every episode did: 0 if that step lost a life."""
    writer = make(lanes=lanes)
    shape = (lanes,) if lanes else ()
    frame, no = np.zeros((*shape, 3), np.uint8), np.zeros(shape, bool)
    zeros = np.zeros(shape)
    writer.reset(frame)
    for flag in (lost, False, lost):  # a life lost before is no end
        loses = np.full(shape, flag) if lanes else flag
        writer.step(zeros.astype(int), zeros, frame, no, no, life_lost=loses)
    with mmreplay.open(writer.path) as store:
        assert store.endings(store.episodes).tolist() == ["open"] * (lanes or 1)
    kill(writer)
    expected = ["terminated" if lost else "truncated"] * (lanes or 1)
    with mmreplay.open(writer.path) as store:
        assert store.endings(store.episodes).tolist() == expected
        about = store.info()
        assert (about[expected[0]], about["open"]) == (len(expected), 0)
    make(append=True).close()
    with mmreplay.open(writer.path) as store:
        assert store.endings(store.episodes).tolist() == expected


@pytest.mark.parametrize("lanes", [None, 2])
def test_rewards_that_are_not_finite_are_counted(tmp_path, lanes):
    path, width = tmp_path / "store.zarr", lanes or 1
    rewards = [0, np.nan, 1, np.inf, -np.inf, 0]
    more = {"lanes": lanes, "capacity": 60 * width, "flush_s": 0}
    with mmreplay.create(path, Field((3,), chunk=8), ACTION, **more) as writer:

        def step(reward, *flags):
            values = 0, reward, np.zeros(3, "uint8"), *(flags or (False, False))
            writer.step(
                *(values if lanes is None else map(np.array, zip(*[values] * width, strict=True)))
            )

        def reset():
            frames = np.zeros((width, 3), "uint8")
            writer.reset(frames if lanes else frames[0])

        reset()
        for reward in rewards:
            step(reward)
        with mmreplay.open(path) as store:
            assert store.info()["non_finite_rewards"] == 3 * width  # of an episode that runs
        step(np.nan, True, False)
        reset()
        for _ in range(20):
            step(1.0)
        writer.flush()
        with mmreplay.open(path) as store:
            assert store.info()["non_finite_rewards"] == 4 * width
            for _ in range(38):
                step(1.0)
            writer.flush()
            assert store.ids[0] == 5 * width  # some of the first episode's steps were evicted
            about = store.info()
            assert about["non_finite_rewards"] == width
    with mmreplay.open(path) as store:
        assert [store.info()["non_finite_rewards"] for _ in range(2)] == [width, width]
