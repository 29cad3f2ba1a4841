"""What `repair` takes for damaged, and what it does not."""

import numpy as np

import mmreplay
from mmreplay import repair, verify
from tests.support.disks.trees import flip
from tests.support.tampering.repairs import check_kept

ROWS = 85


def test_damage_past_the_last_row_costs_no_row(closed_store):
    path, original = closed_store("dict"), closed_store("dict", name="original.zarr")
    for name in ("actions", "resets", "extras/log_prob"):
        flip(next((path / name).glob("c.10*")), -1)
    assert len(verify(path).findings) >= 3
    done = repair(path)
    assert (done.changed, done.kept, done.lost) == (True, ROWS, 0)
    assert len(check_kept(path, original)) == 80


def test_damage_in_evicted_rows_of_a_shard_costs_no_row(closed_store):
    given = {"capacity": 36, "rounds": 4}
    path = closed_store("lz4", **given)
    original = closed_store("lz4", name="original.zarr", **given)
    base = mmreplay.open(path).lanes[0].base
    shard = path / "frames" / f"c.{base // 8}.0"
    assert base % 8 >= 4  # its first inner chunk, of four rows, is gone
    flip(shard, 17)
    assert any("inner chunk 0" in one.message for one in verify(path).findings)
    done = repair(path)
    assert (done.changed, done.lost) == (True, 0)
    assert np.array_equal(check_kept(path, original), mmreplay.open(original).ids)
    assert verify(path).warnings == []


def test_shards_that_were_exchanged_are_both_lost(closed_store):
    """Also where one is the last, short one, so that the other seems to lack inner chunks."""
    path, original = closed_store("lz4"), closed_store("lz4", name="original.zarr")
    one, two = path / "frames" / "c.3.0", path / "frames" / f"c.{ROWS // 8}.0"
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    assert any("found another" in one.message for one in verify(path).findings)
    done = repair(path)
    assert done.lanes[0].damaged[0] == (24, 32)
    assert done.kept == 24
    check_kept(path, original)
