"""A store read: arrays by row id, transitions, trajectories; and how it follows its writer."""

import gc
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
from mmreplay.reading import live_lanes
from mmreplay.reading.store import Store
from mmreplay.storage import raw_column
from mmreplay.storage.chunk_files import EvictedError

pytestmark = pytest.mark.usefixtures("quick_disk")

LANE_1 = 1 << LANE_SHIFT


def opened(writer):
    return mmreplay.open(writer.path)


# ---------------------------------------------------------------- transitions


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (7, r"id 7 \(lane 0, row 7\) is not a transition: rows are 0 to 6"),
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


# ---------------------------------------------------------------- following a writer


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


def test_a_store_that_changes_while_it_is_opened_is_opened_again(make, story, monkeypatch):
    writer = make()
    story.play(writer, 5)
    monkeypatch.setattr(live_lanes, "_ATTEMPTS", 5)
    real, left = raw_column.RawColumn.view, [3]

    def view(self, *rows):
        if left[0]:
            left[0] -= 1
            raise EvictedError("gone")
        return real(self, *rows)

    monkeypatch.setattr(raw_column.RawColumn, "view", view)
    with opened(writer) as store:
        story.check(store)
    left[0] = 10**6
    with pytest.raises(
        CorruptStoreError, match="the store changed 5 times while it was being read"
    ):
        opened(writer)


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
        lambda: store.live.gather(store.live.valid_ids([0]), gatherer),
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
