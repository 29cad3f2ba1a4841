"""The column of priorities: positions, chunk files, and what is left of them."""

import json

import numpy as np
import pytest
import zarr

from mmreplay.errors import CorruptStoreError, DiskFullError, FormatError
from mmreplay.format import layout
from mmreplay.storage import priority_column
from mmreplay.storage.priority_column import PriorityColumn, evict, find_spec, finish, trim
from mmreplay.system import memory_maps
from tests.support.disks.faults import faulty_disk

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


def get(column, ids):
    return column.values[column.positions(np.array(ids))].tolist()


@pytest.mark.parametrize("base", [0, ROWS - 1, ROWS, 5 * ROWS + 3])
def test_positions_and_ids_are_each_others_inverse(lane, base):
    head = base + 3 * ROWS
    column = PriorityColumn(lane, (base, head))
    ids = np.arange(base, head)
    positions = column.positions(ids)
    assert np.unique(positions).size == ids.size
    assert column.ids(positions).tolist() == ids.tolist()
    assert 0 <= positions.min() <= positions.max() < column.values.size - 1
    assert column.lowest == base // ROWS * ROWS


def test_values_stay_with_their_rows_as_the_column_grows(lane):
    column = PriorityColumn(lane, (0, 10))
    put(column, [3, 5], [0.3, 0.5])
    generations = set()
    for head in range(10, 12 * ROWS, ROWS // 2):
        column.reach((0, head))
        put(column, [head - 2], [head])
        generations.add(column.generation)
    assert get(column, [3, 5, 10 + ROWS // 2 - 2]) == [0.3, 0.5, 10 + ROWS // 2]
    assert 2 <= len(generations) <= 5  # by doubling, not for each file


def test_priorities_past_the_head_are_cleared(lane):
    column = PriorityColumn(lane, (0, 3 * ROWS))
    put(column, np.arange(3 * ROWS - 1), 0.5)
    trim(lane, 0, ROWS + 10)
    assert names(lane) == ["c.0", "c.1", "zarr.json"]
    column = PriorityColumn(lane, (0, 3 * ROWS))
    assert get(column, np.arange(ROWS + 10)) == [0.5] * (ROWS + 10)
    assert not any(get(column, np.arange(ROWS + 10, 3 * ROWS)))


def test_a_finished_column_has_checksums_of_its_own_files_only(lane):
    """Others are left where a copy of fewer rows was restored over a closed lane."""
    PriorityColumn(lane, (0, 10))
    finish(lane, 10)
    sums = lane / "checksums" / "priorities"
    (sums / "c.1").write_bytes((sums / "c.0").read_bytes())
    finish(lane, 10)
    assert sorted(entry.name for entry in sums.iterdir()) == ["c.0", "zarr.json"]
    finish(lane, 0)
    assert sorted(entry.name for entry in sums.iterdir()) == ["zarr.json"]


def test_files_half_made_at_a_kill_are_removed(lane):
    (lane / "priorities.tmp").mkdir()
    (lane / "priorities.tmp" / "zarr.json.0.tmp").write_bytes(b"half")
    PriorityColumn(lane, (0, 1))
    assert [path.name for path in lane.iterdir()] == ["priorities"]
    (lane / "priorities.tmp").mkdir()
    trim(lane, 0, 1)
    assert [path.name for path in lane.iterdir()] == ["priorities"]


@pytest.mark.parametrize("doubling", [False, True])
def test_a_full_disk_changes_nothing_and_the_next_call_goes_on(lane, doubling):
    column = PriorityColumn(lane, (0, ROWS))
    put(column, np.arange(ROWS - 1), 0.5)
    head = 9 * ROWS if doubling else 2 * ROWS
    generation = column.generation
    with faulty_disk() as disk:
        disk.fail({"posix_fallocate"}, 28, at=3 if doubling else 1)
        with pytest.raises(DiskFullError, match="no room"):
            column.reach((0, head))
        assert disk.hits == 1
        assert column.generation == generation
        assert get(column, np.arange(ROWS)) == [0.5] * (ROWS - 1) + [0]
        disk.heal()
        column.reach((0, head))
    assert get(column, np.arange(ROWS)) == [0.5] * (ROWS - 1) + [0]
    put(column, [head - 2], [2.0])
    assert get(PriorityColumn(lane, (0, head)), [0, head - 2]) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("data_type", "float32"), ("shape", [3, 3]), ("chunk_grid", None)],
)
def test_another_array_of_that_name_is_refused(lane, key, value):
    PriorityColumn(lane, (0, 1))
    where = lane / "priorities/zarr.json"
    document = json.loads(where.read_text())
    document[key] = value
    where.write_text(json.dumps(document))
    with pytest.raises(FormatError):
        PriorityColumn(lane, (0, 1))
    where.unlink()
    with pytest.raises(FormatError, match=r"delete .*priorities to start with new priorities"):
        PriorityColumn(lane, (0, 1))


def test_a_link_is_not_followed(lane, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (lane / "priorities").symlink_to(elsewhere)
    with pytest.raises(CorruptStoreError, match="link"):
        PriorityColumn(lane, (0, 1))


@pytest.mark.parametrize("width", [1, 3, 200])
def test_the_positions_of_a_vector_lane_are_its_entries(lane, width):
    head = 40 * width
    column = PriorityColumn(lane, (0, head), width)
    document = json.loads((lane / "priorities" / "zarr.json").read_bytes())
    chunk = document["chunk_grid"]["configuration"]["chunk_shape"]
    assert document["shape"][1:] == chunk[1:] == [width]
    assert chunk[0] * width * 8 % memory_maps.GRANULARITY == 0
    assert names(lane)[0] == "c.0.0"
    ids = np.arange(head)
    assert column.ids(column.positions(ids)).tolist() == ids.tolist()
    put(column, ids, np.arange(1.0, head + 1))
    column.reach((0, 3 * head))
    again = PriorityColumn(lane, (0, head - width), width)
    assert get(again, ids[:-width]) == list(range(1, head + 1 - width))
    assert get(again, ids[-width:]) == [0.0] * width  # past the head
    assert again.lowest == 0


def test_priorities_of_many_environments_are_trimmed_evicted_and_finished_by_step(lane):
    """4 environments: a chunk file has a quarter as many rows."""
    steps = ROWS // 4
    folder = lane / "priorities"
    folder.mkdir()
    spec = layout.ArraySpec("priorities", (4,), np.dtype("float64"), steps)
    (folder / "zarr.json").write_bytes(layout.array_json(spec, 0))
    assert find_spec(lane, 4) == spec
    for width in (None, 3):
        with pytest.raises(FormatError, match="float64 per row"):
            find_spec(lane, width)
    for chunk in range(4):
        (folder / f"c.{chunk}.0").write_bytes(np.ones((steps, 4)).tobytes())
    trim(lane, 0, 2 * steps + 3, 4)
    assert names(lane) == ["c.0.0", "c.1.0", "c.2.0", "zarr.json"]
    last = np.fromfile(folder / "c.2.0").reshape(-1, 4)
    assert last[:3].all()
    assert not last[3:].any()
    evict(lane, 2 * steps - 1, 4)
    assert names(lane) == ["c.1.0", "c.2.0", "zarr.json"]
    finish(lane, 2 * steps + 2, 4)
    values = zarr.open_array(str(folder), mode="r")
    assert values.shape == (2 * steps + 2, 4)
    assert values[steps:].all()
    sums = zarr.open_array(str(lane / "checksums" / "priorities"), mode="r")
    assert [bool(one) for one in sums[:]] == [False, True, True]
