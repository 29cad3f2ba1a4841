"""Where the rows of all lanes stand in one range of addresses."""

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage.raw_column import SideBySide
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
