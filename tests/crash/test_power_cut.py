"""The power goes off at any call that reaches the disk: nothing that was flushed is lost.

Invariant: whatever part of the unsynced survives, the store opens again, and holds a prefix of what
was written that has at least every row of the last flush that returned.
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
from mmreplay.format import plan
from mmreplay.format.layout import ArraySpec
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.checksums import Checksums, stored_checksum
from mmreplay.system import durable_writes
from tests.support.disks import faults, mounts
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_closed, check_plain_zarr
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.power_cut.layouts import SHORT_CHUNKS
from tests.support.power_cut.power import power_disk
from tests.support.quiet import settle

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs the path of a descriptor"),
    pytest.mark.timeout(0 if THOROUGH else 900),
]
N_CUTS = by_effort(2, 8, None)
PAIR = ("write", "fdatasync")
Field = mmreplay.Field

LAYOUTS = {
    "raw": Layout(Field((3, 4), "uint8", "raw", 8), Field((), "int64", chunk=11), {}),
    "raw, evicting": Layout(
        Field((3,), "uint8", "raw", 4), Field((), "int64", chunk=3), {}, capacity=4
    ),
    "lz4": Layout(Field((3, 4), "uint8", "lz4", 2, 4), Field((), "int64", chunk=13), {}),
    "lz4, evicting": Layout(
        Field((3, 4), "uint8", "lz4", 1, 3), Field((), "int64", chunk=5), {}, capacity=9
    ),
    "dict": Layout(
        {"a": Field((5,), "float32", "raw", 6), "b": Field((2, 2), "uint16", "zstd", 3, 6)},
        Field((2,), "float32", chunk=9),
        {"thought": Field((), "float64", chunk=5)},
        capacity=15,
    ),
    "many, lz4": Layout(
        Field((3, 4), "uint8", "lz4", 2, 4),
        Field((), "int64", chunk=13),
        capacity=20,
        environments=3,
    ),
    "many, large": Layout(  # frames that lie environment by environment
        Field((4096,), "uint8", "raw", 8), Field((), "int64", chunk=11), environments=2
    ),
}

NAMES = [
    name
    if name in {"raw, evicting", "lz4", "dict", "many, large"}
    else pytest.param(name, marks=pytest.mark.deep(only=True))
    for name in sorted(LAYOUTS)
]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Those whose lengths no field gives; an image has a copy of each."""
    for name, rows in SHORT_CHUNKS.items():
        monkeypatch.setattr(plan, name, rows)


class Cuts:
    """Images of the disk as of some calls, with what had been promised by then."""

    def __init__(self, folder, root, luck, wanted):
        self.folder, self.luck, self.wanted = folder, luck, wanted
        self.root = root
        self.promised = None  # rows flushed, by lane
        self.images = []
        self.disk = None

    def before_call(self, number):
        if self.disk is None or (self.wanted is not None and number not in self.wanted):
            return
        for luck in (None, self.luck):
            target = self.folder / f"image-{len(self.images)}-{number}"
            self.disk.image(target, luck)
            self.images.append((target, self.promised))

    def __enter__(self):
        self.context = power_disk(self.root, self.before_call)
        self.disk = self.context.__enter__()
        return self

    def __exit__(self, *error):
        self.context.__exit__(*error)


def write(path, layout, model, cuts):
    """Three sessions: one is closed, one dies, one recovers; about fifty rows, flushes in each."""
    random = np.random.default_rng(1)
    for ending in ("close", "die", "close"):
        writer = layout.create(path, append=True)
        pair = Pair(writer, model, random)
        for _ in range(3):
            pair.play(13, 0.15, "any")
            rows = model.heads()
            writer.flush()
            cuts.promised = rows
        pair.play(9, 0.1)
        if ending == "die":
            faults.kill(writer)
        else:
            writer.close()
            cuts.promised = model.heads()
        model.end_session()


def check_image(path, model, promised, luck):
    """Read-only, then as the next writer finds it; returns the model of what is there."""
    if promised is None:
        promised = [0] * len(model.heads())
        if not path.exists():
            return
    found = model.copy()
    with mmreplay.open(path) as store:
        cut(store, found, promised)
        checks.check_store(store, found, most=12)
    checks.check_verified(path)
    again = path.with_name("again.zarr")
    if luck.random() < 0.3:
        cut_while_recovering(path, found, luck)
    shutil.copytree(path, again)
    with mmreplay.create(again, append=True, flush_s=0) as writer:
        with mmreplay.open(again) as store:
            assert store.ids.tolist() == found.ids().tolist()
        Pair(writer, found, np.random.default_rng(2)).play(5, 0.1)
    found.end_session()
    with mmreplay.open(again) as store:
        checks.check_store(store, found, most=12)
    check_closed(again, found)
    checks.check_verified(again)


