"""The power goes off where the simulator does not come: after an fsync that failed, between two boots.

Invariant: whatever part of the unsynced survives, the store opens again, and holds a prefix of what
was written that has at least every row of the last flush that returned. Of the power that goes at
any call see tests/crash/test_simulator.py.
"""

import collections
import dataclasses
import random
import shutil
import sys
import uuid

import numpy as np
import pytest

import mmreplay
from mmreplay.format.layout import ArraySpec
from mmreplay.storage.checksums import Checksums, stored_checksum
from mmreplay.storage.state_page import CheckpointFile
from mmreplay.system import durable_writes
from tests.support.disks import faults, mounts
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.power_cut.layouts import LAYOUTS
from tests.support.power_cut.power import power_disk
from tests.support.quiet import settle

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs the path of a descriptor"),
    pytest.mark.usefixtures("short_chunks"),
]
Field = mmreplay.Field
N_IMAGES = by_effort(6, 6, 24)

RAW = Layout(Field((3, 4), "uint8", "raw", 8), Field((), "int64", chunk=11))
EVICTING = Layout(Field((3,), "uint8", "raw", 4), Field((), "int64", chunk=3))
LZ4 = Layout(Field((3, 4), "uint8", "lz4", 2, 4), Field((), "int64", chunk=13))


def play(writer, layout, n_steps):
    """That many steps of a new store."""
    Pair(writer, layout.model(), np.random.default_rng(1)).play(n_steps)


class Death(BaseException):
    """Nothing of the process goes on."""


