"""What `repair` says of rows and side data that it keeps, or cannot keep."""

import shutil

import numpy as np
import pytest

from mmreplay import (
    Field,
    PrioritizedReplayBuffer,
    repair,
    verify,
)
from mmreplay.storage import lane_metadata
from tests.support.disks.trees import flip
from tests.support.tampering.repairs import check_kept

ACTION = Field((), "int64", chunk=8)
ROWS = 85


def note(array, which="its rows"):
    return (
        f"{array}: {which} had no checksum any more; they are kept as they stand, and may not be "
        f"what was written"
    )


@pytest.mark.parametrize(
    ("array", "how"), [("rewards", "directory"), ("frames", "file"), ("rewards", "cut")]
)
def test_rows_that_lost_their_checksums_are_kept_and_reported(closed_store, array, how):
    path, original = closed_store("lz4"), closed_store("lz4", name="original.zarr")
    file = next((path / "checksums" / array).rglob("c.0"))
    if how == "directory":
        shutil.rmtree(path / "checksums" / array)
    elif how == "file":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:8])
    done = repair(path)
    assert (done.kept, done.lost, done.notes) == (ROWS, 0, [note(array)])
    assert len(check_kept(path, original)) == 80
    assert repair(path).changed is False


def test_only_kept_rows_without_a_checksum_are_reported(closed_store):
    path = closed_store("lz4")
    for array, chunks in (("actions", (0, 2, 3, 8)), ("frames", (1,)), ("rewards", (7,))):
        with (path / "checksums" / array / "c.0").open("r+b") as file:
            for chunk in chunks:
                file.seek(4 * chunk)
                file.write(bytes(4))
    flip(path / "resets" / "c.6")  # rows 48 to 55
    done = repair(path)
    assert done.kept == 48
    assert done.notes == [note("actions", "rows 0 to 7, 16 to 31"), note("frames", "rows 8 to 15")]
    assert list(done.lanes[0].notes) == done.notes


def test_a_crashed_lane_that_lost_its_checksums(killed_store, monkeypatch):
    path = killed_store("lz4")
    shutil.rmtree(path / "checksums" / "rewards")
    (path / "checksums" / "actions" / "zarr.json").unlink()  # the checksums are there
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS, 0)
    assert done.notes == [note("rewards", "rows 0 to 79")]


@pytest.mark.parametrize("what", ["document", "actions", "priorities", "all", "own document"])
def test_priorities_are_kept(tmp_path, what, kinds):
    path = tmp_path / "store.zarr"
    with PrioritizedReplayBuffer(path, frame=kinds["raw"], action=ACTION, flush_s=0) as buffer:
        buffer.reset(np.zeros(3, np.uint8))
        for step in range(60):
            buffer.step(0, 0.0, np.full(3, step, np.uint8))
        ids = buffer.ids
        buffer.update_priorities(ids, 1.0 + ids)
        known = buffer.priorities(ids)
    if what == "document":
        (path / "rewards" / "zarr.json").unlink()
    elif what == "actions":
        flip(path / "actions" / "c.5")
    elif what == "all":
        shutil.rmtree(path / "priorities")
    elif what == "own document":
        (path / "priorities" / "zarr.json").write_text("{")
    else:
        flip(path / "priorities" / "c.0", 8 * 3)
    done = repair(path)
    kept = what in {"document", "actions"}
    assert [one.partition(":")[0] for one in done.notes] == ([] if kept else ["priorities"])
    assert done.changed
    assert done.lost == (61 - 40 if what == "actions" else 0)
    with PrioritizedReplayBuffer(path, flush_s=0) as again:
        found = again.priorities(again.ids)
        assert again.stored_state["sampler"]["largest"] == known.max()
    if kept:
        assert np.array_equal(found, known[: len(found)])
    else:  # whichever of them it was, the file is not what was written
        assert (found == known.max()).all()


def test_a_lane_that_is_a_copy_of_another_is_kept_and_reported(closed_store):
    path = closed_store(lanes=3)
    shutil.copytree(path / "lane-00001", path / "lane-00003")
    done = repair(path)
    assert (done.kept, done.lost) == (4 * ROWS, 0)
    (text,) = done.notes
    assert text.startswith(
        "lane-00003: was a copy of lane-00001 when it was made (the same uuid): rows that both "
        "have are in the store twice; if it has none of its own, take it out with `rm -r "
    )
    assert f"`rm -r {path}/lane-00003`" in text
    uuids = {lane_metadata.read_metadata(path / f"lane-0000{n}")["uuid"] for n in range(4)}
    assert len(uuids) == 4
    shutil.rmtree(path / "lane-00003")
    assert verify(path).sound
