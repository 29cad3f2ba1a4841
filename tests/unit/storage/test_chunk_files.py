"""Chunk files: listed, read without a map, and mapped for writing."""

import errno
import os

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError, DiskFullError
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from tests.support.oracle.handmade_lanes import RawLane


def test_rows_are_read_without_a_map(tmp_path):
    lane = RawLane(tmp_path, ArraySpec("x", (2,), np.dtype("int16"), 10), 35)
    spec = lane.spec
    for start, stop in ((0, 35), (9, 11), (10, 20), (34, 35), (5, 5), (7, 3)):
        found = chunk_files.read_rows(lane, spec, start, stop)
        assert found.tolist() == lane.rows[start : max(start, stop)].tolist()
    lane.file(2).unlink()
    with pytest.raises(CorruptStoreError, match=r"c\.2\.0 25"):
        chunk_files.read_rows(lane, spec, 0, 25)
    lane.gone = 30
    with pytest.raises(EvictedError):
        chunk_files.read_rows(lane, spec, 0, 30)
    lane.file(1).write_bytes(b"short")
    with pytest.raises(CorruptStoreError, match="expected 40 bytes, found 5"):
        chunk_files.read_rows(lane, spec, 10, 12)


def test_the_chunk_files_are_listed_by_number_and_nothing_else_is(tmp_path):
    lane = RawLane(tmp_path, ArraySpec("x", (), np.dtype("int16"), 1), 12, 8)
    for name in ("zarr.json", "c.3.tmp", "c.01", "c.5.0", "notes"):
        (tmp_path / "x" / name).write_bytes(b"")
    assert chunk_files.chunk_files(tmp_path, lane.spec) == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        ("int64", [1.5, "x", None, 1 << 63]),
        ("uint8", [-1, 256, 1.0]),
        ("float32", ["x", None, [1]]),
    ],
)
def test_a_scalar_window_refuses_what_the_type_cannot_hold(tmp_path, dtype, wrong):
    (tmp_path / "x").mkdir()
    window = chunk_files.open_window(tmp_path, ArraySpec("x", (), np.dtype(dtype), 10), 0)
    assert isinstance(window.items, memoryview)
    window.items[3] = np.dtype(dtype).type(7)
    assert window.rows.tolist() == [0, 0, 0, 7, 0, 0, 0, 0, 0, 0]
    for value in wrong:
        with pytest.raises((TypeError, ValueError)):
            window.items[4] = value
    assert window.rows[4] == 0


def test_a_window_that_finds_no_room_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        os.ftruncate(descriptor, size // 2)
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "x").mkdir()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError):
        chunk_files.open_window(tmp_path, ArraySpec("x", (), np.dtype("int64"), 10), 0)
    assert list((tmp_path / "x").iterdir()) == []
