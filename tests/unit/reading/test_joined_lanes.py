"""The lanes of a store as one: numbered on, followed together, with their episodes."""

import contextlib

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Gaps, Index
from mmreplay.episode_index.finals import LaneFinals
from mmreplay.errors import CorruptStoreError, InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.store import Store
from tests.support.oracle.checks import check_store
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair, of_writer

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
        assert found["id"].tolist() == [0, 3, 5, 9, LANE_1]
        assert found["length"].tolist() == [3, 2, 4, 1, 5]
        assert found["terminated"].tolist() == [True, False, False, False, True]
        assert found["truncated"].tolist() == [False, True, True, False, False]
        expected = [sum(story.reward(row + n) for n in range(length)) for row, length in
                    ((0, 3), (3, 2), (5, 4), (9, 1), (0, 5))]  # fmt: skip
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
        assert first.frames[197].max() == 7
        for n in range(60):
            lanes.writers[1].step(0, 0.0, images[n, 0], False, False)
            assert len(store) == 80
        shown = first.frames[:]
        assert first.base > before
        assert [int(one.max()) for one in shown] == [0] * first.base + [7] * (198 - first.base)


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
        for kind, name in ((Index, "extend"), (Gaps, "oldest"), (LaneFinals, "take")):
            play()
            patch = pytest.MonkeyPatch()
            patch.setattr(kind, name, interrupt)
            with contextlib.suppress(KeyboardInterrupt):
                len(store)
            patch.undo()
            play()
            with opened(writer) as again:
                assert store.ids.tolist() == again.ids.tolist()
                assert store.episodes.tolist() == again.episodes.tolist()


# ---------------------------------------------------------------- many environments


@pytest.mark.parametrize("kind", ["raw", "lz4", "dict"])
@pytest.mark.parametrize("capacity", [None, 100])
@pytest.mark.parametrize("mode", ["at once", "next step", "any"])
def test_a_lane_of_many_environments_is_followed_as_the_model_has_it(
    tmp_path, kinds, kind, capacity, mode
):
    settings = [{"stack": 3, "n_step": n, "padding": p} for n, p in ((1, "reset"), (3, "zero"))]
    layout = Layout(
        kinds[kind],
        Field((), "int64"),
        {"x": Field((2,), "float32")},
        environments=3,
        capacity=capacity,
    )
    model = layout.model()
    with layout.create(tmp_path / "s.zarr") as writer:
        pair = Pair(writer, model, np.random.default_rng(0))
        with mmreplay.open(tmp_path / "s.zarr") as store:
            for n_steps in (1, 2, 30, 60, 60):
                pair.play(n_steps, mode=mode)
                check_store(store, model, settings=settings, most=60)
                writer.flush()
                check_store(store, model, most=20)
    model.end_session()
    with mmreplay.open(tmp_path / "s.zarr") as store:
        check_store(store, model, settings=settings)


def test_lanes_with_and_without_an_axis_of_environments_are_read_as_one(make, story):
    writers = [make("a.zarr"), make("b.zarr", lanes=1), make("c.zarr", lanes=2)]
    story.play(writers[0], 5, "truncated")
    pairs = [of_writer(writer, seed=n) for n, writer in enumerate(writers[1:])]
    for pair in pairs:
        pair.play(20, mode="next step")
    with contextlib.ExitStack() as stack:
        alone = [stack.enter_context(opened(writer)) for writer in writers]
        store = stack.enter_context(Store([writer.path for writer in writers]))
        for _ in range(2):
            ids = [one.ids + (n << LANE_SHIFT) for n, one in enumerate(alone)]
            assert store.ids.tolist() == np.concatenate(ids).tolist()
            batch = store.transitions(store.ids, stack=3, n_step=2)
            parts = [one.transitions(one.ids, stack=3, n_step=2) for one in alone]
            for name in ("observation", "next_observation", "reward", "truncated", "action"):
                expected = np.concatenate([getattr(part, name) for part in parts])
                assert getattr(batch, name).tolist() == expected.tolist(), name
            assert store.episodes["return"].tolist() == [
                total for one in alone for total in one.episodes["return"].tolist()
            ]
            assert [lane.rewards.ndim for lane in store.lanes] == [1, 2, 2]
            story.play(writers[0], 9)
            for pair in pairs:
                pair.play(11)
        absent = int(np.flatnonzero(store.lanes[2].step[:].reshape(-1) == 0)[0])
        where = rf"lane 2, row {absent // 2}, environment {absent % 2}"
        with pytest.raises(InvalidIdError, match=rf"\({where}\) is no transition: .* left out"):
            store.transitions([absent + (2 << LANE_SHIFT)])


# ---------------------------------------------------------------- the newest observation


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_reset_during_a_read_of_the_newest_observation_makes_it_read_again(make, lanes):
    """It writes over the pending row, whose observation is among the final ones by then."""
    n = () if lanes is None else (lanes,)
    writer = make(lanes=lanes)

    def frame(value):
        return np.full((*n, 3), value, "uint8")

    def reset(columns, places, out):
        calls.append(1)
        if len(calls) == 1:
            writer.reset(frame(9))
        return fetch(columns, places, out)

    none = np.zeros(n, bool)
    writer.reset(frame(1))
    writer.step(np.zeros(n, "int64"), np.zeros(n), frame(2), none, none)
    with opened(writer) as store:
        gatherer, calls = store.live.gatherer(Settings(stack=None)), []
        fetch, gatherer.fetch = gatherer.fetch, reset
        batch = store.live.gather(lambda index: index.ids(), gatherer)
        assert len(calls) == 2
        assert (batch.next_observation == 2).all()
        assert batch.truncated.all()


def test_a_final_observation_that_is_lost_is_damage(make, story):
    writer = make()
    story.play(writer, 5, "truncated")
    story.play(writer, 5)
    writer.close()
    spec = writer.files.finals.specs["id"]
    with (writer.path / "finals" / "id" / spec.key(0)).open("r+b") as file:
        file.write(np.array([3], "<i8").tobytes())
    with opened(writer) as store:
        assert store.transitions([1, 2]).reward.size
        with pytest.raises(CorruptStoreError, match=r"in row 4, .* has no final observation; run"):
            store.transitions([4])
