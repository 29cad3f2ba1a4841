"""The order of a flush, where it moves the oldest row."""

import numpy as np
import pytest

import mmreplay
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.state_page import BASE
from mmreplay.writing import flush

pytestmark = pytest.mark.usefixtures("quick_disk")


class _Words:
    """The words of a state page; an interrupt comes once, before BASE is stored."""

    def __init__(self, words):
        self.words, self.is_armed = words, True

    def __getitem__(self, number):
        return self.words[number]

    def __setitem__(self, number, value):
        if number == BASE and self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt
        self.words[number] = value


def test_an_interrupt_while_rows_are_evicted_counts_no_episode_twice(tmp_path, monkeypatch):
    # In one chunk file, of which no background thread evicts anything.
    frame, action = mmreplay.Field((2,), "uint8", "raw"), mmreplay.Field((), "int64")
    writer = mmreplay.create(tmp_path / "s.zarr", frame, action, capacity=10, flush_s=0)
    for row in range(90):
        if row % 3 == 0:
            writer.reset(np.zeros(2, np.uint8))
        writer.step(row, 0.0, np.zeros(2, np.uint8), terminated=row % 3 == 2)
    state = writer.files.rows.state
    monkeypatch.setattr(state, "words", _Words(state.words))
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    writer.flush()
    writer.close()
    reader = LaneReader(tmp_path / "s.zarr")
    assert reader.base > 3
    assert reader.metadata["episodes_before"] == -(-reader.base // 3)


def test_an_interrupted_end_is_durable_before_its_last_frame_is_overwritten(tmp_path, monkeypatch):
    frame, action = mmreplay.Field((2,), "uint8", "raw"), mmreplay.Field((), "int64")
    writer = mmreplay.create(tmp_path / "s.zarr", frame, action, flush_s=0)
    writer.reset(np.zeros(2, np.uint8))
    writer.step(0, 0.0, np.ones(2, np.uint8))
    writer.flush()

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(flush, "flush_finals", interrupted)
        writer.reset(np.full(2, 2, np.uint8))
    writer.reset(np.full(2, 3, np.uint8))
    assert writer.files.finals.checkpoint.best.head == 1
    writer.close()
