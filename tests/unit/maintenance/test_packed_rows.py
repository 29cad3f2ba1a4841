"""Rows of closed lanes, under their numbers or as chosen, in any pieces."""

import dataclasses

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


def test_where_inner_chunks_stand(lane):
    reader, _ = lane
    spec = reader.specs["frames"]

    def places(rows):
        """(shard, inner chunk) of each inner chunk of the new lane that stands somewhere whole."""
        found = rows.open("frames").places(spec, 0, rows.head)
        assert rows.open("frames").codec == spec.codec
        return [one and (one[0]._path.name, one[1]) for one in found]

    def chosen(*episodes):
        return ChosenRows(reader, *(np.array(part) for part in zip(*episodes, strict=True)))

    stored = places(StoredRows(reader))
    assert stored == [(f"c.{n // 2}.0", n % 2) for n in range(10)]
    assert places(chosen((4, 33))) == stored[1:]  # the last one has as few rows
    assert places(chosen((10, 12))) == [None] * 3  # other places in their chunks
    # The third is of two episodes; what follows the last would come along with it.
    assert places(chosen((0, 10), (22, 14))) == [*stored[:2], None, *stored[6:9]]
    assert places(chosen((0, 10))) == [*stored[:2], None]


def test_other_lengths_stand_nowhere(lane):
    reader, _ = lane
    longer = dataclasses.replace(reader.specs["frames"], inner_rows=8)
    assert StoredRows(reader).open("frames").places(longer, 0, 37) == [None] * 5
    assert StoredRows(reader).open("rewards").places(longer, 0, 37) == [None] * 5


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
        assert column.places(reader.starts.specs["frames"], 0, 5) == [None, None]


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
