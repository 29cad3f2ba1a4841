"""Snapshots while others write, and snapshots that are cut off.

Invariant: a snapshot is what its source was at one moment, lane by lane; neither of the two ever
changes with the other; cut off, there is none, and the next one works.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmreplay
from mmreplay import snapshot
from tests.support.disks import faults
from tests.support.disks.faults import CALLS, faulty_disk
from tests.support.disks.trees import contents, names
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.pair import Pair
from tests.support.processes import actor
from tests.support.tampering import flips

pytestmark = pytest.mark.deep

KINDS = sorted(flips.KINDS)
CUT_OFF = [
    "priorities, zstd",
    pytest.param("several, large", marks=pytest.mark.deep(only=True)),
    pytest.param("several, priorities", marks=pytest.mark.deep(only=True)),
]
SCRIPTS = {
    "raw": {"frame": {"frame": [(6, 8), "uint8", "raw", 16]}, "capacity": 400},
    "lz4": {"frame": {"frame": [(6, 8), "uint8", "lz4", 4, 16]}},
    "dict": {
        "frame": {
            "image": [(5, 5, 3), "uint8", "zstd", 4, 16],
            "joints": [(7,), "float32", "raw", 16],
        },
        "capacity": 700,
    },
    "several, large": {
        "frame": {"frame": [(64, 64), "uint8", "raw", 8]},
        "envs": 2,
        "capacity": 90,
    },
}


def rows(path):
    """What a store says, but for what a copy chooses anew, and that a closed one has an end."""
    said = flips.everything(path)
    own = f"{path.name} {path.name} "
    out = {
        name.replace(own, "rows ").replace(f"{path.name} finals ", "finals "): one
        for name, one in said.items()
        if "attributes" not in name and name != "episodes"
    }
    # Those that run end with a close, and it sets `ends`.
    return {name: one for name, one in out.items() if "finals" not in name and "ends" not in name}


def take(path, target):
    """A snapshot; None of a store whose few rows come and go while it is copied."""
    try:
        return snapshot(path, target)
    except mmreplay.CorruptStoreError as error:
        assert "while it was being copied" in str(error)
        return None


@pytest.mark.parametrize("name", by_effort(["dict"], list(SCRIPTS), list(SCRIPTS)))
def test_snapshots_are_whole_while_a_process_writes_seals_evicts_and_closes(
    tmp_path, name, measured
):
    luck = random.Random(name)
    script = actor.Script(
        path=str(tmp_path / "store.zarr"),
        report=str(tmp_path / "report"),
        seed=luck.randrange(2**32),
        flush_s=0.005,
        rows=by_effort(200, 500, 3_000),
        pause_s=by_effort(0.002, 0.003, 0),  # else a store that is read slowly is a large one
        session=1,
        action_chunk=16,
        **SCRIPTS[name],
    )
    source, n_rows = Path(script.path), []
    with actor.Actors() as actors:
        chronicle = actor.Chronicle(script)
        pid = actors.start(script)
        chronicle.wait_for_rows()
        while len(n_rows) < by_effort(2, 4, 200):
            target = tmp_path / "copy.zarr"
            before = chronicle.committed
            if take(source, target) is None:
                continue
            after = chronicle.committed
            checks.check_verified(target)
            check_plain_zarr(target)
            with mmreplay.open(target) as store:
                found = [view.rows for view in store.lanes]
                for low, n, high in zip(before, found, after, strict=True):
                    assert low <= n <= high + 1
                script.plot.check_batch(store.transitions(store.ids, stack=3), stack=3)
            n_rows.append(sum(found))
            shutil.rmtree(target)
        assert actors.kill(pid) == -9
    chronicle_rows = sum(chronicle.committed)
    assert n_rows == sorted(n_rows)
    assert chronicle_rows >= n_rows[-1] - len(chronicle.model.lanes)
    result = measured(f"snapshots_{name.replace(', ', '_')}", store=name)
    result.add("snapshots beside a writer", len(n_rows), "")


@pytest.mark.parametrize("state", ["closed", "live", "crashed"])
@pytest.mark.parametrize(
    "name",
    by_effort(["priorities, zstd", "several, large"], [*KINDS[::4], "several, large"], KINDS),
)
def test_writing_to_a_store_or_its_snapshot_leaves_the_other_as_it_was(tmp_path, name, state):
    """They share files: no store into one may reach the other."""
    kind = flips.KINDS[name]
    source, copy, second = (tmp_path / one for one in ("a.zarr", "b.zarr", "c.zarr"))
    writer = flips.record(source, kind)
    if state != "live":
        (writer.close if state == "closed" else lambda: faults.kill(writer))()
    assert snapshot(source, copy).shared_bytes > 0
    snapshot(copy, second)
    known = rows(copy)
    assert rows(second) == known
    files = contents(copy)
    if state == "live":
        play(writer.writers if kind.layout.lanes else [writer], kind)
        writer.flush()
        writer.close()
    else:
        go_on(source, kind)
    assert contents(copy) == files
    both = contents(source), contents(second)
    go_on(copy, kind)
    assert (contents(source), contents(second)) == both
    assert rows(second) == known
    for one in (source, copy, second):
        checks.check_verified(one)
    shutil.rmtree(source)
    assert rows(second) == known


def go_on(path, kind):
    writers: list[Any]
    if kind.layout.lanes:
        writers = [mmreplay.create(path, lane=view.name, flush_s=0) for view in lanes_of(path)]
    else:
        writers = [(kind.buffer or mmreplay.ReplayBuffer)(path, stack=2, flush_s=0)]
    play(writers, kind)
    for one in writers:
        one.close()


def lanes_of(path):
    with mmreplay.open(path) as store:
        return store.lanes


def play(writers, kind):
    """Some steps, and what a buffer does between them."""
    pair = Pair(writers, kind.layout.model(), np.random.default_rng(5))
    for lane in range(len(writers)):
        pair.reset(lane=lane)  # whatever has been running ends
    pair.play(40, mode="any" if kind.layout.environments else "at once")
    if isinstance(pair.writer, mmreplay.PrioritizedReplayBuffer):
        ids = pair.writer.ids
        pair.writer.update_priorities(ids, np.full(len(ids), 7.5))


def test_a_snapshot_on_another_file_system_copies_every_file(tmp_path):
    other = Path(tempfile.mkdtemp(dir="/tmp" if str(tmp_path).startswith("/dev") else "/dev/shm"))
    try:
        if other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no other file system to be had")
        source = tmp_path / "store.zarr"
        flips.build(source, flips.KINDS["evicted, lanes"])
        made = snapshot(source, other / "copy.zarr")
        assert (made.shared_bytes, made.lanes) == (0, 2)
        assert rows(other / "copy.zarr") == rows(source)
        assert names(other) == ["copy.zarr"]
    finally:
        shutil.rmtree(other)


# ---------------------------------------------------------------- cut off


@pytest.fixture(params=CUT_OFF)
def crashed(tmp_path, request):
    """A store that nobody writes, so that each snapshot makes the same calls."""
    path = tmp_path / "store.zarr"
    faults.kill(flips.record(path, flips.KINDS[request.param]))
    return path


def points(path, n):
    """Some of the calls that a snapshot makes to the disk, and the last ones."""
    with faulty_disk() as disk:
        snapshot(path, path.with_name("counted.zarr"))
    shutil.rmtree(path.with_name("counted.zarr"))
    total = sum(disk.counts[name] for name in CALLS & disk.counts.keys())
    early = range(1, total - 12, max(total // n, 1))
    return [*early, *range(total - 12, total + 1, 1 if THOROUGH else 4)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nobody to kill")
def test_killed_at_any_call_and_called_again(crashed, tmp_path):
    known, n_whole = rows(crashed), 0
    before = contents(crashed)
    target = tmp_path / "copy.zarr"
    every = points(crashed, by_effort(2, 5, 10**9))
    for at in every:
        child = os.fork()
        if not child:
            with faulty_disk() as disk:
                disk.die(CALLS, at=at)
                snapshot(crashed, target)
            os._exit(0)
        os.waitpid(child, 0)
        if target.exists():
            n_whole += 1  # it has its name, which may not be durable
            for one in tmp_path.glob(".copy.zarr.*.tmp"):
                one.rmdir()  # empty
        else:
            snapshot(crashed, target)
        assert rows(target) == known
        assert names(tmp_path) == ["copy.zarr", "store.zarr"], at
        shutil.rmtree(target)
    assert n_whole
    assert contents(crashed) == before


def test_two_at_once_to_the_same_place(crashed, tmp_path):
    target, seen = tmp_path / "copy.zarr", []

    def second(done, total):
        if not seen:
            seen.append(done)
            snapshot(crashed, target)  # takes nothing of the first one's away

    with pytest.raises(mmreplay.StoreExistsError):
        snapshot(crashed, target, second)
    assert seen
    assert names(tmp_path) == ["copy.zarr", "store.zarr"]
    assert rows(target) == rows(crashed)
