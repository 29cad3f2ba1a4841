"""A store read: arrays by row id, transitions, trajectories; and how it follows its writer."""

import gc
import subprocess
import sys
import time
import warnings
import weakref

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.batches.settings import Settings
from mmreplay.errors import ClosedError, CorruptStoreError, InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.store import Store
from mmreplay.storage import raw_column
from mmreplay.storage.chunk_files import EvictedError

pytestmark = pytest.mark.usefixtures("quick_disk")

LANE_1 = 1 << LANE_SHIFT


def opened(writer):
    return mmreplay.open(writer.path)


# ---------------------------------------------------------------- lanes


def test_each_lane_is_read_by_itself(make, story):
    writer = make(n_lanes=3)
    for number, one in enumerate(writer.writers):
        story.play(one, 3 + number, "terminated")
    with opened(writer) as store:
        assert store.path == writer.path
        assert [len(lane) for lane in store.lanes] == [3, 4, 5]
        assert len(store) == 12
        assert store.lanes[1].ids.tolist() == [LANE_1 + row for row in range(4)]
        assert store.ids.tolist() == [n * LANE_1 + row for n in range(3) for row in range(3 + n)]
        assert [lane.path.name for lane in store.lanes] == [
            "lane-00000",
            "lane-00001",
            "lane-00002",
        ]
        assert [lane.name for lane in store.lanes] == ["0", "1", "2"]
        story.check(store)
        for name in (
            "frames",
            "actions",
            "rewards",
            "non_terminals",
            "resets",
            "ends",
            "step",
            "extras",
        ):
            with pytest.raises(SchemaError, match=r"has 3 lanes; .* use store\.lanes\[i\]"):
                getattr(store, name)
        assert repr(store) == f"<mmreplay.Store {writer.path} lanes=3 transitions=12>"


# ---------------------------------------------------------------- transitions


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_transitions_are_those_of_the_rows(make, story, codec):
    writer = make(
        frame=Field((3,), "uint8", codec, chunk=2, shard=4), extras={"x": Field((), "float32")}
    )
    for length in (5, 1, 0, 9, 3):
        story.play(writer, length, "terminated")
    story.play(writer, 4)
    expected = story.columns(writer.path, writer.schema)
    with opened(writer) as store:
        ids = store.ids
        assert ids.tolist() == story.transitions(writer.path)
        batch = store.transitions(ids[::-1], stack=2, n_step=1, gamma=0.5)
        rows = ids[::-1]
        assert np.array_equal(batch.observation[:, 1], expected["frames"][rows])
        assert np.array_equal(batch.action, expected["actions"][rows])
        assert np.array_equal(batch.reward, expected["rewards"][rows])
        assert np.array_equal(batch.extras["x"], expected["extras/x"][rows])
        begins = expected["resets"][rows] == 1
        assert np.array_equal(batch.observation[begins, 0], batch.observation[begins, 1])
        assert np.array_equal(batch.observation[~begins, 0], expected["frames"][rows[~begins] - 1])
        assert store.transitions(ids, out=store.transitions(ids)).id.tolist() == ids.tolist()
        story.check(store)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (7, r"id 7 \(lane 0, row 7\) is no transition: the rows are \[0, 7\)"),
        (8, r"id 8 \(lane 0, row 8\)"),
        (10**9, "row 1000000000"),
        (-1, "id -1: there is no lane -1"),
        (LANE_1, f"id {LANE_1}: there is no lane 1, of 1"),
        ((1 << 63) - 1, f"id {(1 << 63) - 1}"),
    ],
)
def test_an_id_that_is_no_transition_is_named(make, story, wrong, match):
    writer = make()
    story.play(writer, 3, "terminated")
    story.play(writer, 4)
    with opened(writer) as store:
        for ids in ([wrong], [0, 1, wrong, 2], np.array([4, wrong])):
            with pytest.raises(InvalidIdError, match=match):
                store.transitions(ids)
        assert store.transitions([0, 3, 6]).id.tolist() == [0, 3, 6]


