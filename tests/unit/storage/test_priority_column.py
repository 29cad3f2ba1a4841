"""The column of priorities: positions, chunk files, and what is left of them."""

import json

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError, DiskFullError, FormatError
from mmreplay.format import layout
from mmreplay.storage import priority_column
from mmreplay.storage.changing_column import end_values
from mmreplay.storage.priority_column import find_spec, take_over
from mmreplay.system import memory_maps
from tests.support.disks.faults import faulty_disk
from tests.support.prioritized import column_of, release

ROWS = memory_maps.GRANULARITY // 8  # the fewest that a chunk file may hold

pytestmark = pytest.mark.usefixtures("quick_disk", "short")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(priority_column, "_CHUNK_ROWS", ROWS)


@pytest.fixture
def lane(tmp_path):
    return tmp_path


def names(lane):
    return sorted(entry.name for entry in (lane / "priorities").iterdir())


def put(column, ids, values):
    column.values[column.positions(np.array(ids))] = values


def reach(column, base, head):
    column.reach(np.array([head]), lambda _: (base, base, head))


def get(column, ids):
    return column.values[column.positions(np.array(ids))].tolist()


@pytest.mark.parametrize("base", [0, ROWS - 1, ROWS, 5 * ROWS + 3])
def test_positions_and_ids_are_each_others_inverse(lane, base):
    head = base + 3 * ROWS
    column = column_of(lane, (base, head))
    ids = np.arange(base, head)
    positions = column.positions(ids)
    assert np.unique(positions).size == ids.size
    assert column.ids(positions).tolist() == ids.tolist()
    assert 0 <= positions.min() <= positions.max() < column.values.size - 1
    assert column.lowest == base // ROWS * ROWS


def test_values_stay_with_their_rows_as_the_column_grows(lane):
    column = column_of(lane, (0, 10))
    put(column, [3, 5], [0.3, 0.5])
    generations = set()
    for head in range(10, 12 * ROWS, ROWS // 2):
        reach(column, 0, head)
        put(column, [head - 2], [head])
        generations.add(column.generation)
    assert get(column, [3, 5, 10 + ROWS // 2 - 2]) == [0.3, 0.5, 10 + ROWS // 2]
    assert 2 <= len(generations) <= 5  # by doubling, not for each file


def test_files_half_made_at_a_kill_are_removed(lane):
    (lane / "priorities.tmp").mkdir()
    (lane / "priorities.tmp" / "zarr.json.0.tmp").write_bytes(b"half")
    column_of(lane, (0, 1))
    assert sorted(path.name for path in lane.iterdir()) == ["checksums", "priorities"]
    (lane / "priorities.tmp").mkdir()
    take_over(lane, None)
    assert sorted(path.name for path in lane.iterdir()) == ["checksums", "priorities"]


def test_checksums_of_a_column_that_was_deleted_go(lane):
    (lane / "checksums" / "priorities").mkdir(parents=True)
    assert take_over(lane, None) is None
    assert not (lane / "checksums" / "priorities").exists()


@pytest.mark.parametrize("doubling", [False, True])
def test_a_full_disk_changes_nothing_and_the_next_call_goes_on(lane, doubling):
    column = column_of(lane, (0, ROWS))
    put(column, np.arange(ROWS - 1), 0.5)
    head = 9 * ROWS if doubling else 2 * ROWS
    generation = column.generation
    with faulty_disk() as disk:
        disk.fail({"posix_fallocate"}, 28, at=3 if doubling else 1)
        with pytest.raises(DiskFullError, match="no room"):
            reach(column, 0, head)
        assert disk.hits == 1
        assert column.generation == generation
        assert get(column, np.arange(ROWS)) == [0.5] * (ROWS - 1) + [0]
        disk.heal()
        reach(column, 0, head)
    assert get(column, np.arange(ROWS)) == [0.5] * (ROWS - 1) + [0]
    put(column, [head - 2], [2.0])
    release(column)
    assert get(column_of(lane, (0, head)), [0, head - 2]) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("data_type", "float32"), ("shape", [3, 3]), ("chunk_grid", None)],
)
def test_another_array_of_that_name_is_refused(lane, key, value):
    column_of(lane, (0, 1))
    where = lane / "priorities/zarr.json"
    document = json.loads(where.read_text())
    document[key] = value
    where.write_text(json.dumps(document))
    with pytest.raises(FormatError):
        column_of(lane, (0, 1))
    where.unlink()
    with pytest.raises(FormatError, match=r"delete .*priorities to start with new priorities"):
        column_of(lane, (0, 1))


def test_a_link_is_not_followed(lane, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (lane / "priorities").symlink_to(elsewhere)
    with pytest.raises(CorruptStoreError, match="link"):
        column_of(lane, (0, 1))


@pytest.mark.parametrize("width", [1, 3, 200])
def test_the_positions_of_a_vector_lane_are_its_entries(lane, width):
    head = 40 * width
    column = column_of(lane, (0, head), width)
    document = json.loads((lane / "priorities" / "zarr.json").read_bytes())
    chunk = document["chunk_grid"]["configuration"]["chunk_shape"]
    assert document["shape"][1:] == chunk[1:] == [width]
    assert chunk[0] * width * 8 % memory_maps.GRANULARITY == 0
    assert names(lane)[0] == "c.0.0"
    ids = np.arange(head)
    assert column.ids(column.positions(ids)).tolist() == ids.tolist()
    put(column, ids, np.arange(1.0, head + 1))
    reach(column, 0, 3 * head)
    end_values(lane, find_spec(lane, width), head // width - 1)
    release(column)
    again = column_of(lane, (0, head - width), width)
    assert get(again, ids[:-width]) == list(range(1, head + 1 - width))
    assert get(again, ids[-width:]) == [0.0] * width  # past the head
    assert again.lowest == 0


def test_a_column_of_another_width_is_refused(lane):
    folder = lane / "priorities"
    folder.mkdir()
    spec = layout.ArraySpec("priorities", (4,), np.dtype("float64"), ROWS // 4)
    (folder / "zarr.json").write_bytes(layout.array_json(spec, 0))
    assert find_spec(lane, 4) == spec
    for width in (None, 3):
        with pytest.raises(FormatError, match="float64 per row"):
            find_spec(lane, width)
