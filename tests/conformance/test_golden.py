"""Stores that were written once, by the first version of each format, are read for ever.

Invariant: what is in `golden/` never changes: `format-1` is of mmreplay 0.1.0, 100 kB of stores. The
expected values came from the model of `tests.support`, not from the code that wrote the stores;
those under "zarr" are digests of all arrays, evicted rows included, as zarr-python read them.
"""

import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import zarr

import mmreplay
from tests.support.oracle import checks, disk

FOLDER = Path(__file__).parent / "golden" / "format-1"
NAMES = [
    "crashed",
    "derived",
    "dict-of-everything",
    "live",
    "lz4",
    "priorities",
    "raw",
    "several-lanes",
    "three-environments",
    "zstd-evicted",
]
OPEN = ("crashed", "live")
CHECKSUMS = ("checksums", "finals/checksums")


def expectations():
    return json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def digest(array):
    if isinstance(array, dict):
        return {name: digest(one) for name, one in array.items()}
    array = np.ascontiguousarray(array)
    shape = "x".join(map(str, array.shape))
    return f"{array.dtype} {shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def check(store, expected):
    assert store.ids.tolist() == expected["ids"]
    assert len(store) == len(expected["ids"])
    assert store.episodes.tolist() == [tuple(one) for one in expected["episodes"]]
    for view, lane in zip(store.lanes, expected["lanes"], strict=True):
        assert (view.rows, view.base) == (lane["rows"], lane["base"])
        assert view.rewards[:].tolist() == lane["rewards"]
        columns = checks.columns_of(view, store.schema)
        found = {path: digest(one[:]) for path, one in columns.items()}
        if view.path.joinpath(".live").exists():  # whoever opens it to write says what ended
            found["ends"] = lane["columns"]["ends"]
        assert found == lane["columns"]
    for one in expected["batches"]:
        batch = store.transitions(store.ids, **one["settings"])
        assert {name: digest(getattr(batch, name)) for name in one["fields"]} == one["fields"]


@pytest.fixture(params=NAMES)
def golden(request, tmp_path):
    """A golden store, unpacked, and what it must read as."""
    with tarfile.open(FOLDER / f"{request.param}.tar.xz") as archive:
        # As `filter="data"` does, which Python has from 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    return tmp_path / f"{request.param}.zarr", expectations()[request.param]


def test_every_golden_store_is_there_and_none_is_untested():
    assert sorted(expectations()) == NAMES
    assert sorted(path.name for path in FOLDER.glob("*.tar.xz")) == [f"{n}.tar.xz" for n in NAMES]


def test_golden_store_reads_and_is_sampled_as_on_the_day_it_was_written(golden):
    path, expected = golden
    with mmreplay.open(path) as store:
        check(store, expected)
    checks.check_verified(path)
    if path.stem not in OPEN:
        disk.check_plain_zarr(path)
    with mmreplay.load(path, stack=4, n_step=3, seed=0) as data:
        batch = data.sample(64)
        assert np.isin(batch.id, expected["ids"]).all()
        checks.check_batch(data.transitions(batch.id), batch)


@pytest.mark.parametrize("golden", sorted(set(NAMES) - set(OPEN)), indirect=True)
def test_zarr_alone_reads_a_golden_store_as_on_the_day_it_was_written(golden):
    path, expected = golden
    for lane, arrays in zip(disk.lane_paths(path), expected["zarr"], strict=True):
        assert disk.attributes_of(lane)["versions"]["mmreplay"] == "0.1.0"
        members = dict(zarr.open_group(lane, mode="r").members(max_depth=None))
        found = {name for name, one in members.items() if isinstance(one, zarr.Array)}
        assert {name for name in found if not name.startswith(CHECKSUMS)} == arrays.keys()
        assert {name: digest(members[name][:]) for name in arrays} == arrays


def test_golden_store_goes_on(golden):
    path, expected = golden
    for lane, before in zip(disk.lane_paths(path), expected["lanes"], strict=True):
        name = disk.attributes_of(lane).get("name")
        given = {} if name is None else {"lane": name}
        with mmreplay.create(path, append=True, flush_s=0, **given) as writer:
            assert writer.rows == before["rows"]
    disk.check_plain_zarr(path)
    with mmreplay.open(path) as store:
        check(store, expected)
    if expected["priorities"]:
        with mmreplay.PrioritizedReplayBuffer(path, flush_s=0) as buffer:
            assert buffer.priorities(buffer.ids).tolist() == expected["priorities"]
    checks.check_verified(path)


@pytest.mark.parametrize("golden", ["derived"], indirect=True)
def test_columns_of_a_golden_store_are_updated_replaced_and_dropped(golden):
    path, expected = golden
    ids = expected["ids"]
    with mmreplay.load(path, update=["value", "latent"], stack=None) as data:
        data.update(ids[-2:], value=[7, 8])
        assert data.transitions(ids[-2:]).extras["value"].tolist() == [7, 8]
    mmreplay.add_column(path, "togo", np.full(len(ids), 3), replace=True)
    mmreplay.drop_column(path, "latent")
    with mmreplay.open(path) as store:
        found = store.transitions(ids).extras
    assert found.keys() == {"lives", "value", "togo"}
    assert (found["togo"] == 3).all()
    assert found["value"][-2:].tolist() == [7, 8]
    checks.check_verified(path)
    disk.check_plain_zarr(path)


def test_golden_stores_stay_small():
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(sizes) < 400_000
