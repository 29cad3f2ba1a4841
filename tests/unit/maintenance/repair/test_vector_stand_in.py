"""Lost documents of the logs of a vector lane: what is made again of the rest, and what is not."""

import shutil

import pytest

import mmreplay
from mmreplay import Field, repair
from tests.support.documents import change_copy, drop_copy
from tests.support.tampering.repairs import assert_refused, check_kept, check_ticks

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)
LARGE = Field((64, 64), "uint8", "raw", chunk=8)
ONLY_COPY = "it was the only copy of how this array is laid out"


@pytest.mark.parametrize(
    "lost",
    [
        ["ticks/zarr.json"],
        ["starts/zarr.json"],
        ["ticks/rewards/zarr.json", "starts/tick/zarr.json", "ticks/extras/x/zarr.json"],
    ],
)
@pytest.mark.parametrize("data", [None, b"{"])
@pytest.mark.parametrize("copied", [True, False])
def test_documents_of_a_closed_lane_are_made_again(closed_vector, ended, lost, data, copied):
    path = closed_vector.writer.path
    if not copied:
        drop_copy(path)
    for name in lost:
        (path / name).unlink() if data is None else (path / name).write_bytes(data)
    done = repair(path)
    assert (done.kept, done.lost) == (70, 0)
    # Its attributes are in the copy, too.
    assert [("random state" in one) for one in done.notes] == [True] * (
        not copied and lost == ["ticks/zarr.json"]
    )
    check_ticks(closed_vector, ended, path, 70)


def test_the_document_of_ticks_some_of_which_were_evicted(vector, tmp_path):
    model = vector(frame=LZ4, capacity=150)
    for _ in range(4):
        model.play(40)
        model.writer.flush()
    model.writer.close()
    path = model.writer.path
    original = shutil.copytree(path, tmp_path / "original.zarr")
    (path / "ticks" / "zarr.json").unlink()
    assert repair(path).lost == 0
    with mmreplay.open(original) as store:
        assert check_kept(path, original).tolist() == store.ids.tolist()


@pytest.mark.parametrize(
    ("frame", "end", "lost", "reason"),
    [
        (LZ4, "close", "zarr.json", "no zarr.json in it"),
        (LZ4, "close", "ticks/frames/zarr.json", ONLY_COPY),
        (LZ4, "close", "starts/frames/zarr.json", ONLY_COPY),
        # Nothing tells whether they lie tick by tick, or environment by environment.
        (LARGE, "close", "ticks/frames/zarr.json", ONLY_COPY),
        (LZ4, "kill", "ticks/rewards/zarr.json", "missing"),
        (LZ4, "kill", "starts/zarr.json", "no zarr.json in it"),
        (LZ4, "kill", "ticks/.live/state", "neither closed nor live"),
        (LZ4, "kill", "starts/.live/checkpoint", "neither closed nor live"),
        (LZ4, "kill", "starts/.live/frames.tail", "neither closed nor live"),
    ],
)
def test_what_nothing_else_tells_is_not_made_up(vector, kill, frame, end, lost, reason):
    model = vector(frame=frame)
    model.play(9)
    if end == "kill":
        kill(model.writer)
    else:
        model.writer.close()
        drop_copy(model.writer.path)
    (model.writer.path / lost).unlink()
    expected = rf"cannot be repaired: .*{reason}.*back from a backup.* and repair again$"
    assert_refused(model.writer.path, expected)


@pytest.mark.parametrize("n", [1, 5])
def test_documents_of_large_frames_that_lie_in_one_way_only_are_made_again(vector, ended, n):
    model = vector(n, frame=LARGE)
    model.play(20)
    model.writer.close()
    path = model.writer.path
    drop_copy(path)
    (path / "starts" / "frames" / "zarr.json").unlink()
    if n == 1:
        (path / "ticks" / "frames" / "zarr.json").unlink()
    assert repair(path).lost == 0
    check_ticks(model, ended, path, 20)


@pytest.mark.parametrize("frame", [LZ4, LARGE])
def test_the_layout_of_frames_is_also_in_the_copy_in_their_lane(vector, ended, frame):
    model = vector(frame=frame)
    model.play(20)
    model.writer.close()
    path = model.writer.path
    for log in ("ticks", "starts"):
        (path / log / "frames" / "zarr.json").unlink()
    assert repair(path).lost == 0
    check_ticks(model, ended, path, 20)


def test_a_copy_that_differs_does_not_count(closed_vector, ended):
    path = closed_vector.writer.path
    change_copy(path / "ticks" / "rewards", lambda d: d["shape"].__setitem__(0, 60))
    (found,) = mmreplay.verify(path).findings
    assert found.file == "zarr.json"
    assert found.message == (
        "consolidated_metadata: ticks/rewards.shape[0]: expected 70, found 60, unlike its own "
        "zarr.json"
    )
    assert repair(path).lost == 0
    check_ticks(closed_vector, ended, path, 70)


def test_no_row_is_looked_for_where_a_copy_that_differs_has_it(closed_vector, ended):
    path = closed_vector.writer.path

    def change(document):
        document["chunk_grid"]["configuration"]["chunk_shape"][0] *= 2

    change_copy(path / "ticks" / "episode", change)
    (found,) = mmreplay.verify(path).findings
    assert "consolidated_metadata: ticks/episode.chunk_grid" in found.message
    assert repair(path).lost == 0
    check_ticks(closed_vector, ended, path, 70)
