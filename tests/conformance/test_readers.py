"""A closed store is plain zarr v3: zarr-python and tensorstore read what we read, without a warning.

Invariant: every array of a closed store has, for every reader, exactly `rows` rows and our values;
there is nothing else in the store.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr

import mmreplay
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import Model
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import CODECS, DTYPES
from tests.support.oracle.vector_pair import FIELDS, VectorPair, of_writer
from tests.support.oracle.vectors import assert_closed_lane_matches

Field = mmreplay.Field
PLANE = (4, 5)
ACTION = Field((), "int64", chunk=16)


def layout_of(codec, **more):
    chunks = {"chunk": 7} if codec == "raw" else {"chunk": 3, "shard": 12}
    return Layout(Field(PLANE, "uint8", codec, **chunks), ACTION, {}, **more)


def codec_name(codec):
    return codec if isinstance(codec, str) else "-".join(map(str, (codec["name"], "given")))


LAYOUTS = {f"codec {n} {codec_name(codec)}": layout_of(codec) for n, codec in enumerate(CODECS)}
LAYOUTS |= {
    f"dtype {dtype} {codec}": Layout(
        Field((3,), dtype, codec, chunk=4, shard=8 if codec == "zstd" else None),
        Field((2,), dtype, chunk=5),
        {"same": Field((2, 2), dtype, chunk=6)},
        "float64",
    )
    for dtype in DTYPES
    for codec in ("raw", "zstd")
}
LAYOUTS |= {
    "defaults, a plane of 40x40": Layout(Field((40, 40)), Field((), "int64"), {}),
    "defaults, a vector": Layout(Field((17,), "float32"), Field((6,), "float32"), {}),
    "scalar frames": Layout(Field((), "float64", "lz4", 2, 4), ACTION, {}),
    "frames of three dimensions": Layout(Field((4, 3, 2), "uint8", "lz4", 2, 6), ACTION, {}),
    "dict": Layout(
        {
            "image": Field((4, 4, 3), "uint8", "lz4", 2, 8),
            "joints.left": Field((3,), "float32", "raw", 5),
            "depth-1": Field(PLANE, "uint16", "zstd", 4, 8),
        },
        ACTION,
        {"log_prob": Field((), "float32"), "hidden": Field((2, 3), "float16", chunk=3)},
    ),
    "evicted, raw": layout_of("raw", capacity=10),
    "evicted, lz4": layout_of("lz4", capacity=10),
    "evicted to the last": layout_of("zstd", capacity=1),
    "one lane of many": layout_of("lz4", lanes=1),
    "many lanes": layout_of("lz4", lanes=3),
    "many lanes, evicted, raw": layout_of("raw", lanes=3, capacity=40),
}
STEPS = {"whole shards": 11, "a short last chunk": 13, "some rows": 150, "one row": 0}


def write(path, layout, n_steps, *, reopened=False):
    model = layout.model()
    random = np.random.default_rng(3)
    with layout.create(path) as writer:
        pair = Pair(writer, model, random)
        pair.reset(range(len(model.lanes)))
        pair.together(n_steps, end=0.05)
    for lane in model.lanes:
        lane.end_session()
    if reopened:
        with layout.create(path, append=True) as writer:
            Pair(writer, model, random).together(20)
        for lane in model.lanes:
            lane.end_session()
    return model


def check_readers(path, model: Model):
    checks.check_plain_zarr(path)
    checks.check_verified(path)
    with mmreplay.open(path) as store:
        for view, lane in zip(store.lanes, model.lanes, strict=True):
            lane.forget(view.base)
            columns = checks.columns_of(view, model.schema)
            for name, ours in columns.items():
                mine = ours[:]
                checks.check_same(mine, lane.column(name), f"{view.path}: {name}")
                check_array(view.path, view.base, name, mine)
            starts = [row for row in range(view.base, len(lane.rows)) if lane.rows[row].is_reset]
            found = zarr.open_array(view.path / "episodes" / "starts", mode="r")
            checks.check_same(found[:], np.array(starts, np.int64), "episodes/starts")
            checks.check_same(read_tensorstore(view.path / "episodes" / "starts"), found[:], "")
            check_checksums(view.path, checks.row_paths(model.schema), view.rows)


def check_array(folder, base, name, mine):
    """Below base we show zeros; others may still see the rows that share a file with newer ones."""
    theirs = zarr.open_array(folder / name, mode="r", zarr_format=3)
    assert theirs.shape == mine.shape
    assert theirs.dtype == mine.dtype
    rows = checks.chunk_rows(folder, name)
    gone = base // rows * rows
    for read in (theirs[:], read_tensorstore(folder / name)):
        checks.check_same(read[base:], mine[base:], f"{folder}: {name}")
        checks.check_same(read[:gone], np.zeros_like(mine[:gone]), f"{folder}: {name}, evicted")


def check_checksums(folder, names, n_rows):
    """uint32, one a chunk file; a file that is there has one, and nothing but uint32s."""
    for name in names:
        found = zarr.open_array(folder / "checksums" / name, mode="r")
        assert found.dtype == np.uint32
        assert found.shape == (-(-n_rows // checks.chunk_rows(folder, name)),)
        values = found[:]
        for number in checks.chunk_files(folder, name):
            assert values[number], f"{name}: chunk file {number} has no checksum"
        checks.check_same(read_tensorstore(folder / "checksums" / name), values, "checksums")


def check_vector_readers(path, model: VectorPair):
    """Of ticks and starts, everybody reads what the model has; of ticks, our reader too."""
    checks.check_plain_zarr(path)
    assert list(mmreplay.verify(path).findings) == []
    with mmreplay.open(path) as store:
        view, base = store.lanes[0], store.lanes[0].base
        named = [one.number for one in model.ticks[base].values()]
        first_start = min(named) if base else 0
        assert_closed_lane_matches(model, path, base, first_start)
        ours = {name: getattr(view, name) for name in ("frames", "actions", "rewards")}
        ours |= {name: getattr(view, name) for name in ("non_terminals", "ends", "episode")}
        ours["extras/x"] = view.extras["x"]
        for name, column in ours.items():
            check_array(path / "ticks", base, name, column[:])
        first_frames = zarr.open_array(path / "starts" / "frames", mode="r")[:]
        for number in range(len(store.episodes)):
            one = store.trajectory(number)
            tick, env = divmod(int(one.ids[0]), model.width)
            start = model.ticks[tick][env]
            if start.tick == tick:  # its first step is kept
                frame = first_frames[start.number]
                checks.check_same(frame, one.observation[0], f"start {start.number}")
    # Starts that are not needed go with a later flush than the ticks that named them.
    for folder, n_rows, oldest in (
        (path / "ticks", len(model.ticks), base),
        (path / "starts", len(model.episodes), 0),
    ):
        columns = model.columns(folder.name)
        for name in columns:
            check_array(folder, oldest, name, zarr.open_array(folder / name, mode="r")[:])
        check_checksums(folder, columns, n_rows)


def read_tensorstore(path: Path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    array = tensorstore.open(spec, open=True, read=True).result().read().result()
    return np.asarray(array)


def check_members(path):
    """Every node is an array or group that zarr-python knows, and no other thing is about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = zarr.open_group(path, mode="r", zarr_format=3)
        nodes = dict(group.members(max_depth=None))
        for node in nodes.values():
            assert isinstance(node, zarr.Array | zarr.Group)
        for lane in [*path.glob("lane-*")] or [path]:
            check_copied_members(lane)
    assert [str(one.message) for one in caught] == []
    found = {str(Path(one).parent.relative_to(path)) for one in path.rglob("zarr.json")} - {"."}
    assert set(nodes) == found


