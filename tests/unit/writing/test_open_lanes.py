"""Opening a store for writing: its one lane, or a lane by name."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    LockedError,
    SchemaError,
)
from tests.support.disks import faults
from tests.support.disks.trees import contents
from tests.support.writers import ACTION, FRAME, check

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory, story_of_module):
    """A closed store and one whose writer was killed, each with all that stands in it."""
    found = []
    for state in ("closed", "killed"):
        writer = mmreplay.create(
            tmp_path_factory.mktemp(state) / "store.zarr",
            Field((3,), "uint8", "lz4", chunk=4, shard=8),
            Field((), "int64", chunk=8),
            extras={"x": Field((), "float32")},
            flush_s=0,
        )
        story_of_module.play(writer, 100, "truncated")
        writer.close()
        if state == "killed":
            writer = mmreplay.create(writer.path, append=True, flush_s=0)
            faults.kill(writer)
        check(story_of_module, writer)
        found.append((writer.path, contents(writer.path)))
    return found


def test_what_does_not_match_is_refused_and_the_store_is_not_touched(untouched):
    for wrong in (
        {"frame": Field((4,))},
        {"frame": Field((3,), "int8")},
        {"action": Field((), "int32")},
        {"extras": {}},
        {"extras": {"y": Field((), "float32")}},
        {"reward_dtype": "float64"},
        {"codec": "zstd"},
        {"frame": Field((3,), codec="raw")},
        {"lanes": 2},
        {"lane": "me"},
        {"padding": "edge"},
        {"metadata": {"x": {1, 2}}},
    ):
        for path, before in untouched:
            with pytest.raises(SchemaError):
                mmreplay.create(path, **{"append": True, "flush_s": 0, "capacity": 5, **wrong})
            assert contents(path) == before


@pytest.mark.parametrize(
    "given",
    [
        {"frame": Field((3,), "uint8")},
        {"frame": Field((3,), "uint8", "lz4"), "action": ACTION},
        {"frame": Field((3,), "uint8", chunk=16, shard=64)},
        {"codec": "lz4"},
        {"extras": {"x": Field((), "float32")}},
        {"reward_dtype": "float32"},
    ],
    ids=str,
)
def test_what_matches_is_accepted_and_the_layout_stays(make, story, lz4, given):
    writer = make(**lz4, extras={"x": Field((), "float32")})
    story.play(writer, 20, "truncated")
    writer.close()
    writer = make(append=True, **given)
    frames = writer.files.rows.specs["frames"]
    assert (frames.inner_rows, frames.chunk_rows) == (4, 8)
    story.play(writer, 5, "truncated")
    check(story, writer)


@pytest.mark.parametrize("given", [{}, {"lanes": 2}])
@pytest.mark.parametrize("kind", [mmreplay.create, mmreplay.ReplayBuffer])
def test_a_store_of_several_lanes_is_not_written_without_a_name(make, kind, given):
    path = make(n_lanes=2).path
    settings = {"append": True} if kind is mmreplay.create else {"stack": None}
    with pytest.raises(SchemaError, match=r"several lanes; name the one to write \(lane=...\)"):
        kind(path, **settings, **given)


def test_the_same_name_opens_the_same_lane_again(make, story):
    first = make(lane="actor-0", capacity=100)
    second = make(append=True, lane="actor-1")
    story.play(first, 5, "truncated")
    story.play(second, 7, "truncated")
    assert [one.path.name for one in (first, second)] == ["lane-00000", "lane-00001"]
    first.close()
    second.close()
    again = make(append=True, lane="actor-0")
    assert again.path == first.path
    story.play(again, 3, "truncated")
    with mmreplay.open(first.path.parent) as store:
        story.check(store)
        assert [lane.name for lane in store.lanes] == ["actor-0", "actor-1"]
        assert len(store) == 15


def test_a_named_lane_has_a_capacity_of_its_own(make):
    first = make(lane="a", capacity=100, padding="zero", metadata={"seed": 1})
    second = make(append=True, lane="b")
    third = make(append=True, lane="c", capacity=7, metadata={"seed": 2})
    assert [one.metadata["capacity"] for one in (first, second, third)] == [100, 100, 7]
    assert [one.metadata["padding"] for one in (first, second, third)] == ["zero"] * 3
    assert [one.metadata["env"]["seed"] for one in (first, second, third)] == [1, 1, 2]


def test_a_lane_that_somebody_writes_cannot_be_opened_twice(make, impatient):
    make(lane="a")
    with pytest.raises(LockedError, match="open for writing already, in this process"):
        make(append=True, lane="a")
    make(append=True, lane="b")


def test_fields_that_are_left_out_are_the_stores(make, story):
    make(lane="a", extras={"x": Field((), "float32")}, reward_dtype="float64")
    for name, given in (
        ("b", {}),
        ("c", {"frame": FRAME, "action": ACTION}),
        ("d", {"frame": FRAME}),
    ):
        writer = make(append=True, lane=name, **given)
        assert writer.schema.reward_dtype == np.float64
        assert list(writer.schema.extras) == ["x"]


def test_a_lane_that_does_not_match_is_refused_and_not_made(make):
    path = make(lane="a").path.parent
    for wrong in (
        {"frame": Field((4,)), "action": ACTION},
        {"frame": Field((4,))},
        {"action": Field((), "int8")},
        {"extras": {"y": Field()}},
        {"reward_dtype": "float64"},
        {"codec": "lz4"},
    ):
        with pytest.raises(SchemaError, match="expected"):
            make(append=True, lane="b", **wrong)
        assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "zarr.json"]


def test_a_store_of_one_lane_takes_no_names(make):
    make("one.zarr").close()
    with pytest.raises(SchemaError, match="has one lane, without a name; leave out lane="):
        make("one.zarr", append=True, lane="a")


def test_files_of_a_lane_that_was_never_finished_are_removed(make):
    path = make(lane="a").path.parent
    (path / ".lane-00001.tmp" / "frames").mkdir(parents=True)
    make(append=True, lane="b")
    assert sorted(one.name for one in path.iterdir()) == ["lane-00000", "lane-00001", "zarr.json"]


def test_a_name_that_no_lane_can_have_is_refused(make, tmp_path):
    for name in ("", "x" * 256, 5, b"a"):
        with pytest.raises(SchemaError, match="lane: expected a name of 1 to 255 letters"):
            make(lane=name)
        assert list(tmp_path.iterdir()) == []
