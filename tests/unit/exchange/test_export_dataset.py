"""An export writes a whole dataset or none, and changes nothing of the store."""

import dataclasses
import errno
import signal
import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    EmptyBufferError,
    Field,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    export_dataset,
)
from mmreplay.exchange import arrays, formats
from tests.support.disks.faults import SYNCING, faulty_disk
from tests.support.disks.trees import contents, names
from tests.support.played_episodes import play, write


@pytest.fixture
def store(tmp_path, quick_disk):
    return write(tmp_path / "a.zarr", play((500, 300)))


def test_what_was_written(store, tmp_path):
    before, seen = contents(store), []
    made = export_dataset(
        store, "arrays", tmp_path / "a.npz", progress=lambda done, total: seen.append((done, total))
    )
    assert made.to_json() == {
        "path": str(tmp_path / "a.npz"),
        "format": "arrays",
        "transitions": 800,
        "episodes": 2,
        "bytes_on_disk": made.bytes_on_disk,
        "losses": [],
    }
    assert made.bytes_on_disk >= (tmp_path / "a.npz").stat().st_size // 2
    assert seen[-1][0] == seen[-1][1] > 0
    assert contents(store) == before
    assert names(tmp_path) == ["a.npz", "a.zarr"]


@pytest.mark.parametrize(("format", "file"), [("arrays", "a.npz"), ("robomimic", "a.hdf5")])
def test_derived_columns_are_exported_as_extras_are_and_left_out_by_name(
    store, tmp_path, format, file
):
    mmreplay.add_column(store, "togo", np.arange(800))
    mmreplay.add_column(store, "other", np.zeros((800, 2)))
    made = export_dataset(store, format, tmp_path / file, leave_out=["other"])
    mmreplay.import_dataset(format, made.path, tmp_path / "b.zarr")
    with mmreplay.open(tmp_path / "b.zarr") as back:
        assert back.extras["togo"][:].tolist() == list(range(800))
        assert "other" not in back.extras
    with pytest.raises(SchemaError, match=r"leave_out: expected extra columns, of .*'togo'"):
        export_dataset(store, format, tmp_path / "c", leave_out=["none"])


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("none.zarr", "a.npz", StoreNotFoundError),
        ("a.zarr", "a.zarr", StoreExistsError),
        ("a.zarr", "none/a.npz", StoreNotFoundError),
        ("a.zarr", "a.zarr/a.npz", SchemaError),
    ],
)
def test_paths_that_cannot_be(store, tmp_path, source, target, error):
    with pytest.raises(error):
        export_dataset(tmp_path / source, "arrays", tmp_path / target)
    assert names(tmp_path) == ["a.zarr"]


def test_a_store_without_a_step(tmp_path, quick_disk):
    with mmreplay.create(tmp_path / "a.zarr", Field((1,)), Field((), "int64")) as writer:
        writer.reset(np.zeros(1, np.uint8))
    with pytest.raises(EmptyBufferError, match="nothing to export: no whole episode"):
        export_dataset(tmp_path / "a.zarr", "arrays", tmp_path / "a.npz")


@pytest.mark.parametrize("target", ["b", "b.npz"])
def test_something_that_gets_the_name_meanwhile_is_not_replaced(
    store, tmp_path, monkeypatch, target
):
    write_arrays = arrays.write

    def slowly(*args, **options):
        write_arrays(*args, **options)
        (tmp_path / target).mkdir()
        (tmp_path / target / "mine").touch()

    chosen = dataclasses.replace(mmreplay.exchange_formats()[0], write=slowly)
    monkeypatch.setitem(formats._BY_NAME, "arrays", chosen)
    with pytest.raises(StoreExistsError, match="another process created it meanwhile"):
        export_dataset(store, "arrays", tmp_path / target)
    assert names(tmp_path) == ["a.zarr", target]
    assert names(tmp_path / target) == ["mine"]


CHILD = """
import os, sys, signal, mmreplay
from mmreplay.maintenance import episode_runs
episode_runs.block_steps = lambda row_bytes: 10
left = 30
def die(done, total):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
path = sys.argv[1]
mmreplay.export_dataset(path + "/a.zarr", "arrays", path + "/" + sys.argv[2], progress=die)
"""


def test_a_kill_leaves_no_dataset_and_the_next_export_tidies_up(store, tmp_path):
    target = "b.npz"
    command = [sys.executable, "-c", CHILD, str(tmp_path), target]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / target).exists()
    assert len(names(tmp_path)) == 2  # what it was writing
    export_dataset(store, "arrays", tmp_path / target)
    assert names(tmp_path) == ["a.zarr", target]


def test_a_disk_that_is_full_at_the_end_leaves_nothing(store, tmp_path, monkeypatch):
    monkeypatch.undo()  # of the quick disk
    with faulty_disk() as disk:
        disk.fail(SYNCING, errno.ENOSPC, forever=True)
        with pytest.raises(mmreplay.FailedStoreError):
            export_dataset(store, "arrays", tmp_path / "b")
    assert names(tmp_path) == ["a.zarr"]
