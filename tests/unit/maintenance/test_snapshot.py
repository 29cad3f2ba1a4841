"""Snapshots: a closed copy of a store as it was at one moment, whatever becomes of the store."""

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    Field,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    snapshot,
    verify,
)
from mmreplay.system import platform
from tests.support.disks.trees import names
from tests.support.oracle import checks, disk
from tests.support.writers import go_on

ACTION = Field((), "int64", chunk=8)
EXTRAS = {"log_prob": Field((), "float32", chunk=8)}
LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)


@pytest.fixture
def writer(make, kinds):
    return make(frame=kinds["dict"], action=ACTION, extras=EXTRAS, n_lanes=2)


def remember(story, source, target):
    """Expect of the lanes of `target` what those of `source` hold now."""
    for lane in sorted(source.glob("lane-*")) or [source]:
        story.copy(lane, target / lane.name if lane != source else target)


def check(story, target):
    report = verify(target)
    assert (report.findings, report.warnings, report.state) == ([], [], "closed")
    with mmreplay.open(target) as store:
        story.check(store)


def test_a_snapshot_holds_what_the_store_holds(writer, story, tmp_path):
    story.play_every_end(writer)
    target = tmp_path / "copy.zarr"
    remember(story, writer.path, target)
    seen = []
    made = snapshot(writer.path, target, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
    check(story, target)
    with mmreplay.open(writer.path) as source, mmreplay.open(target) as copy:
        assert np.array_equal(source.ids, copy.ids)
        n_lanes = len(source.lanes)
    assert (made.path, made.lanes, made.rows) == (str(target), n_lanes, 33 * n_lanes)
    assert made.transitions == 33 * n_lanes
    assert made.own_bytes > 0
    assert names(tmp_path) == ["copy.zarr", "store.zarr"]


@pytest.mark.parametrize("array", ["frames", "rewards"])
def test_a_closed_store_without_its_checksums_is_not_copied(make, story, tmp_path, kinds, array):
    writer = make(frame=kinds["lz4"], action=ACTION, extras=EXTRAS)
    story.play_every_end(writer)
    writer.close()
    (writer.path / "checksums" / array / "c.0").unlink()
    with pytest.raises(
        CorruptStoreError, match="mmreplay repair"
    ):  # the copy would get checksums that fit
        snapshot(writer.path, tmp_path / "copy.zarr")
    assert not (tmp_path / "copy.zarr").exists()


def test_a_power_cut_after_a_snapshot_does_not_change_it(
    writer, story, kill, tmp_path, monkeypatch
):
    """The store goes back to its last flush, and writes other rows to the same places."""
    story.play(writer, 9, "terminated")
    writer.flush()
    lanes = {path: len(rows) for path, rows in story.lanes.items()}
    story.play(writer, 25, "terminated")
    target = tmp_path / "copy.zarr"
    remember(story, writer.path, target)
    snapshot(writer.path, target)
    kill(writer)
    monkeypatch.setattr(platform, "boot_id", lambda: b"another boot id.")
    with go_on(writer.path) as again:
        for one in getattr(again, "writers", (again,)):
            assert one.rows == lanes[one.path]  # the cut has taken effect
            del story.lanes[one.path][one.rows :]
            for _ in range(3):
                story.play(one, 4, "terminated")
    check(story, target)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_writer_that_seals_and_evicts_during_a_snapshot_does_not_disturb_it(
    make, story, tmp_path, kinds
):
    writer = make(frame=kinds["dict"], action=ACTION, extras=EXTRAS, capacity=100)
    story.play(writer, 150, "terminated")
    writer.flush()
    bases = [writer.base]

    def write_some(*_):
        """While the files are copied, and a few times only: a snapshot may begin again 20 times."""
        if len(bases) < 7:
            story.play(writer, 37, "terminated")
            story.play(writer, 37, "terminated")
            writer.flush()
            bases.append(writer.base)

    target = tmp_path / "copy"
    snapshot(writer.path, target, write_some)
    assert len(set(bases)) > 3
    assert verify(target).findings == []
    with mmreplay.open(target) as store:
        lane = store.lanes[0]
        assert lane.base > bases[0]  # it was begun again
        story.copy(writer.path, target, lane.rows)
        story.check(store, start=lane.base)


# ---------------------------------------------------------------- refused


def test_an_existing_target_is_refused_and_stays(make, tmp_path):
    writer = make()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "folder", "link"):
        target = tmp_path / name
        with pytest.raises(StoreExistsError, match="already exists; choose another path"):
            snapshot(writer.path, target)
    assert (tmp_path / "file").read_text() == "mine"


def test_targets_where_nothing_can_be_made_are_refused(make, tmp_path):
    writer = make()
    with pytest.raises(StoreNotFoundError, match="no such directory"):
        snapshot(writer.path, tmp_path / "nowhere" / "copy.zarr")
    with pytest.raises(StoreNotFoundError, match="there is no store here"):
        snapshot(tmp_path / "nothing.zarr", tmp_path / "copy.zarr")
    other = make("other.zarr")
    with pytest.raises(SchemaError, match=r"lies within the store .*other\.zarr"):
        snapshot(writer.path, other.path / "frames" / "copy.zarr")


# ---------------------------------------------------------------- several environments in a lane


def assert_matches(path, model):
    """A closed store is what a model says; the model learns what is evicted."""
    with mmreplay.open(path) as store:
        checks.check_store(store, model)
    disk.check_closed(path, model)


@pytest.mark.parametrize(
    ("state", "frame", "n", "capacity"),
    [
        ("closed", LZ4, 5, 80),
        ("live", LZ4, 5, 80),
        ("live", Field((3,), "float32", "raw", chunk=8), 5, None),
        ("live", LZ4, None, None),
        ("crashed", LZ4, 5, None),
    ],
)
def test_lanes_are_copied_as_of_one_moment(
    vector, ended, kill, tmp_path, state, frame, n, capacity
):
    pair = vector(n=n, frame=frame, capacity=capacity)
    for _ in range(2):
        pair.play(50, mode="any")
        pair.writer.flush()
    pair.play(7, mode="any")
    writer, expected = pair.writer, ended(pair)
    if state == "closed":
        writer.close()
    if state == "crashed":
        kill(writer)
    made = snapshot(writer.path, tmp_path / "copy.zarr")
    if state == "live":
        pair.play(20, mode="any")
        writer.close()
    assert (made.lanes, made.shared_bytes > 0) == (1, True)
    assert (made.rows < len(expected.lanes[0].rows)) == (capacity is not None)
    report = verify(tmp_path / "copy.zarr")
    assert (report.findings, report.warnings, report.state) == ([], [], "closed")
    assert_matches(tmp_path / "copy.zarr", expected)
    assert verify(writer.path).findings == []


def test_a_reset_after_the_newest_step_does_not_reach_the_snapshot(vector, ended, tmp_path):
    """It overwrites the pending row, which was the observation after that step."""
    pair = vector()
    pair.play(20, end=0.0)
    pair.reset([1, 3])
    expected = ended(pair)
    snapshot(pair.writer.path, tmp_path / "copy.zarr")
    assert_matches(tmp_path / "copy.zarr", expected)
