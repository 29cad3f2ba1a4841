"""An import makes a whole store or none, wherever it is cut off."""

import errno
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    DiskFullError,
    FailedStoreError,
    FormatError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    export_dataset,
    import_dataset,
)
from tests.support.disks.faults import ALLOCATING, faulty_disk
from tests.support.disks.trees import names
from tests.support.played_episodes import play, write

ARRAYS = {
    "observations": np.zeros((20_000, 2), "float32"),
    "actions": np.zeros(20_000, "int64"),
    "rewards": np.ones(20_000),
    "terminations": np.arange(20_000) % 100 == 99,
}


def test_what_was_made(tmp_path, quick_disk):
    seen = []
    made = import_dataset(
        "arrays",
        ARRAYS,
        tmp_path / "a.zarr",
        codec="raw",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert made.path == str(tmp_path / "a.zarr")
    assert made.to_json() == {
        "path": made.path,
        "format": "arrays",
        "transitions": 20_000,
        "episodes": 200,
        "terminated": 200,
        "truncated": 0,
        "bytes_on_disk": made.bytes_on_disk,
        "losses": [{"what": made.losses[0].what, "count": 200}],
    }
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.info()["state"] == "closed"
        assert store.rewards.dtype == np.float64


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("none.npz", "a.zarr", StoreNotFoundError),
        ("in.npz", "there.zarr", StoreExistsError),
        ("in.npz", "none/a.zarr", StoreNotFoundError),
        ("in.npz", "store.zarr/a.zarr", SchemaError),
        ("in.npz", "a\0.zarr", SchemaError),
    ],
)
def test_paths_that_cannot_be(tmp_path, quick_disk, source, target, error):
    (tmp_path / "there.zarr").mkdir()
    np.savez(tmp_path / "in.npz", **{key: rows[:100] for key, rows in ARRAYS.items()})
    import_dataset("arrays", tmp_path / "in.npz", tmp_path / "store.zarr")
    with pytest.raises(error):
        import_dataset("arrays", tmp_path / source, tmp_path / target)
    assert names(tmp_path) == ["in.npz", "store.zarr", "there.zarr"]


CHILD = """
import os, sys, signal, numpy, mmreplay
left = int(sys.argv[2])
def die(done, total):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
mmreplay.import_dataset("arrays", sys.argv[1] + "/in.npz", sys.argv[1] + "/a.zarr", progress=die)
"""


def test_a_kill_leaves_no_store_and_the_next_import_tidies_up(tmp_path, quick_disk):
    np.savez(tmp_path / "in.npz", **ARRAYS)
    command = [sys.executable, "-c", CHILD, str(tmp_path), "150"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "a.zarr").exists()
    assert len(names(tmp_path)) == 2  # what it was building
    made = import_dataset("arrays", tmp_path / "in.npz", tmp_path / "a.zarr")
    assert made.transitions == 20_000
    assert names(tmp_path) == ["a.zarr", "in.npz"]
    assert mmreplay.verify(tmp_path / "a.zarr").sound


@pytest.mark.parametrize("number", [1, 9, 12])
def test_a_full_disk_leaves_nothing(tmp_path, number):
    with faulty_disk() as disk:
        disk.fail(ALLOCATING, errno.ENOSPC, at=number, forever=True)
        with pytest.raises(DiskFullError):
            import_dataset("arrays", ARRAYS, tmp_path / "a.zarr")
    assert names(tmp_path) == []


def test_a_file_where_a_directory_is_expected_and_the_other_way_round(tmp_path):
    (tmp_path / "a.npz").touch()
    with pytest.raises(
        FormatError, match=r"a\.npz: cannot be read as minari: NotADirectoryError: "
    ):
        import_dataset("minari", tmp_path / "a.npz", tmp_path / "a.zarr")
    (tmp_path / "b.hdf5").mkdir()
    with pytest.raises(FormatError, match=r"b\.hdf5: expected .* files, found none"):
        import_dataset("d4rl", tmp_path / "b.hdf5", tmp_path / "a.zarr")


def test_a_limit_of_open_files_is_named(tmp_path, quick_disk):
    export_dataset(write(tmp_path / "a.zarr", play()), "arrays", tmp_path / "in")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest, n_failures = os.dup(0), 0
    os.close(lowest)
    for more in range(100):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
        try:
            import_dataset("arrays", tmp_path / "in", tmp_path / "b.zarr")
        except FailedStoreError as error:
            assert "ulimit -n" in str(error)
            n_failures += 1
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not (tmp_path / "b.zarr").exists()
    assert n_failures > 1
    with mmreplay.open(tmp_path / "b.zarr") as store:
        assert store.info()["state"] == "closed"


FEW = {name: rows[:4] for name, rows in ARRAYS.items()}


@pytest.mark.parametrize(
    ("dtype", "rewards", "n_rounded"),
    [
        ("int64", [2**60 + 1, -(2**53) - 1, 2**53, 5], 2),
        ("int64", [2**63 - 1, -(2**63), 0, 2**60], 1),
        ("uint64", [2**64 - 1, 2**63 + 1, 2**63, 1], 2),
        ("int32", [2**31 - 1, -(2**31), 0, 1], 0),
        ("float64", [1e300, np.nan, -np.inf, 0.1], 0),
        ("float32", [1e38, np.nan, -np.inf, 0.1], 0),
        ("bool", [True, False, True, False], 0),
    ],
)
def test_a_reward_that_is_rounded_is_a_loss(tmp_path, quick_disk, dtype, rewards, n_rounded):
    rewards = np.array(rewards, dtype)
    made = import_dataset("arrays", FEW | {"rewards": rewards}, tmp_path / "a.zarr")
    said = {one.what: one.count for one in made.losses if "rewards" in one.what}
    what = f"rewards of {dtype} that float64 does not hold exactly: rounded"
    with mmreplay.open(tmp_path / "a.zarr") as store:
        stored = store.schema.reward_dtype
    expected = {what: n_rounded} if n_rounded else {}
    if stored != dtype:
        expected[f"the dtype of rewards: {dtype}, stored as {stored}"] = 1
    assert said == expected
    with mmreplay.open(tmp_path / "a.zarr") as store:
        found = store.transitions(store.ids, stack=None).reward
        assert np.array_equal(found, rewards.astype(found.dtype), equal_nan=True)


def test_a_link_that_leads_nowhere_is_not_found(tmp_path):
    for name in ("loop", "nothing"):
        (tmp_path / name).symlink_to(tmp_path / ("loop" if name == "loop" else "missing"))
        with pytest.raises(StoreNotFoundError, match="this link leads to itself or to nothing"):
            mmreplay.import_dataset("arrays", tmp_path / name, tmp_path / "made.zarr")
