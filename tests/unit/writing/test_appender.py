"""Where rows of a log go, and reading those that are there, wherever they are by now."""

import numpy as np
import pytest

from mmreplay import Field
from mmreplay.errors import DiskFullError
from mmreplay.format import plan
from mmreplay.system import durable_writes, memory_maps
from mmreplay.writing import open_chunks
from tests.support.writers import drain

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_rows_are_read_from_chunk_files_tails_and_shards(make, codec, monkeypatch):
    monkeypatch.setattr(plan, "_START_ROWS", 4)
    frame = Field((2,), "uint8", codec, 2, None if codec == "raw" else 4)
    writer = make(lanes=3, frame=frame)
    frames = np.arange(6, dtype=np.uint8).reshape(3, 2)
    for n in range(20):
        writer.reset(frames + n)
    drain(writer)
    starts = writer._starts
    assert starts.log.head == 60
    assert codec == "raw" or starts.log.tail_start > 50
    for row in range(60):
        assert starts.read("frames", row).tolist() == (frames[row % 3] + row // 3).tolist()
        assert starts.read("env", row) == row % 3
        assert starts.read("tick", row) == 0


def test_a_row_without_room_has_no_place_and_the_next_try_finds_one(make, monkeypatch):
    writer = make(lanes=2)
    frames, none = np.zeros((2, 3), np.uint8), [False] * 2
    writer.reset(frames)
    for _ in range(8):
        writer.step([1, 1], [0, 0], frames, none, none)
    ticks = writer._ticks

    def full(*_):
        raise DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "allocate", full)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                ticks.make_room(8)
            assert ticks.border == 0
    ticks.make_room(8)
    assert ticks.border == 9  # row 8 begins a chunk, and row 7 may still change
    ticks.make_room(9)
    assert ticks.border == 16


def test_the_pages_of_a_row_have_their_memory_before_it_is_written(make, monkeypatch):
    monkeypatch.setattr(open_chunks, "_POPULATED_BYTES", 100)
    monkeypatch.setattr(open_chunks, "_POPULATED_ROWS", 3)
    populated: list[np.ndarray] = []
    monkeypatch.setattr(memory_maps, "populate", populated.append)
    writer = make(lanes=2)
    frames, none = np.zeros((2, 3), np.uint8), [False] * 2
    writer.reset(frames)
    for tick in range(20):
        writer.step([1, 1], [0, 0], frames, none, none)
        for path, column in writer._ticks.chunks.columns.items():
            row = column.new.rows[tick - column.new.start, ...]
            assert any(np.shares_memory(row, part) for part in populated), (tick, path)
    assert len(populated) < 20 * len(writer._ticks.chunks.columns)
