"""Stores that were written once, by the first version of each format, are read for ever.

Invariant: what is in `golden/` never changes, and a test never writes there. The expected values
come from the model, by `golden/make_golden.py`.
"""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from tests.support.oracle import checks

FOLDER = Path(__file__).parent / "golden" / "format-1"
ARCHIVED = "crashed-many-lanes"
NAMES = (
    ARCHIVED,
    "breakout-lz4",
    "breakout-zstd-many-lanes-evicted",
    "crashed-vectors",
    "dict-of-everything",
)
FIELDS = "observation next_observation action reward discount non_terminal id weight extras"


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
        assert view.resets[:].tolist() == lane["resets"]
        columns = checks.columns_of(view, store.schema)
        assert {path: digest(one[:]) for path, one in columns.items()} == lane["columns"]
    for one in expected["batches"]:
        batch = store.transitions(store.ids, **one["settings"])
        assert {name: digest(getattr(batch, name)) for name in FIELDS.split()} == one["fields"]


def fingerprint(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def stored(tmp_path):
    """Where a golden store is: in the repository, or unpacked from an archive there."""

    def find(name):
        if name != ARCHIVED:
            return FOLDER / f"{name}.zarr"
        with tarfile.open(FOLDER / f"{name}.zarr.tar.xz") as archive:
            archive.extractall(tmp_path / "unpacked", filter="data")
        return tmp_path / "unpacked" / f"{name}.zarr"

    return find


@pytest.fixture(params=NAMES)
def golden(request, stored):
    path = stored(request.param)
    before = fingerprint(path)
    assert before, f"{path} is missing; it is part of the repository"
    yield path, expectations()[request.param]
    assert fingerprint(path) == before


def test_every_golden_store_is_there_and_none_is_untested():
    assert sorted(expectations()) == sorted(NAMES)
    found = [path.name.partition(".zarr")[0] for path in FOLDER.glob("*.zarr*")]
    assert sorted(found) == sorted(NAMES)


def test_golden_store_reads_as_on_the_day_it_was_written(golden):
    path, expected = golden
    with mmreplay.open(path) as store:
        check(store, expected)
    checks.check_verified(path)


def test_golden_store_can_be_loaded_and_sampled(golden):
    path, expected = golden
    with mmreplay.load(path, stack=4, n_step=3, seed=0) as data:
        batch = data.sample(64)
        assert np.isin(batch.id, expected["ids"]).all()
        checks.check_batch(data.transitions(batch.id), batch)


def test_copy_of_a_golden_store_goes_on(golden, tmp_path):
    path, expected = golden
    copy = tmp_path / path.name
    shutil.copytree(path, copy)
    lanes = sorted(copy.glob("lane-*")) or [copy]
    for lane in lanes:
        mmreplay.create(lane, append=True, flush_s=0).close()
    checks.check_plain_zarr(copy)
    with mmreplay.open(copy) as store:
        check(store, expected)
    for lane, before in zip(lanes, expected["lanes"], strict=True):
        with mmreplay.create(lane, append=True, flush_s=0) as writer:
            assert writer.rows == before["rows"]
            fields = writer.schema.frames
            frames = {name: np.ones(one.shape, one.dtype) for name, one in fields.items()}
            writer.reset(frames if writer.schema.is_dict else frames["frame"])
    with mmreplay.open(copy) as store:
        for view, before in zip(store.lanes, expected["lanes"], strict=True):
            assert view.rows == before["rows"] + 1
            assert view.rewards[: before["rows"]].tolist() == before["rewards"]


def test_closed_golden_stores_are_plain_zarr():
    for name in NAMES:
        if not name.startswith("crashed"):
            checks.check_plain_zarr(FOLDER / f"{name}.zarr", copied=False)


def test_golden_stores_stay_small():
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(sizes) < 400_000
