"""A lane to be packed: read where it is if it is closed, else from a copy."""

import numpy as np
import pytest

from mmreplay import Field
from mmreplay import open as open_store
from mmreplay.maintenance.packed_lane import PackedLane
from mmreplay.maintenance.packed_rows import ChosenRows, ChosenSteps, StoredRows


@pytest.mark.parametrize("state", ["closed", "live", "crashed"])
def test_a_lane_is_read_as_of_one_moment(make, story, kill, tmp_path, state):
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8))
    story.play_every_end(writer)
    if state == "closed":
        writer.close()
    if state == "crashed":
        kill(writer)
    lane = PackedLane(writer.path, 0, tmp_path / "spare")
    assert lane.reader.is_closed
    assert (tmp_path / "spare").exists() == (state != "closed")
    assert lane.rows()[""].head == 37
    if state == "live":
        story.play(writer, 5)
        assert not lane.is_replaced()
        assert lane.rows()[""].head == 37


def test_a_closed_lane_that_is_opened_again_is_replaced(make, story, tmp_path):
    writer = make()
    story.play_every_end(writer)
    writer.close()
    lane = PackedLane(writer.path, 0, tmp_path / "spare")
    assert not lane.is_replaced()
    make(append=True)
    assert lane.is_replaced()


def test_what_becomes_of_lanes(make, vector, story, tmp_path):
    writer = make("row.zarr")
    story.play_every_end(writer)
    writer.close()
    model = vector()
    model.play(30)
    model.writer.close()
    row, many = (
        PackedLane(path, 0, tmp_path / "spare") for path in (writer.path, model.writer.path)
    )
    assert {name: type(rows) for name, rows in row.rows().items()} == {"": StoredRows}
    assert list(many.rows()) == ["starts", "ticks"]
    assert (row.becomes_rows, many.becomes_rows) == (True, False)
    with open_store(writer.path) as store:
        row.choice = store.episodes[[1]]
    with open_store(model.writer.path) as store:
        many.choice = store.episodes[[3, 5]]
    assert isinstance(row.rows()[""], ChosenRows)
    assert isinstance(many.rows()[""], ChosenSteps)
    assert many.rows()[""].head == int(np.sum(many.choice["length"])) + 2
    assert many.becomes_rows