def check_copied_members(lane):
    """zarr-python sees the same with the copy of all documents, and without it."""
    groups = [
        zarr.open_group(lane, mode="r", zarr_format=3, use_consolidated=one)
        for one in (True, False)
    ]
    assert [one.metadata.consolidated_metadata is None for one in groups] == [False, True]
    copied, own = (dict(one.members(max_depth=None)) for one in groups)
    assert copied.keys() == own.keys()
    for name, node in own.items():
        if isinstance(node, zarr.Array):
            assert copied[name].metadata == node.metadata
            checks.check_same(copied[name][:], node[:], f"{lane}: {name}")
        else:
            assert dict(copied[name].attrs) == dict(node.attrs)
            assert {*copied[name].keys()} == {*node.keys()}


def test_the_copy_has_the_documents_that_zarr_itself_would_consolidate(tmp_path):
    for path, kind in ((tmp_path / "v.zarr", {"lanes": 3}), (tmp_path / "l.zarr", {})):
        mmreplay.create(path, **FIELDS, **kind).close()
        ours = zarr.open_group(path, mode="r", use_consolidated=True).metadata
        keys = list(copied_documents(path))
        with pytest.warns(UserWarning, match="not part in the Zarr format 3"):
            zarr.consolidate_metadata(path)
        theirs = zarr.open_group(path, mode="r", use_consolidated=True).metadata
        assert ours.consolidated_metadata == theirs.consolidated_metadata
        assert keys == list(copied_documents(path))
        checks.check_verified(path)  # in other words, it says the same


