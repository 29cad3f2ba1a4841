"""The lanes of a store as one: numbered on, followed together, with their episodes."""

import contextlib

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.episode_index import RowIndex, TickIndex
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.store import Store

pytestmark = pytest.mark.usefixtures("quick_disk")

LANE_1 = 1 << LANE_SHIFT


def opened(writer):
    return mmreplay.open(writer.path)


# ---------------------------------------------------------------- several stores as one


def test_lanes_of_several_stores_are_numbered_on(make, story):
    first, second = make("a.zarr"), make("b.zarr", n_lanes=2, action=Field((), "int64", chunk=4))
    story.play(first, 3)
    story.play(second, 4)
    lanes = [first.path, *(one.path for one in second.writers)]
    with Store(lanes) as store:
        assert len(store) == 11
        assert store.path == first.path
        story.check(store)
        batch = store.transitions(store.ids, stack=2)
        assert batch.id.tolist() == store.ids.tolist()


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (
            {"frame": Field((4,), codec="raw")},
            r"found frames \(4,\) uint8 and not \(3,\) uint8; load them apart",
        ),
        ({"action": Field((2,), "int64")}, r"found actions \(2,\) int64 and not \(\) int64;"),
        ({"extras": {"x": Field()}}, r"found extras/x \(\) uint8 and not none;"),
        (
            {"frame": Field((3,), codec="lz4")},
            r"a\.zarr/frames is raw, \S*b\.zarr/frames is compressed \(lz4\)",
        ),
    ],
)
def test_stores_whose_rows_differ_are_not_one(make, other, match):
    first, second = make("a.zarr"), make("b.zarr", **other)
    with pytest.raises(SchemaError, match=match):
        Store([first.path, second.path])


def test_raw_and_compressed_columns_are_named_in_either_order(make, lz4):
    raw, packed = make("a.zarr"), make("b.zarr", **lz4)
    both = rf"{raw.path}/frames is raw, {packed.path}/frames is compressed \(lz4\)"
    for paths in ([raw.path, packed.path], [packed.path, raw.path]):
        with pytest.raises(SchemaError, match=both):
            Store(paths)


# ---------------------------------------------------------------- following


def test_the_newest_row_reads_as_a_final_row_while_its_step_is_on_the_way(make, story):
    writer = make(extras={"x": Field((2,), "float32")})
    with opened(writer) as store:
        for life_lost in (False, True):
            story.play(writer, 3)
            story.step(writer, life_lost=life_lost)
            newest = writer.rows - 1
            for name, value in (
                ("actions", 7),
                ("rewards", 7),
                ("extras/x", 7),
                ("non_terminals", life_lost),
            ):
                window = writer._chunks.columns[name].new
                window.rows[newest - window.start] = value
            story.check(store)
        story.reset(writer)
        window = writer._chunks.columns["non_terminals"].new
        window.rows[writer.rows - 1 - window.start] = 0
        story.check(store)


def test_a_reader_far_behind_a_capacity_catches_up(make, story, lz4):
    writer = make(**lz4, capacity=20)
    story.play(writer, 30)
    with opened(writer) as store:
        assert len(store) == 20
        for _ in range(3):
            story.play(writer, 400, reset=False)
            writer.flush()
            assert store.ids.tolist() == story.transitions(writer.path)[-20:]
            story.check(store, start=store.lanes[0].base)


# ---------------------------------------------------------------- episodes


def test_episodes_are_the_whole_ones_in_the_order_of_lanes_and_rows(make, story):
    writer = make(n_lanes=2)
    first, second = writer.writers
    for length, end in ((3, "terminated"), (0, ""), (2, "truncated"), (4, "")):
        story.play(first, length, end)
    story.play(first, 1)
    story.play(second, 5, "terminated")
    with opened(writer) as store:
        found = store.episodes
        assert found["id"].tolist() == [0, 5, 8, 13, LANE_1]
        assert found["length"].tolist() == [3, 2, 4, 1, 5]
        assert found["terminated"].tolist() == [True, False, False, False, True]
        assert found["truncated"].tolist() == [False, True, True, False, False]
        expected = [sum(story.reward(row + n) for n in range(length)) for row, length in
                    ((0, 3), (5, 2), (8, 4), (13, 1), (0, 5))]  # fmt: skip
        assert found["return"].tolist() == expected
    writer.close()
    with opened(writer) as store:
        assert store.episodes["truncated"].tolist() == [False, True, True, True, False]


def test_a_life_lost_in_mid_episode_ends_no_episode(make, story):
    writer = make()
    story.play(writer, 2)
    story.step(writer, life_lost=True)
    story.play(writer, 2, "truncated", reset=False)
    story.reset(writer)
    with opened(writer) as store:
        assert store.episodes[["length", "terminated", "truncated"]].tolist() == [(5, False, True)]


def test_rows_that_a_flush_evicts_are_gone_although_their_lane_does_not_grow(make):
    """Another lane that grows maps the files anew, without them: they read as zeros, and as gone."""
    frame = Field((64, 64), codec="raw", chunk=16)  # whole pages
    lanes = make("s.zarr", n_lanes=2, frame=frame, capacity=80)
    images = np.full((400, 2, 64, 64), 7, np.uint8)
    over = np.zeros(2, bool)
    lanes.reset(images[0])
    for n in range(1, 196):
        lanes.step([0, 0], [0, 0], images[n], over, over)
    for writer in lanes.writers:
        writer.flush()
    for _ in range(3):  # too few to evict a chunk file before the next flush
        lanes.step([0, 0], [0, 0], images[0], over, over)
    with mmreplay.open(lanes.path) as store:
        first = store.lanes[0]
        before = first.base
        lanes.flush()
        assert first.frames[198].max() == 7
        for n in range(60):
            lanes.writers[1].step(0, 0.0, images[n, 0], False, False)
            assert len(store) == 80
        shown = first.frames[:]
        assert first.base > before
        assert [int(one.max()) for one in shown] == [0] * first.base + [7] * (199 - first.base)


@pytest.mark.parametrize("lanes", [None, 2])
def test_rows_whose_taking_was_interrupted_are_taken_again(make, lanes):
    """Else a reset among them would never be seen, and batches would cross episodes."""
    n = () if lanes is None else (lanes,)
    writer = make(lanes=lanes, frame=Field((2,)), action=Field((), "int64"))
    frame, none = np.zeros((*n, 2), "uint8"), np.zeros(n, bool)

    def play():
        writer.reset(frame)
        for over in (none, ~none):
            writer.step(np.zeros(n, "int64"), np.ones(n), frame, over, none)

    def interrupt(*_):
        patch.undo()
        raise KeyboardInterrupt

    play()
    with opened(writer) as store:
        for kind in (RowIndex, TickIndex):
            play()
            for name in ("extend", "_recount" if kind is RowIndex else "_take"):
                patch = pytest.MonkeyPatch()
                patch.setattr(kind, name, interrupt)
                with contextlib.suppress(KeyboardInterrupt):
                    len(store)
                patch.undo()
                play()
                with opened(writer) as again:
                    assert store.ids.tolist() == again.ids.tolist()