def test_a_store_whose_maker_died_before_its_name_was_durable_stays(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    layout = LZ4

    is_alive = True

    def die(number):
        if is_alive and (root / "s.zarr").exists():
            raise Death

    with power_disk(root, die) as disk:
        with pytest.raises(Death):
            layout.create(root / "s.zarr", append=True)
        is_alive = False
        with layout.create(root / "s.zarr", append=True) as writer:
            play(writer, layout, 12)
            writer.flush()
            disk.image(tmp_path / "image")
    with mmreplay.open(tmp_path / "image" / "s.zarr") as store:
        assert min(view.rows for view in store.lanes) >= 12


@pytest.mark.parametrize("layout", [RAW, LZ4], ids=["raw", "lz4"])
def test_a_close_that_was_not_durable_is_so_before_the_next_writer_removes_anything(
    tmp_path, layout
):
    root = tmp_path / "root"
    root.mkdir()
    path = root / "s.zarr"
    deadly = []  # the writer dies once one of them is true

    def die(number):
        if any(is_true() for is_true in deadly):
            raise Death

    arguments = {**layout.create_arguments(), "flush_s": 0, "append": True}
    with power_disk(root, die) as disk:
        writer = mmreplay.create(path, **arguments)
        play(writer, layout, 12)
        writer.flush()
        deadly.append(lambda: b'"closed": true' in (path / "zarr.json").read_bytes())
        with pytest.raises(Death):
            writer.close()
        faults.kill(writer)
        deadly[:] = [lambda: not (path / ".live/checkpoint").exists()]
        with pytest.raises(Death):
            mmreplay.create(path, **arguments)
        for seed in range(N_IMAGES):
            disk.image(tmp_path / str(seed), random.Random(seed))
    for seed in range(N_IMAGES):
        with mmreplay.create(tmp_path / str(seed) / "s.zarr", **arguments) as writer:
            assert writer.rows >= 12


def test_killed_in_an_eviction_and_in_the_recovery_no_row_is_missed(tmp_path):
    path, deadly = tmp_path / "s.zarr", []

    def die(number):
        if deadly and disk.calls[-2:] == deadly:
            raise Death

    layout = EVICTING
    with power_disk(tmp_path, die, stores=True) as disk:
        with layout.create(path) as writer:
            play(writer, layout, 120)
        arguments = {"capacity": 10, "append": True, "flush_s": 0}
        writer = mmreplay.create(path, **arguments)
        deadly[:] = "fdatasync", "store"  # the checkpoint is written, and base not stored
        with pytest.raises(Death):
            writer.flush()
        deadly.clear()
        faults.kill(writer)
        deadly[:] = "unlink", "unlink"  # the recovery has deleted something
        with pytest.raises(Death):
            mmreplay.create(path, **arguments)
        deadly.clear()
        disk.die()
    checks.check_verified(path)
    with mmreplay.load(path, stack=4) as data:
        assert len(data) == 10
        data.transitions(data.ids)


def test_the_old_checksum_of_a_shard_rewritten_after_a_power_cut_does_not_come_back(tmp_path):
    """Its first checksum reached the disk early, and neither its end nor the second one did."""
    layout = dataclasses.replace(LZ4, action=Field((), "int64"))
    root = tmp_path / "root"
    root.mkdir()

    def append(n_rows, seed, *, flush_at=None):
        writer = layout.create(root / "s.zarr", append=True)
        random = np.random.default_rng(seed)
        writer.reset(random.integers(0, 256, (3, 4), "uint8"))
        while writer.rows < n_rows:
            writer.step(0, 0.0, random.integers(0, 256, (3, 4), "uint8"))
            if writer.rows == flush_at:
                writer.flush()
        settle(writer)
        faults.kill(writer)

    with power_disk(root, lambda _: None) as disk:
        append(10, seed=1, flush_at=6)
        durable_writes.sync_file(
            root / "s.zarr/checksums/frames/c.0"
        )  # as the kernel may at any time
        with mounts.booted(bytes(15) + b"1"):
            append(10, seed=2)
        disk.image(tmp_path / "image")
    with mounts.booted(bytes(15) + b"2"), mmreplay.open(tmp_path / "image/s.zarr") as store:
        assert store.lanes[0].rows == 6
        checks.check_verified(tmp_path / "image/s.zarr")


def test_checksums_that_a_failed_sync_left_in_the_page_cache_are_durable_after_the_next(tmp_path):
    root, image = tmp_path / "root", tmp_path / "image"
    spec = ArraySpec("rewards", (), np.dtype("float32"), 10)
    (root / "checksums" / "rewards").mkdir(parents=True)

    def sums():
        return Checksums(root, {"rewards": spec}, collections.deque())

    with power_disk(root, lambda _: None) as disk:
        before = sums()
        before.set(spec, 5, 7)
        disk.syncs_until_failure = 1
        with pytest.raises(mmreplay.FailedStoreError):
            before.sync()
        again = sums()
        again.forget(20_000, 0)  # those of another file
        again.sync()
        durable_writes.sync_directory(root / "checksums" / "rewards")
        disk.image(image)
    assert stored_checksum(image, spec, 5) == 7


def test_a_checkpoint_that_is_only_in_the_page_cache_is_durable_before_the_next_is_written(
    tmp_path,
):
    root, store = tmp_path / "root", uuid.uuid4().hex
    root.mkdir()
    path, images = root / "checkpoint", []

    def look(_):
        if disk is not None and disk.calls[-1] == "fdatasync":
            for number in range(40):
                images.append(tmp_path / f"image-{len(images)}")
                disk.image(images[-1], random.Random(number))

    disk = None
    with power_disk(root, look) as watched:
        CheckpointFile.create(path, store, head=0, tail_start=0, base=0, before=0)
        first = CheckpointFile(path, store)
        durable_writes.sync_directory(root)
        first.write(head=10)
        watched.syncs_until_failure = 1
        with pytest.raises(mmreplay.FailedStoreError):
            first.write(head=20)
        disk = watched
        again = CheckpointFile(path, store)
        assert again.best.head == 20
        again.renew()
        again.write(head=30)
    assert images
    assert {CheckpointFile(one / "checkpoint", store).best.head for one in images} == {10, 20, 30}


@pytest.mark.deep
@pytest.mark.parametrize("n", [1, 3])
def test_failed_fsync_and_then_a_power_cut_lose_nothing_that_was_flushed(tmp_path, n):
    luck = random.Random(n if not THOROUGH else None)
    # The files of making a store come first: nothing has its name then.
    first, n_failures = by_effort((25, 1), (25, 1), (1, 149))
    n_trials = n_failed = 0
    for layout in LAYOUTS[n][:: by_effort(3, 1, 1)]:
        for number in luck.sample(range(first, 150), n_failures):
            root, image = tmp_path / f"root-{n_trials}", tmp_path / f"image-{n_trials}"
            root.mkdir()
            n_trials += 1
            with power_disk(root, lambda _: None) as disk:
                failing = Failing(root / "s.zarr", layout)
                disk.syncs_until_failure = number
                for ending in ("close", "flush", "close", "die"):
                    failing.live(ending)
                disk.image(image, luck.choice((None, luck)))
            n_failed += failing.n_failed
            failing.check(image / "s.zarr")
            shutil.rmtree(root)
            shutil.rmtree(image)
    assert n_failed >= n_trials // 3


class Failing:
    """A store whose writers meet a disk that fails, and open it again."""

    def __init__(self, path, layout):
        self.path, self.layout, self.model = path, layout, layout.model()
        self.lane = self.model.lanes[0]
        self.random = np.random.default_rng(3)
        self.promised = self.n_failed = 0

    def live(self, ending):
        """One session: two flushes, and rows after them."""
        writer = None
        try:
            writer = self.layout.create(self.path, append=True)
            assert self.promised <= writer.rows <= len(self.lane.rows)
            self.lane.cut(writer.rows)
            pair = Pair(writer, self.model, self.random)
            for _ in range(2):
                pair.play(13, 0.15, "any")
                self.call(writer.flush)
            pair.play(9)
            if ending == "die":
                faults.kill(writer)
            else:
                self.call(getattr(writer, ending))
        except mmreplay.FailedStoreError:
            self.n_failed += 1
        if writer is not None and ending != "die":
            writer.close()
        self.lane.end_session()

    def call(self, call):
        rows = len(self.lane.rows)
        call()
        self.promised = rows

    def check(self, path):
        """An image, read-only, and as the next writer finds it."""
        with mmreplay.open(path) as store:
            rows = store.lanes[0].rows
            assert self.promised <= rows <= len(self.lane.rows)
            self.lane.cut(rows)
            checks.check_store(store, self.model, most=20)
        checks.check_verified(path)
        with mmreplay.create(path, append=True, flush_s=0) as writer:
            Pair(writer, self.model, self.random).play(5)
        self.lane.end_session()
        with mmreplay.open(path) as store:
            checks.check_store(store, self.model, most=20)
        check_plain_zarr(path)
        checks.check_verified(path)