def test_an_unsigned_id_is_named_as_it_was_given(make, story):
    writer = make()
    story.play(writer, 3)
    with opened(writer) as store:
        with pytest.raises(InvalidIdError, match=f"id {(1 << 64) - 5}"):
            store.transitions(np.array([0, (1 << 64) - 5], np.uint64))
        assert store.transitions(np.array([1, 2], np.uint64)).id.tolist() == [1, 2]
        assert store.transitions(np.array([1, 2], np.int8)).id.dtype == np.int64


@pytest.mark.parametrize("ids", [[0.0], 0, [[0, 1]], ["a"], None, [True, False], [[0], [0, 1]]])
def test_ids_are_integers_in_a_row(make, story, ids):
    writer = make()
    story.play(writer, 3)
    with opened(writer) as store, pytest.raises(SchemaError, match="ids"):
        store.transitions(ids)


def test_an_evicted_id_is_no_transition_any_more(make, story):
    writer = make(capacity=5)
    story.play(writer, 20)
    with opened(writer) as store:
        assert store.ids.tolist() == [15, 16, 17, 18, 19]
        with pytest.raises(
            InvalidIdError, match=r"id 14 \(lane 0, row 14\) was evicted: .* row .* is 15"
        ):
            store.transitions([14])


def test_padding_is_the_stores_unless_told_otherwise(make, story):
    writer = make(padding="zero")
    story.play(writer, 3)
    with opened(writer) as store:
        assert store.padding == "zero"
        assert (store.transitions([0], stack=3).observation[0, :2] == 0).all()
        assert (store.transitions([0], stack=3, padding="reset").observation[0] > 0).all()


def test_a_stack_past_the_context_is_refused_where_a_capacity_evicts(make, story):
    writer = make(capacity=50)
    story.play(writer, 200)
    writer.flush()
    with opened(writer) as store:
        assert store.transitions(store.ids, stack=65).observation.shape == (50, 65, 3)
        with pytest.raises(SchemaError, match="at most 65"):
            store.transitions(store.ids, stack=66)
    writer = make("all.zarr")
    story.play(writer, 100)
    with opened(writer) as store:
        assert store.transitions([99], stack=90).observation.shape == (1, 90, 3)


# ---------------------------------------------------------------- episodes and trajectories


def test_a_trajectory_is_one_episode_whole(make, story):
    writer = make(extras={"x": Field((2,), "float32")})
    story.play(writer, 3, "terminated")
    story.play(writer, 4, "truncated")
    story.play(writer, 2)
    expected = story.columns(writer.path, writer.schema)
    with opened(writer) as store:
        one = store.trajectory(1)
        assert len(one) == 4
        assert one.ids.tolist() == [3, 4, 5, 6]
        assert np.array_equal(one.observation[:4], expected["frames"][3:7])
        after = store.transitions([6], stack=None).next_observation[0]
        assert np.array_equal(one.observation[4], after)
        assert np.array_equal(one.action, expected["actions"][3:7])
        assert np.array_equal(one.reward, expected["rewards"][3:7])
        assert np.array_equal(one.extras["x"], expected["extras/x"][3:7])
        assert one.non_terminal.tolist() == [True] * 4
        assert (one.terminated, one.truncated) == (False, True)
        assert store.trajectory(0).non_terminal.tolist() == [True, True, False]
        running = store.trajectory(-1)
        assert (running.terminated, running.truncated, len(running)) == (False, False, 2)
        assert store.trajectory(-3).ids.tolist() == store.trajectory(0).ids.tolist()
        for number in (3, -4, 100):
            with pytest.raises(
                IndexError, match=f"trajectory {number}: there are 3 whole episodes"
            ):
                store.trajectory(number)
        assert store.trajectory(np.int64(-1)).ids.tolist() == running.ids.tolist()
        for given in ("2", 1.0, None, True, [0]):
            with pytest.raises(SchemaError, match="trajectory: expected a whole number; found "):
                store.trajectory(given)


def test_a_trajectory_that_was_evicted_in_part_is_not_whole(make, story):
    writer = make(capacity=10)
    for length in (4, 5, 6):
        story.play(writer, length, "terminated")
    with opened(writer) as store:
        assert store.ids.tolist() == list(range(5, 15))
        assert store.episodes["id"].tolist() == [9]
        assert store.trajectory(0).ids.tolist() == list(range(9, 15))


