"""Where the rows of all lanes stand in one range of addresses."""

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage.side_by_side import SideBySide
from mmreplay.system import memory_maps

ROWS = memory_maps.GRANULARITY // 8
SHORT, LONG = (ArraySpec("x", (), np.dtype("int64"), n * ROWS) for n in (1, 2))


@pytest.fixture
def files():
    """Three lanes whose first chunks are 0, 5 and 2."""
    return SideBySide([SHORT, LONG, SHORT], [0, 5, 2], [3, 2, 1])


def test_index_and_id_of_a_row_follow_from_each_other(files):
    rows = [np.arange(3 * ROWS), np.arange(10 * ROWS, 14 * ROWS), np.arange(2 * ROWS, 3 * ROWS)]
    ids = np.concatenate([one + (lane << LANE_SHIFT) for lane, one in enumerate(rows)])
    assert files.index(ids).tolist() == list(range(8 * ROWS))
    assert files.ids(files.index(ids)).tolist() == ids.tolist()
    alone = SideBySide([LONG], [5], [2])
    assert alone.index(rows[1]).tolist() == list(range(4 * ROWS))
    assert alone.ids(alone.index(rows[1])).tolist() == rows[1].tolist()
    assert alone.shifted
    assert not SideBySide([LONG], [0], [2]).shifted


def test_a_chunk_file_is_mapped_where_its_rows_have_their_index(files, tmp_path):
    values = np.arange(2 * ROWS)
    (tmp_path / "c.6").write_bytes(values.tobytes())
    files.put(1, 6, tmp_path / "c.6")
    assert files.chunk(1, 6).tobytes() == values.tobytes()
    ids = np.arange(12 * ROWS, 14 * ROWS) + (1 << LANE_SHIFT)
    assert files.rows[files.index(ids)].tolist() == values.tolist()
    assert not files.rows[: 5 * ROWS].any()
    with pytest.raises(CorruptStoreError, match="bytes, found"):
        files.put(0, 1, tmp_path / "c.6")


def test_entries_have_their_index_where_each_environment_has_its_part_of_a_file():
    rows = memory_maps.GRANULARITY // 8
    # Of 3 and 2 environments, their chunk files of so many ticks each; and a lane of rows.
    specs = [
        ArraySpec("x", (), np.dtype("int64"), width * n, width=width, of_entries=True)
        for width, n in ((3, rows), (2, 3 * rows))
    ]
    specs.insert(1, SHORT)
    files = SideBySide(specs, [0, 1, 2], [2, 2, 3])
    begin = 0
    for lane, (spec, first, room) in enumerate(zip(specs, (0, 1, 2), (2, 2, 3), strict=True)):
        cells = np.arange(first * spec.chunk_rows, (first + room) * spec.chunk_rows)
        in_files = cells.reshape(room, -1, spec.width).swapaxes(1, 2).ravel()
        index = files.index(in_files + (lane << LANE_SHIFT))
        assert index.tolist() == list(range(begin, begin + cells.size))
        begin += cells.size
    alone = SideBySide(specs[2:], [2], [3])
    assert alone.index(in_files).tolist() == list(range(cells.size))
    both = np.array([[5, 1 << LANE_SHIFT], [2 << LANE_SHIFT, 7]])
    both[0, 1] += ROWS
    both[1, 0] += 2 * specs[2].chunk_rows
    assert files.index(both).ravel().tolist() == [files.index(one[None])[0] for one in both.ravel()]
