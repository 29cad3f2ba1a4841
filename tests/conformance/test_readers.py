"""A closed store is plain zarr v3: zarr-python and tensorstore read what we read, without a warning.

Invariant: every array of a closed store has, for every reader, exactly `rows` rows and our values;
there is nothing else in the store.
"""

import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import xarray
import zarr

import mmreplay
from tests.support.oracle import checks, disk
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import FIELDS, Pair
from tests.support.oracle.strategies import CODECS, DTYPES, EPISODE

Field = mmreplay.Field
PLANE = (4, 5)
DEEP_ONLY = pytest.mark.deep(only=True)
ACTION = Field((), "int64", chunk=16)
WORKED_ON = {
    "derived": {"value": Field((), "float32"), "latent": Field((2, 3), "float16", chunk=3)},
    "episode": EPISODE,
}


def layout_of(codec, **more):
    chunks = {"chunk": 7} if codec == "raw" else {"chunk": 3, "shard": 12}
    return Layout(Field(PLANE, "uint8", codec, **chunks), ACTION, **more)


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
    "every dtype": Layout(
        {
            name: Field((3,), name, codec, chunk=4, shard=8 if codec == "zstd" else None)
            for name, codec in zip(DTYPES, itertools.cycle(("raw", "zstd")))
        },
        ACTION,
        {name: Field((2, 2), name, chunk=6) for name in DTYPES},
        "float64",
    ),
    "defaults, a plane of 40x40": Layout(Field((40, 40)), Field((), "int64")),
    "defaults, a vector": Layout(Field((17,), "float32"), Field((6,), "float32")),
    "scalar frames": Layout(Field((), "float64", "lz4", 2, 4), ACTION),
    "frames of three dimensions": Layout(Field((4, 3, 2), "uint8", "lz4", 2, 6), ACTION),
    "dict": Layout(
        {
            "image": Field((4, 4, 3), "uint8", "lz4", 2, 8),
            "joints.left": Field((3,), "float32", "raw", 5),
            "depth-1": Field(PLANE, "uint16", "zstd", 4, 8),
        },
        ACTION,
        {"log_prob": Field((), "float32"), "hidden": Field((2, 3), "float16", chunk=3)},
        environments=2,
        **WORKED_ON,
    ),
    "evicted, raw": layout_of("raw", capacity=10),
    "evicted, lz4": layout_of("lz4", capacity=10, **WORKED_ON),
    "evicted to the last": layout_of("zstd", capacity=1),
    "one environment, with an axis": layout_of("lz4", environments=1),
    "environments, raw": layout_of("raw", environments=3),
    "environments, large": Layout(Field((64, 64), "uint8", "raw", 7), ACTION, environments=3),
    "environments, evicted": layout_of("zstd", environments=3, capacity=60),
    "lanes": layout_of("lz4", lanes=2),
    "lanes of environments, evicted": layout_of(
        "raw", lanes=2, environments=2, capacity=40, **WORKED_ON
    ),
}
STEPS = {"a short last chunk": 13, "some rows": 60, "no row": 0}
QUICK = {
    *("every dtype", "codec 1 lz4", "codec 5 blosc-given", "dict", "evicted, lz4", "scalar frames"),
    *("defaults, a vector", "lanes of environments, evicted", "environments, large"),
}
"""The layouts that are read with every effort; the others only with more."""


def write(path, layout, n_steps, *, reopened=False):
    model, random = layout.model(), np.random.default_rng(3)
    for append in (False, True)[: 1 + reopened]:
        writers = layout.create_lanes(path, append=append)
        Pair(writers, model, random).play(n_steps, 0.05, "any")
        for writer in writers:
            writer.close()
        model.end_session()
    return model


def check_readers(path, model):
    """zarr, numpy and tensorstore read what the model has, and so do we."""
    disk.check_closed(path, model)
    checks.check_verified(path)
    check_members(path)
    with mmreplay.open(path) as store:
        checks.check_columns(store, model)
    for node in path.rglob("zarr.json"):
        if json.loads(node.read_bytes())["node_type"] == "array":
            theirs = zarr.open_array(node.parent, mode="r", zarr_format=3)[:]
            checks.check_same(read_tensorstore(node.parent), theirs, str(node.parent))


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


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[DEEP_ONLY] * (one not in QUICK)) for one in sorted(LAYOUTS)],
)
def test_zarr_and_tensorstore_read_every_array_as_we_do(tmp_path, name):
    path = tmp_path / "s.zarr"
    check_readers(path, write(path, LAYOUTS[name], 150 if "evicted" in name else 40))


@pytest.mark.parametrize("n_steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    ("codec", "environments"),
    [
        ("raw", None),
        ("lz4", 3),
        *(pytest.param(*one, marks=DEEP_ONLY) for one in (("raw", 3), ("lz4", None))),
    ],
)
def test_any_length_reads_the_same(tmp_path, codec, environments, n_steps):
    path = tmp_path / "s.zarr"
    layout = layout_of(codec, environments=environments)
    check_readers(path, write(path, layout, n_steps, reopened=n_steps == 13))


@pytest.mark.parametrize("name", ["dict", "environments, raw", "codec 1 lz4"])
def test_xarray_opens_a_closed_store_by_the_names_of_its_axes(tmp_path, name):
    path = tmp_path / "s.zarr"
    model = write(path, LAYOUTS[name], 40)
    expected = model.lanes[0].arrays()
    axes = ("step",) if model.lanes[0].environments is None else ("step", "env")
    groups = {"": axes, "frames": axes, "derived": axes}
    groups |= dict.fromkeys(("finals", "finals/frames", "episodes"), ("episode",))
    for group, first in groups.items():
        if not (path / group / "zarr.json").exists() or "shape" in disk.document_of(path / group):
            continue
        with xarray.open_zarr(path, group=group or None, consolidated=False) as data:
            assert data.variables
            for key, array in data.variables.items():
                where = f"{group}/{key}".strip("/")
                assert array.dims[: len(first)] == first
                # xarray shows a fill value in the place of what equals it, which is also 0.
                assert array.shape == expected[where].shape
                np.testing.assert_array_equal(
                    np.nan_to_num(array.values), np.nan_to_num(expected[where])
                )


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