def test_a_trajectory_evicted_while_it_is_read_is_not_returned(make, story, monkeypatch):
    writer = make(capacity=100)
    story.play(writer, 50, "terminated")
    story.play(writer, 20)
    real = LiveLanes.episodes
    meanwhile = iter([True])

    def episodes(self, **given):
        found = real(self, **given)
        if next(meanwhile, False):
            for _ in range(10):
                story.play(writer, 50)
            writer.flush()
        return found

    monkeypatch.setattr(LiveLanes, "episodes", episodes)
    with opened(writer) as store:
        found = store.trajectory(0)
        expected = story.columns(writer.path, writer.schema)
        rows = found.ids
        assert rows[0] > 70
        assert np.array_equal(found.reward, expected["rewards"][rows])
        assert np.array_equal(found.observation[:-1], expected["frames"][rows])


# ---------------------------------------------------------------- following a writer


def test_len_ids_and_sampling_follow_a_live_store_by_themselves(make, story, lz4):
    writer = make(**lz4)
    with opened(writer) as store:
        for step in range(40):
            story.play(writer, 1, reset=step % 13 == 0)
            assert len(store) == len(story.transitions(writer.path))
            assert store.ids.tolist() == story.transitions(writer.path)
            assert store.lanes[0].rows == writer.rows
            assert len(store.rewards) == writer.rows
        story.check(store)


def test_sessions_may_end_and_begin_under_a_store(make, story, kill, lz4):
    writer = make(**lz4)
    story.play(writer, 5, "terminated")
    with opened(writer) as store:
        for how in ("close", "close", "kill", "kill", "close"):
            if how == "kill":
                kill(writer)
            else:
                writer.close()
                story.copy(writer.path, writer.path)
                story.check(store)
            writer = make(append=True)
            story.play(writer, 9)
            story.check(store.refresh())
            assert store.ids.tolist() == story.transitions(writer.path)


def test_a_closed_store_is_as_it_was_until_it_is_refreshed(make, story):
    writer = make()
    story.play(writer, 5)
    writer.close()
    with opened(writer) as store:
        writer = make(append=True)
        story.play(writer, 5)
        assert len(store) == 5
        assert store.refresh() is store
        assert len(store) == 10


@pytest.mark.parametrize("by_itself", [False, True])
def test_lanes_that_are_added_are_seen_within_a_second_and_ids_stay(
    make, story, monkeypatch, by_itself
):
    first, other = make("a.zarr", lane="actor-0"), make("b.zarr")
    story.play(first, 3)
    story.play(other, 4)
    with Store([first.path.parent, other.path]) as store:
        known = store.ids.tolist()
        before = store.transitions(known, stack=None).observation
        added = make("a.zarr", lane="actor-1", append=True)
        story.play(added, 5)
        assert store.ids.tolist() == known
        if by_itself:
            monkeypatch.setattr(time, "monotonic", lambda: 1e12)  # a second later
            assert len(store) == len(known) + 5
        else:
            assert store.refresh() is store
        assert [lane.path for lane in store.lanes] == [first.path, other.path, added.path]
        assert store.ids.tolist() == [*known, *(2 * LANE_1 + row for row in range(5))]
        assert np.array_equal(store.transitions(known, stack=None).observation, before)
        story.check(store)
        story.play(added, 2)
        assert len(store) == 14