def copied_documents(path):
    return json.loads((path / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]


def is_quick(name):
    """Whether it is no dtype with the other of the two codecs, in turn."""
    kind, *given = name.split()
    return kind != "dtype" or given[1] == ("raw", "zstd")[DTYPES.index(given[0]) % 2]


@pytest.mark.parametrize(
    "name",
    [
        one if is_quick(one) else pytest.param(one, marks=pytest.mark.deep(only=True))
        for one in sorted(LAYOUTS)
    ],
)
def test_zarr_and_tensorstore_read_every_array_as_we_do(tmp_path, name):
    path = tmp_path / "s.zarr"
    model = write(path, LAYOUTS[name], 150 if "evicted" in name else 40)
    check_readers(path, model)
    check_members(path)


@pytest.mark.parametrize("n_steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_any_length_reads_the_same(tmp_path, codec, n_steps):
    path = tmp_path / "s.zarr"
    model = write(path, layout_of(codec), n_steps)
    check_readers(path, model)


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_empty_store_reads_as_empty_arrays(tmp_path, codec, lanes):
    path = tmp_path / "s.zarr"
    layout = layout_of(codec, lanes=lanes)
    layout.create(path).close()
    check_readers(path, layout.model())
    check_members(path)
    with mmreplay.open(path) as store:
        assert len(store) == 0
        assert store.ids.shape == (0,)
        assert len(store.episodes) == 0


@pytest.mark.parametrize("name", ["codec 1 lz4", "dict", "evicted, lz4", "many lanes"])
def test_store_that_was_closed_twice_reads_the_same(tmp_path, name):
    path = tmp_path / "s.zarr"
    model = write(path, LAYOUTS[name], 50, reopened=True)
    check_readers(path, model)
    check_members(path)


@pytest.mark.parametrize(("codec", "capacity"), [("raw", 60), ("lz4", None), ("zstd", 60)])
def test_vector_lane_reads_the_same(tmp_path, codec, capacity):
    path = tmp_path / "s.zarr"
    chunks = {"chunk": 8} if codec == "raw" else {"chunk": 4, "shard": 8}
    fields = FIELDS | {"frame": Field((3,), "float32", codec, **chunks)}
    writer = mmreplay.create(path, **fields, lanes=3, capacity=capacity, flush_s=0)
    model = of_writer(writer)
    with writer:
        model.play(60 if capacity is None else 150)
    check_vector_readers(path, model)
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        model.reopened(writer)
        model.play(13)
    check_vector_readers(path, model)
    check_members(path)
    with mmreplay.open(path) as store:
        assert (store.lanes[0].base > 0) == (capacity is not None)


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_empty_vector_lane_reads_as_empty_arrays(tmp_path, codec):
    path = tmp_path / "s.zarr"
    mmreplay.create(path, FIELDS["frame"], FIELDS["action"], codec=codec, lanes=3).close()
    checks.check_plain_zarr(path)
    check_members(path)
    for name, array in zarr.open_group(path, mode="r").members(max_depth=None):
        if isinstance(array, zarr.Array):
            assert array.shape[0] == 0, name
            checks.check_same(read_tensorstore(path / name), array[:], name)
    with mmreplay.open(path) as store:
        assert store.lanes[0].frames.shape == (0, 3, 3)
        assert len(store.episodes) == 0


def test_lanes_of_several_processes_read_the_same(tmp_path):
    path = tmp_path / "s.zarr"
    layout = layout_of("lz4")
    schema = {"frame": layout.frame, "action": layout.action}
    model = Model(layout.schema, [None, None])
    for number, name in enumerate(["actor-b", "actor-a"]):
        with mmreplay.create(path, **schema, lane=name, flush_s=0) as writer:
            one = Model(layout.schema)
            Pair(writer, one, np.random.default_rng(number)).together(30)
            one.lanes[0].end_session()
            model.lanes[number] = one.lanes[0]
    check_readers(path, model)
    check_members(path)
    with mmreplay.open(path) as store:
        assert [view.name for view in store.lanes] == ["actor-b", "actor-a"]
        checks.check_store(store, model, live=False)


def test_zarr_group_of_a_store_is_read_only_and_has_our_attributes(tmp_path):
    path = tmp_path / "s.zarr"
    write(path, LAYOUTS["codec 1 lz4"], 20)
    with mmreplay.open(path) as store:
        group = store.zarr()
        own = group.attrs["mmreplay"]
        assert own["format"] == 1
        assert own["rows"] == store.lanes[0].rows
        assert own["closed"] is True
        with pytest.raises(ValueError, match="read-only"):
            group.create_group("more")
