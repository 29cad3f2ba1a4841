"""Raw columns: rows found in their chunk files, mapped side by side or one by one."""

import threading

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage import raw_column
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.raw_column import RawColumn
from mmreplay.system import memory_maps, platform
from tests.support.oracle.handmade_lanes import RawLane, ids_of

PAGE = memory_maps.GRANULARITY
MODES = ("side by side", "one by one", "no libc")


def spec_of(mode, shape=(), dtype="int64"):
    """Chunks of whole pages, or of 7 rows."""
    row = int(np.prod(shape)) * np.dtype(dtype).itemsize
    rows = 7 if mode == "one by one" else PAGE // row
    return ArraySpec("x", shape, np.dtype(dtype), rows)


@pytest.fixture(params=MODES)
def mode(request, monkeypatch):
    if request.param == "no libc":
        monkeypatch.setattr(platform, "LIBC", None)
    return request.param


def column_of(*lanes):
    column = RawColumn(lanes, "x")
    column.refresh()
    return column


@pytest.mark.parametrize("shape", [(), (2, 4)])
@pytest.mark.parametrize("n_lanes", [1, 3])
def test_row_r_lies_in_chunk_file_r_div_chunk_rows(tmp_path, mode, shape, n_lanes):
    spec = spec_of(mode, shape)
    lanes = [
        RawLane(tmp_path / str(n), spec, 3 * spec.chunk_rows + 5 + n, n * spec.chunk_rows)
        for n in range(n_lanes)
    ]
    column = column_of(*lanes)
    assert (column._mapped() is not None) is (mode == "side by side")
    ids, expected = ids_of(lanes, 500)
    found = column.take(ids)
    assert found.dtype == spec.dtype
    assert found.tobytes() == expected.tobytes()
    windows = column.take(ids.reshape(100, 5))
    assert windows.shape == (100, 5, *shape)
    assert windows.tobytes() == expected.tobytes()
    for number, lane in enumerate(lanes):
        last = (number << LANE_SHIFT) + lane.head - 1
        assert column.take(np.array([last])).tobytes() == lane.rows[lane.head - 1].tobytes()


def test_a_growing_lane_is_followed(tmp_path, mode):
    spec = spec_of(mode)
    lanes = [RawLane(tmp_path / str(n), spec, 3, 0) for n in (0, 1)]
    column = column_of(*lanes)
    for step in range(1, 12):
        lanes[step % 2].grow(lanes[step % 2].head + spec.chunk_rows // 2 + step)
        column.refresh()
        ids, expected = ids_of(lanes, 100, step)
        assert column.take(ids).tobytes() == expected.tobytes()
        last = (1 << LANE_SHIFT) + lanes[1].head - 1
        assert column.take(np.array([last]))[0] == lanes[1].rows[lanes[1].head - 1]


def test_evicted_files_stay_readable_where_they_are_mapped_and_go_with_the_next_range(tmp_path):
    spec = spec_of("side by side")
    lane = RawLane(tmp_path, spec, 4 * spec.chunk_rows)
    column = column_of(lane)
    assert column.take(np.array([3])) == lane.rows[3]
    lane.base, lane.gone = 2 * spec.chunk_rows, 2 * spec.chunk_rows
    for chunk in (0, 1):
        lane.file(chunk).unlink()
    assert column.take(np.array([3])) == lane.rows[3]
    lane.grow(30 * spec.chunk_rows)
    column.refresh()
    ids, expected = ids_of([lane], 200)
    assert column.take(ids).tobytes() == expected.tobytes()
    with pytest.raises(EvictedError):
        column.view(0, 0, 5)


def test_a_missing_chunk_file_is_the_lanes_error(tmp_path, mode):
    spec = spec_of(mode)
    lane = RawLane(tmp_path, spec, 3 * spec.chunk_rows)
    lane.file(1).unlink()
    stop = 2 * spec.chunk_rows
    with pytest.raises(CorruptStoreError, match=rf"c\.1 {stop}"):
        column_of(lane).take(np.array([spec.chunk_rows]))
    lane.gone = stop
    with pytest.raises(EvictedError):
        column_of(lane).take(np.array([spec.chunk_rows]))


@pytest.mark.parametrize("size", [0, PAGE - 1])
def test_a_chunk_file_is_mapped_only_after_its_size_was_checked(tmp_path, mode, size):
    spec = spec_of(mode)
    lane = RawLane(tmp_path, spec, 3 * spec.chunk_rows)
    lane.file(1).write_bytes(bytes(size))
    with pytest.raises(
        CorruptStoreError, match=f"expected {spec.chunk_bytes:,} bytes, found {size:,}"
    ):
        column_of(lane).take(np.array([spec.chunk_rows]))


def test_more_files_than_may_lie_side_by_side_are_mapped_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_column, "_MAX_MAPS", 8)
    spec = spec_of("side by side")
    lane = RawLane(tmp_path, spec, 4 * spec.chunk_rows)
    column = column_of(lane)
    assert column._mapped() is not None
    for n in (5, 9, 12):
        lane.grow(n * spec.chunk_rows)
        column.refresh()
        ids, expected = ids_of([lane], 100)
        assert column.take(ids).tobytes() == expected.tobytes()
    assert column._mapped() is None


def test_windows_of_large_chunks_are_asked_for_before_they_are_read(tmp_path, monkeypatch):
    spec = ArraySpec("x", (64,), np.dtype("uint8"), 1 << 14)  # 1 MiB
    lane = RawLane(tmp_path, spec, (2 << 14) + 5)
    monkeypatch.setattr(memory_maps, "resident", lambda data: 0.0)
    asked = []
    monkeypatch.setattr(memory_maps, "advise_needed", lambda array, ranges: asked.extend(ranges))
    column = column_of(lane)
    ids = np.array([[10, 11, 12], [20_000, 20_001, 20_002], [32_768, 32_769, 32_770]])
    assert column.take(ids).tobytes() == lane.rows[ids].tobytes()
    assert asked == [(row * 64, 3 * 64) for row in (10, 20_000, 32_768)]


def test_threads_that_are_the_first_to_read_while_rows_come_see_all_of_them(tmp_path):
    spec = spec_of("side by side")
    lane = RawLane(tmp_path, spec, 8 * spec.chunk_rows)
    for _ in range(20):
        lane.head = spec.chunk_rows
        column = column_of(lane)
        found = []

        def read(column=column, found=found):
            found.append(column.take(np.arange(spec.chunk_rows)))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        lane.head = 8 * spec.chunk_rows
        column.refresh()
        for thread in threads:
            thread.join()
        assert np.array_equal(column.take(np.arange(lane.head)), lane.rows[: lane.head])
        assert all(np.array_equal(one, lane.rows[: spec.chunk_rows]) for one in found)