def test_rows_appended_by_another_process_are_seen(make, story, tmp_path):
    writer = make()
    story.play(writer, 5)
    writer.close()
    code = """
import sys, numpy as np, mmreplay
writer = mmreplay.create(sys.argv[1], append=True, flush_s=0)
print(writer.rows, flush=True)
for line in sys.stdin:
    writer.reset(np.full(3, 9, np.uint8))
    writer.step(4, 2.5, np.full(3, 8, np.uint8), True)
    print(writer.rows, flush=True)
writer.close()
"""
    with (
        opened(writer) as store,
        subprocess.Popen(
            [sys.executable, "-c", code, str(writer.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "5\n"
            assert len(store.refresh()) == 5
            for number in (1, 2):
                process.stdin.write("go\n")
                process.stdin.flush()
                assert process.stdout.readline() == f"{5 + number}\n"
                assert len(store) == 5 + number
                assert store.ids[-1] == 4 + number
                assert store.rewards[-1] == 2.5
                assert store.frames[-1].tolist() == [9, 9, 9]
                last = store.transitions(store.ids[-1:], stack=None)
                assert last.next_observation.tolist() == [[8, 8, 8]]
            process.stdin.close()
            assert process.wait(30) == 0
            assert len(store) == 7
            assert store.live.readers[0].is_closed
        finally:
            process.kill()


def test_a_batch_is_right_though_its_session_ended_in_the_middle(make, story, lz4):
    writer = make(**lz4)
    story.play(writer, 30)
    expected = story.columns(writer.path, writer.schema)["frames"]
    with opened(writer) as store:
        gatherer = store.live.gatherer(Settings(stack=None))
        calls = []

        def draw(index):
            calls.append(index)
            if len(calls) == 1:
                writer.close()
            return np.array([3, 29, 17])

        batch = store.live.gather(draw, gatherer)
        assert len(calls) == 2
        assert np.array_equal(batch.observation, expected[[3, 29, 17]])


def test_a_store_that_changes_while_it_is_opened_is_opened_again(make, story, monkeypatch):
    writer = make()
    story.play(writer, 5)
    real, left = raw_column.RawColumn.refresh, [3]

    def refresh(self):
        if left[0]:
            left[0] -= 1
            raise EvictedError("gone")
        real(self)

    monkeypatch.setattr(raw_column.RawColumn, "refresh", refresh)
    with opened(writer) as store:
        story.check(store)
    left[0] = 10**6
    with pytest.raises(
        CorruptStoreError, match="the store changed 100 times while it was being read"
    ):
        opened(writer)


@pytest.mark.parametrize("times", [1, 100])
def test_files_evicted_during_a_look_up_do_not_make_the_store_forget_what_it_knows(
    make, story, monkeypatch, times
):
    writer = make()
    story.play(writer, 5)
    with opened(writer) as store:
        known = store.live._joined
        real, left = raw_column.RawColumn.refresh, [times]

        def refresh(self):
            if left[0]:
                left[0] -= 1
                raise EvictedError("gone")
            real(self)

        story.play(writer, 5)
        with monkeypatch.context() as patch:
            patch.setattr(raw_column.RawColumn, "refresh", refresh)
            assert len(store)
        # One that never comes to an end is a store that is another by now.
        assert (store.live._joined is known) is (times == 1)
        story.check(store)


# ---------------------------------------------------------------- the end of it


def test_a_closed_store_says_so(make, story):
    writer = make()
    story.play(writer, 3)
    store = opened(writer)
    view, lane, gatherer = store.rewards, store.lanes[0], store.live.gatherer(Settings())
    store.close()
    store.close()
    for call in (
        lambda: len(store),
        lambda: store.ids,
        lambda: store.episodes,
        store.refresh,
        lambda: store.transitions([0]),
        lambda: store.trajectory(0),
        lambda: store.live.gather_ids([0], gatherer),
        lambda: view[0],
        lambda: view[:],
        lambda: len(view),
        lambda: view.shape,
        lambda: np.asarray(view),
        lambda: list(view),
        lambda: store.rewards[0],
        lambda: lane.ids,
        lambda: len(lane),
    ):
        with pytest.raises(ClosedError, match="this store was closed; open it again"):
            call()
    assert "transitions=3" in repr(store)


def test_a_dropped_store_is_gone_at_once(make, story):
    # A cycle would keep its maps, and the blocks of evicted files, until the collector runs.
    writer = make()
    story.play(writer, 20)
    gc.disable()
    try:
        store = opened(writer)
        batch = store.transitions(store.ids)
        column = weakref.ref(store.live.columns["rewards"])
        known = weakref.ref(store)
        del store
        assert known() is None
        assert column() is None
        assert len(batch) == 20
    finally:
        gc.enable()


def test_the_same_store_is_a_zarr_group(make, story):
    writer = make()
    story.play(writer, 5)
    writer.close()
    with opened(writer) as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        group = store.zarr()
        assert np.array_equal(group["rewards"][:], store.rewards[:])
        assert group.attrs["mmreplay"]["rows"] == 5


def test_info_is_the_dict_that_the_command_prints(make, story):
    writer = make()
    story.play(writer, 5)
    with opened(writer) as store:
        info = store.info()
    assert (info["rows"], info["transitions"], info["state"]) == (5, 5, "live")
