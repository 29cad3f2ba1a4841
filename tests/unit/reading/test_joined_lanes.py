"""The lanes of a store as one: numbered on, followed together, with their episodes."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.batches.settings import Settings
from mmreplay.errors import CorruptStoreError, SchemaError
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
