"""`repair` of lanes whose layouts are lost: from their store, from sizes, or not at all."""

import pytest

from mmreplay import repair, verify
from tests.support.documents import change_copy, drop_copy
from tests.support.tampering.repairs import assert_refused, columns, repaired


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_repair_refuses_when_the_only_layout_of_compressed_frames_is_lost(closed_half_flushed, how):
    path = closed_half_flushed("dict")
    known = columns(path)
    lost = path / "frames" / "pixels" / "zarr.json"
    document = lost.read_text()
    drop_copy(path)
    lost.unlink() if how == "missing" else lost.write_text("{")
    assert_refused(
        path, r"frames/pixels/zarr\.json: lost, and it was the only copy .* put this file"
    )
    # As the error says, that of another store with these fields will do.
    lost.write_text(document.replace("85", "12"))
    assert (repaired(path, known).kept, verify(path).sound) == (85, True)


@pytest.mark.parametrize("lost", ["frames/speed", "extras/log_prob"])
def test_no_column_is_left_out_because_nothing_tells_what_it_holds(closed_half_flushed, lost):
    path = closed_half_flushed("dict")
    (path / "zarr.json").unlink()
    (path / lost / "zarr.json").unlink()
    assert_refused(path, rf"{lost}/zarr\.json: lost, and so is .* put one of them back")


def test_the_layout_of_raw_frames_follows_from_the_size_of_their_files(closed_half_flushed):
    path = closed_half_flushed("raw")
    known = columns(path)
    (path / "frames" / "zarr.json").unlink()
    (path / "frames" / "c.3.0").write_bytes(b"short")
    done = repaired(path, known)
    assert (done.kept, done.lanes[0].damaged) == (24, [(24, 32)])


def test_the_layout_of_compressed_frames_is_also_in_the_store_of_their_lane(closed_half_flushed):
    path = closed_half_flushed("dict", n_lanes=2)
    (path / "lane-00001" / "frames" / "pixels" / "zarr.json").unlink()
    done = repair(path)
    assert (done.kept, done.lost) == (170, 0)


@pytest.mark.parametrize("how", ["missing", "cut", "another shape"])
def test_the_layout_of_compressed_frames_is_also_in_the_copy_in_their_lane(
    closed_half_flushed, how
):
    path = closed_half_flushed("dict")
    known = columns(path)
    lost = path / "frames" / "pixels" / "zarr.json"
    if how == "missing":
        lost.unlink()
    else:
        text = lost.read_text()
        lost.write_text("{" if how == "cut" else text.replace("uint8", "int8"))
    assert (repaired(path, known).lost, verify(path).sound) == (0, True)


@pytest.mark.parametrize("given", [{}, {"n_lanes": 2}])
def test_a_copy_that_differs_does_not_count(closed_half_flushed, given):
    path = closed_half_flushed("lz4", **given)
    lane = path / "lane-00001" if given else path
    expected = (lane / "frames" / "zarr.json").read_bytes()

    def change(document):
        document["chunk_grid"]["configuration"]["chunk_shape"][0] *= 2

    change_copy(lane / "frames", change)
    (found,) = verify(path).findings
    assert found.file == (f"{lane.name}/zarr.json" if given else "zarr.json")
    assert "consolidated_metadata: frames.chunk_grid" in found.message
    assert repair(path).lost == 0
    assert (lane / "frames" / "zarr.json").read_bytes() == expected
