"""`repair` of lanes whose layouts are lost: from their store, from sizes, or not at all."""

import pytest

from mmreplay import repair, verify
from tests.support.tampering.repairs import assert_refused, columns, repaired


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_repair_refuses_when_the_only_layout_of_compressed_frames_is_lost(closed_half_flushed, how):
    path = closed_half_flushed("dict")
    known = columns(path)
    lost = path / "frames" / "pixels" / "zarr.json"
    document = lost.read_text()
    lost.unlink() if how == "missing" else lost.write_text("{")
    assert_refused(
        path, r"frames/pixels/zarr\.json: lost, and it was the only copy .* put this file"
    )
    # As the error says, that of another store with these fields will do.
    lost.write_text(document.replace("85", "12"))
    assert (repaired(path, known).kept, verify(path).sound) == (85, True)


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
