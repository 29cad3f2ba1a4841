"""Rows of closed lanes, under their numbers or as chosen, in any pieces."""

import numpy as np
import pytest

from mmreplay import CorruptStoreError, Field
from mmreplay.maintenance.packed_rows import ChosenRows, ChosenSteps, StoredRows, check_file
from mmreplay.reading.joined_lanes import open_lane
from tests.support.disks.trees import flip

ACTION = Field((), "int64", chunk=8)


@pytest.fixture
def lane(make, story, kinds):
    """A closed lane of 37 rows, and its columns as they must read."""
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play_every_end(writer)
    writer.close()
    return open_lane(writer.path, 0), story.columns(writer.path, writer.schema)


def test_rows_under_their_numbers(lane):
    reader, columns = lane
    rows = StoredRows(reader)
    assert (rows.base, rows.head) == (0, 37)
    for path, expected in columns.items():
        column = rows.open(path)
        for start, stop in ((0, 37), (5, 6), (7, 21), (36, 37)):
            assert np.array_equal(column.take(start, stop), expected[start:stop])
        assert rows.stored(reader.specs[path]) is reader


def test_chosen_rows_follow_one_another(lane):
    reader, columns = lane
    rows = ChosenRows(reader, np.array([10, 23]), np.array([12, 14]))
    wanted = [*range(10, 22), *range(23, 37)]
    assert (rows.base, rows.head) == (0, 26)
    for path, expected in columns.items():
        assert np.array_equal(rows.open(path).take(0, 26), expected[wanted])
        assert np.array_equal(rows.open(path).take(11, 13), expected[wanted][11:13])
        assert rows.stored(reader.specs[path]) is None


def test_inner_chunks_as_they_are_stored(lane):
    reader, _ = lane
    spec = reader.specs["frames"]
    column = StoredRows(reader).open("frames")
    first, second, last = (column.encoded(spec, start, start + 4) for start in (0, 4, 12))
    assert all(len(one) == 1 for one in (first, second, last))
    assert len({first[0], second[0], last[0]}) == 3
    (newest,) = column.encoded(spec, 36, 37)
    shifted = ChosenRows(reader, np.array([4]), np.array([33])).open("frames")
    assert shifted.encoded(spec, 0, 4) == second
    assert shifted.encoded(spec, 32, 33) == [newest]
    odd = ChosenRows(reader, np.array([10]), np.array([12])).open("frames")
    assert odd.encoded(spec, 0, 4) is None  # another place in its chunk
    parts = ChosenRows(reader, np.array([0, 23]), np.array([10, 14])).open("frames")
    assert parts.encoded(spec, 0, 4) == first
    assert parts.encoded(spec, 8, 12) is None  # of two episodes
    short = ChosenRows(reader, np.array([0]), np.array([10])).open("frames")
    assert short.encoded(spec, 8, 10) is None  # what was behind it would come along


def test_steps_of_many_environments_become_rows(vector):
    model = vector(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8))
    model.play(40)
    model.writer.close()
    model.model.end_session()
    reader = open_lane(model.writer.path, 0)
    model.ids()
    episodes = [one for one, cells in model.kept() if len(cells) == one.length][2:9:3]
    numbers, cells, lengths = (
        np.array([getter(one) for one in episodes], np.int64)
        for getter in (
            lambda one: one.number,
            lambda one: one.tick * model.width + one.env,
            lambda one: one.length,
        )
    )
    rows = ChosenSteps(reader, numbers, cells, lengths)
    expected = [
        (model.lanes.lanes[one.env], row)
        for one in episodes
        for row in model.lanes.lanes[one.env].rows[one.row : one.row + one.length + 1]
    ]
    assert rows.head == len(expected)
    for path in model.schema.arrays():
        values = np.array([lane.value(row, path) for lane, row in expected])
        column = rows.open(path)
        assert np.array_equal(column.take(0, rows.head), values), path
        assert np.array_equal(column.take(1, rows.head - 1), values[1:-1]), path
        assert column.encoded(reader.ticks.specs["frames"], 0, 4) is None


def test_raw_files_are_compared_with_their_checksums(lane):
    reader, _ = lane
    spec = reader.specs["rewards"]
    check_file(reader, spec, 1)
    flip(reader.path / "rewards" / "c.1")
    with pytest.raises(CorruptStoreError, match=r"c\.1: does not match its checksum"):
        check_file(reader, spec, 1)
    (reader.path / "rewards" / "c.1").unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        check_file(reader, spec, 1)
