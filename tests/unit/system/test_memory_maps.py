"""Files in memory: what a map shows, and how long it lasts."""

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.system import memory_maps, platform


@pytest.fixture(params=["libc", "no libc"])
def either_map(request, monkeypatch):
    if request.param == "no libc":
        monkeypatch.setattr(platform, "LIBC", None)


def test_a_map_shows_the_file_and_outlives_it(tmp_path, either_map):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    data = memory_maps.map_file(path, 200)
    assert data.dtype == np.uint8
    assert data.shape == (200,)
    assert data.tobytes() == bytes(range(200))
    view = data[100:]
    path.unlink()
    del data
    assert view[0] == 100
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_file_of_another_size_is_not_mapped(tmp_path, either_map):
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    for size in (99, 101, 0):
        with pytest.raises(CorruptStoreError, match=f"expected {size} bytes, found 100"):
            memory_maps.map_file(path, size)
    path.write_bytes(b"")
    with pytest.raises(CorruptStoreError, match="found 0"):
        memory_maps.map_file(path)
    with pytest.raises(FileNotFoundError):
        memory_maps.map_file(tmp_path / "none")


def test_files_lie_side_by_side_in_a_reservation(tmp_path):
    size = memory_maps.GRANULARITY
    for number in range(3):
        (tmp_path / str(number)).write_bytes(bytes([number + 1]) * size)
    reservation = memory_maps.Reservation(4 * size)
    for number in (2, 0, 1):
        reservation.put(number * size, tmp_path / str(number), size)
    expected = np.repeat(np.array([1, 2, 3, 0], np.uint8), size)
    assert np.array_equal(reservation.array, expected)
    assert not reservation.array.flags.writeable
    kept = reservation.array[size : 2 * size]
    del reservation
    (tmp_path / "1").unlink()
    assert kept[0] == 2


def test_a_reservation_takes_nothing_outside_of_itself(tmp_path):
    size = memory_maps.GRANULARITY
    path = tmp_path / "f"
    path.write_bytes(bytes(size))
    reservation = memory_maps.Reservation(2 * size)
    for offset in (2 * size, -size, 1, size + 1):
        with pytest.raises(ValueError, match="outside the reservation"):
            reservation.put(offset, path, size)
    with pytest.raises(CorruptStoreError, match="expected"):
        reservation.put(0, path, 2 * size)
    with pytest.raises(FileNotFoundError):
        reservation.put(0, tmp_path / "none", size)


def test_there_is_no_reservation_where_there_is_no_mmap_or_no_room_for_it(monkeypatch):
    with pytest.raises(OSError, match="Cannot allocate memory"):
        memory_maps.Reservation(1 << 62)
    monkeypatch.setattr(platform, "LIBC", None)
    with pytest.raises(OSError, match="no mmap"):
        memory_maps.Reservation(4096)
