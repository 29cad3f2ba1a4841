"""A store that is written, moved, replaced or repaired while it is shown."""

import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, StoreNotFoundError
from mmreplay.viewer.viewed_store import GoneError, ViewedStore
from tests.support.viewed import FRAME, record_pictures


@pytest.fixture
def viewed(tmp_path, quick_disk):
    """Opens a store for pages, and closes it after the test."""
    opened = []

    def view(name="s.zarr", **salt):
        opened.append(ViewedStore(tmp_path / name, **salt))
        return opened[-1]

    yield view
    for one in opened:
        one.close()


def test_head_tells_of_new_rows_by_another_key(tmp_path, viewed):
    writer = record_pictures(tmp_path / "s.zarr", episodes=[(3, "")], close=False)
    one = viewed()
    first = one.head()
    assert (first["error"], first["state"], first["rows"], first["transitions"]) == (
        None,
        "live",
        3,
        3,
    )
    assert one.head() == first
    writer.step(0, 0.0, np.zeros(FRAME.shape, np.uint8))
    second = one.head()
    assert (second["rows"], second["version"]) == (4, first["version"])
    assert second["key"] != first["key"]
    writer.close()
    assert one.head()["state"] == "closed"


def test_a_store_that_does_not_exist_is_refused(tmp_path, viewed):
    with pytest.raises(StoreNotFoundError):
        viewed("none.zarr")


def test_a_store_that_is_moved_away_says_so_and_is_back_when_it_is(tmp_path, viewed):
    record_pictures(tmp_path / "s.zarr")
    one = viewed()
    before = one.head()
    (tmp_path / "s.zarr").rename(tmp_path / "elsewhere.zarr")
    assert "s.zarr" in one.head()["error"]
    (tmp_path / "elsewhere.zarr").rename(tmp_path / "s.zarr")
    assert one.head() == before


def test_a_deleted_store_says_so_and_another_one_in_its_place_is_shown(tmp_path, viewed):
    record_pictures(tmp_path / "s.zarr")
    one = viewed()
    before = one.head()
    shutil.rmtree(tmp_path / "s.zarr")
    assert one.head()["error"]
    record_pictures(tmp_path / "s.zarr", frame=Field((3, 3, 3)), episodes=[(2, "")])
    after = one.head()
    assert (after["error"], after["rows"]) == (None, 2)
    assert after["version"] != before["version"]
    with pytest.raises(GoneError, match="reload"):
        one.read(before["version"], len)
    assert one.read(after["version"], len) == 2


def test_a_repaired_store_is_another_version(tmp_path, viewed):
    record_pictures(tmp_path / "s.zarr")
    one = viewed()
    before = one.head()
    shard = tmp_path / "s.zarr" / "frames" / "c.1.0.0"
    data = bytearray(shard.read_bytes())
    data[3] ^= 0xFF
    shard.write_bytes(data)
    mmreplay.repair(tmp_path / "s.zarr")
    after = one.head()
    assert after["error"] is None
    assert after["version"] != before["version"]
