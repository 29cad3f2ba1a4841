"""Which rows of a damaged lane `repair` keeps."""

import pytest

import mmreplay
from mmreplay import (
    repair,
    verify,
)
from tests.support.disks.trees import flip
from tests.support.tampering.repairs import check_kept

ROWS = 85


@pytest.mark.parametrize("kind", ["raw", "dict"])
def test_a_store_with_evicted_rows(closed_store, kind):
    given = {"capacity": 120, "rounds": 4}
    path = closed_store(kind, **given)
    original = closed_store(kind, name="original.zarr", **given)
    first, head = mmreplay.open(path).lanes[0].first, mmreplay.open(path).lanes[0].rows
    flip(path / "actions" / f"c.{(head - 20) // 8}")
    done = repair(path)
    ids = check_kept(path, original)
    assert ids[0] == mmreplay.open(original).ids[0] >= first
    assert done.lanes[0].damaged[0][0] == (head - 20) // 8 * 8
    # So little of it that nothing could be sampled: the ids begin anew.
    flip(original / "actions" / f"c.{first // 8 - 4}")
    done = repair(original)
    assert (done.kept, len(mmreplay.open(original))) == (0, 0)
    assert verify(original).sound


@pytest.mark.parametrize(("chunk", "rows"), [(4, (32, 40)), (10, (80, ROWS))])
def test_damage_in_an_array_without_its_document_is_found(closed_store, chunk, rows):
    path = closed_store("lz4")
    (path / "rewards" / "zarr.json").unlink()
    flip(path / "rewards" / f"c.{chunk}")
    done = repair(path)
    assert done.lanes[0].damaged == [rows]
    assert verify(path).sound