def cut(store, model, promised):
    for view, lane, least in zip(store.lanes, model.lanes, promised, strict=True):
        assert least <= view.rows <= len(lane.rows), f"{least} rows were flushed: {view.rows}"
        lane.base = 0
        lane.cut(view.rows)
    checks.forget(store, model)


def cut_while_recovering(path, model, luck):
    """The power goes again while the store is opened: still nothing of it is lost."""
    root = path.parent
    copy = root.with_name(root.name + "-2")
    shutil.copytree(root, copy)
    images = root.with_name(root.name + "-3")
    images.mkdir()
    rows = model.heads()
    wanted = {luck.randrange(1, 60) for _ in range(3)}
    with Cuts(images, copy, luck, wanted) as cuts:
        cuts.promised = rows
        mmreplay.create(copy / path.name, append=True, flush_s=0).close()
    for image, promised in cuts.images:
        with mmreplay.open(image / path.name) as store:
            found = model.copy()
            cut(store, found, promised)
            checks.check_store(store, found, most=12)
    for one in (copy, images):
        shutil.rmtree(one)


class Death(BaseException):
    """Nothing of the process goes on."""


def test_a_store_whose_maker_died_before_its_name_was_durable_stays(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    layout = LAYOUTS["lz4"]

    is_alive = True

    def die(number):
        if is_alive and (root / "s.zarr").exists():
            raise Death

    with power_disk(root, die) as disk:
        with pytest.raises(Death):
            layout.create(root / "s.zarr", append=True)
        is_alive = False
        with layout.create(root / "s.zarr", append=True) as writer:
            Pair(writer, layout.model(), np.random.default_rng(1)).play(12)
            writer.flush()
            disk.image(tmp_path / "image")
    with mmreplay.open(tmp_path / "image" / "s.zarr") as store:
        assert min(view.rows for view in store.lanes) >= 12


@pytest.mark.parametrize("name", ["raw", "lz4"])
def test_a_close_that_was_not_durable_is_so_before_the_next_writer_removes_anything(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    path = root / "s.zarr"
    deadly = []  # the writer dies once one of them is true

    def die(number):
        if any(is_true() for is_true in deadly):
            raise Death

    arguments = {**LAYOUTS[name].create_arguments(), "flush_s": 0, "append": True}
    with power_disk(root, die) as disk:
        writer = mmreplay.create(path, **arguments)
        Pair(writer, LAYOUTS[name].model(), np.random.default_rng(1)).play(12)
        writer.flush()
        deadly.append(lambda: b'"closed": true' in (path / "zarr.json").read_bytes())
        with pytest.raises(Death):
            writer.close()
        faults.kill(writer)
        deadly[:] = [lambda: not (path / ".live/checkpoint").exists()]
        with pytest.raises(Death):
            mmreplay.create(path, **arguments)
        for seed in range(24):
            disk.image(tmp_path / str(seed), random.Random(seed))
    for seed in range(24):
        with mmreplay.create(tmp_path / str(seed) / "s.zarr", **arguments) as writer:
            assert writer.rows >= 12


def test_killed_in_an_eviction_and_in_the_recovery_no_row_is_missed(tmp_path):
    path, deadly = tmp_path / "s.zarr", []

    def die(number):
        if deadly and disk.calls[-2:] == deadly:
            raise Death

    layout = dataclasses.replace(LAYOUTS["raw, evicting"], capacity=None)
    with power_disk(tmp_path, die, stores=True) as disk:
        with layout.create(path) as writer:
            Pair(writer, layout.model(), np.random.default_rng(1)).play(120)
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


def test_rows_lost_in_a_power_cut_leave_no_checksum_file(tmp_path):
    root, image = tmp_path / "root", tmp_path / "image"
    root.mkdir()
    layout = LAYOUTS["lz4"]
    with power_disk(root, lambda _: None) as disk:
        writer = layout.create(root / "s.zarr")
        Pair(writer, layout.model(), np.random.default_rng(1)).play(12)
        writer.close()  # every name is durable, and no row is in what comes
        disk.image(image)
    for shard in (image / "s.zarr/checksums/frames").glob("c.*"):
        shutil.copy(shard, tmp_path / "sum")
    with layout.create(image / "t.zarr") as writer:
        shutil.copy(tmp_path / "sum", image / "t.zarr/checksums/frames/c.0")
    check_plain_zarr(image / "t.zarr")
    checks.check_verified(image / "t.zarr")


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_power_cut_at_any_call_loses_nothing_that_was_flushed(tmp_path, name):
    layout = LAYOUTS[name]
    luck = random.Random(name if not THOROUGH else None)

    def run(number, wanted):
        root, images = tmp_path / f"root-{number}", tmp_path / f"images-{number}"
        root.mkdir()
        images.mkdir()
        model = layout.model()
        with Cuts(images, root, luck, wanted) as cuts:
            write(root / "s.zarr", layout, model, cuts)
        return model, cuts

    _, counted = run(0, set())
    calls = counted.disk.calls
    n_calls = len(calls)
    assert n_calls > 200
    wanted = None
    if N_CUTS is not None:
        half = N_CUTS // 2  # of the rest, each comes when a write in place is not synced yet
        writes = [n + 1 for n, name in enumerate(calls[1:], 1) if (calls[n - 1], name) == PAIR]
        wanted = {*luck.sample(range(1, n_calls), half), *luck.sample(writes, half)}
    model, cuts = run(1, wanted)
    assert len(cuts.images) >= 2 * min(N_CUTS or n_calls, 8) - 4
    for image, promised in cuts.images:
        check_image(image / "s.zarr", model, promised, luck)
        shutil.rmtree(image)


def test_the_old_checksum_of_a_shard_rewritten_after_a_power_cut_does_not_come_back(tmp_path):
    """Its first checksum reached the disk early, and neither its end nor the second one did."""
    layout = Layout(Field((3, 4), "uint8", "lz4", 2, 4), Field((), "int64"), {})
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
        first = CheckpointFile.create(path, store, head=0, tail_start=0, base=0, before=0)
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
@pytest.mark.parametrize("name", NAMES)
def test_failed_fsync_and_then_a_power_cut_lose_nothing_that_was_flushed(tmp_path, name):
    layout = LAYOUTS[name]
    luck = random.Random(name if not THOROUGH else None)
    # The files of making a store come first: nothing has its name then.
    first, n_failures = by_effort((15, 2), (15, 6), (1, 99))
    numbers = luck.sample(range(first, 100), n_failures)
    n_failed = 0
    for number in numbers:
        root, image = tmp_path / f"root-{number}", tmp_path / f"image-{number}"
        root.mkdir()
        with power_disk(root, lambda _: None) as disk:
            failing = Failing(root / "s.zarr", layout)
            disk.syncs_until_failure = number
            for ending in ("close", "flush", "close", "die"):
                failing.live(ending)
            disk.image(image, luck.choice((None, luck)))
        n_failed += failing.n_failed
        check_image(image / "s.zarr", failing.model, failing.promised, luck)
        shutil.rmtree(root)
        shutil.rmtree(image)
    assert n_failed >= len(numbers) // 2


class Failing:
    """A store whose writers meet a disk that fails, and open it again."""

    def __init__(self, path, layout):
        self.path, self.layout, self.model = path, layout, layout.model()
        self.random = np.random.default_rng(3)
        self.promised = [0] * len(self.model.heads())
        self.n_failed = 0

    def live(self, ending):
        """One session: two flushes, and rows after them."""
        writer = None
        try:
            writer = self.layout.create(self.path, append=True)
            self.begin(writer)
            pair = Pair(writer, self.model, self.random)
            for _ in range(2):
                pair.play(13, 0.15, "any")
                self.call(writer.flush)
            pair.play(9, 0.1)
            if ending == "die":
                faults.kill(writer)
            else:
                self.call(getattr(writer, ending))
        except mmreplay.FailedStoreError:
            self.n_failed += 1
        if writer is not None and ending != "die":
            writer.close()
        self.model.end_session()

    def begin(self, writer):
        """Take for written what the next writer has found."""
        (lane,), (least,) = self.model.lanes, self.promised
        assert least <= writer.rows <= len(lane.rows)
        if writer.rows < len(lane.rows):
            lane.base = 0
            lane.cut(writer.rows)

    def call(self, call):
        rows = self.model.heads()
        call()
        self.promised = rows
