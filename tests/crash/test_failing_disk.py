"""A disk that fills up or fails at any call: the error is the right one, and nothing is lost.

Invariant: after DiskFullError the same call works once there is room; after FailedStoreError
nothing is written any more, and every committed row stays readable.
"""

import errno
import itertools
import json
import os
import re

import numpy as np
import pytest

import mmreplay
from tests.support.disks import faults
from tests.support.disks.faults import ALLOCATING, SYNCING
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr, chunk_files, chunk_rows
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
Field = mmreplay.Field

LAYOUTS = {
    "raw": Layout(Field((3, 4), "uint8", "raw", 8), Field((), "int64", chunk=11), {}, capacity=12),
    "lz4": Layout(Field((3, 4), "uint8", "lz4", 2, 4), Field((), "int64", chunk=13), {}),
    "dict": Layout(
        {"a": Field((5,), "float32", "raw", 6), "b": Field((2, 2), "uint16", "zstd", 3, 6)},
        Field((2,), "float32", chunk=9),
        {"thought": Field((), "float64", chunk=5)},
        capacity=20,
    ),
}


class Session:
    """A fixed course of calls on a new store: about fifty rows, two flushes, a close.

    A call that finds the disk full is made again when there is room; one that finds it broken
    ends the session.
    """

    def __init__(self, path, layout, disk):
        self.path, self.layout, self.disk = path, layout, disk
        self.model = layout.model()
        self.random = np.random.default_rng(7)
        self.full, self.failed = [], []
        self.flushed = 0
        self.writer = None
        self.follower = None

    def run(self):
        self.call("create", self.create)
        if not self.failed:
            self.follower = mmreplay.open(self.path)
            self.pair = Pair(self.writer, self.model, self.random)
            for number in range(45):
                ended = number % 9 == 8
                if not self.model.lanes[0].running:
                    self.call("reset", self.pair.reset)
                flags = {"terminated": [0] * ended, "life_lost": [0] * (number % 7 == 3)}
                if not self.failed:
                    self.call("step", lambda flags=flags: self.pair.step(**flags))
                if number in {20, 33} and not self.failed:
                    self.call("flush", self.flush)
                if self.failed:
                    break
        if not self.failed:
            self.call("close", self.close)
        return self

    def create(self):
        self.writer = self.layout.create(self.path)

    def flush(self):
        rows = self.writer.rows
        self.writer.flush()
        self.flushed = rows

    def close(self):
        self.writer.close()
        self.model.lanes[0].end_session()

    def call(self, name, call):
        try:
            call()
        except mmreplay.DiskFullError as error:
            assert error.errno == errno.ENOSPC
            assert re.search("no room (on the disk|left in the disk quota)", str(error))
            self.full.append(name)
            self.check_readable()
            self.check_no_partial_file()
            self.disk.heal()
            self.again(name, call)
        except mmreplay.FailedStoreError:
            self.failed.append(name)

    def again(self, name, call):
        if name == "create":
            assert os.listdir(self.path.parent) == []  # nothing was changed
        call()  # close too: the same writer finishes what it could not

    def check_readable(self):
        if self.follower is not None:
            checks.check_ids(self.follower, self.model)
            with mmreplay.open(self.path) as store:
                model = self.cut(store.lanes[0].rows)
                checks.check_store(store, model, most=20)
            checks.check_verified(self.path)

    def cut(self, rows):
        """What is there for who comes now: after an fsync of rows that failed, what was flushed."""
        if rows == len(self.model.lanes[0].rows) or not self.failed:
            return self.model
        assert rows == self.flushed
        model = self.model.copy()
        model.lanes[0].cut(rows)
        return model

    def check_no_partial_file(self):
        """What the failed call had begun to make is off the disk: it needs the room."""
        assert not list(self.path.parent.rglob("*.tmp"))
        if not self.path.exists():
            return
        for name, one in self.model.schema.columns().items():
            document = json.loads((self.path / name / "zarr.json").read_bytes())
            if document["codecs"][0]["name"] == "bytes":
                n_bytes = chunk_rows(self.path, name) * one.row_bytes
                sizes = {f.stat().st_size for f in chunk_files(self.path, name).values()}
                assert sizes <= {n_bytes}

    def check_finished(self):
        self.follower.close()
        with mmreplay.open(self.path) as store:
            lane = self.model.lanes[0]
            lane.forget(store.lanes[0].base)
            assert store.live.readers[0].is_closed
            checks.check_store(store, self.model, most=20)
        check_plain_zarr(self.path)
        checks.check_verified(self.path)


def count_calls(path, layout, names):
    with faults.faulty_disk() as disk:
        Session(path, layout, disk).run().check_finished()
    return sum(disk.counts.get(name, 0) for name in names)


def some(n, seed):
    """Every place in a thorough run, otherwise one out of each of some stretches."""
    starts = np.linspace(1, n + 1, by_effort(6, 15, n) + 1).astype(int).tolist()
    random = np.random.default_rng(seed)
    return [int(random.integers(*pair)) for pair in itertools.pairwise(starts)]


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_full_disk_or_quota_at_any_allocation_changes_nothing_and_the_same_writer_goes_on(
    tmp_path, name
):
    layout = LAYOUTS[name]
    n_calls = count_calls(tmp_path / "sound.zarr", layout, ALLOCATING)
    assert n_calls > 60
    seen = set()
    for place in some(n_calls, 1):
        folder = tmp_path / str(place)
        folder.mkdir()
        with faults.faulty_disk() as disk:
            error = errno.EDQUOT if place % 2 else errno.ENOSPC
            disk.fail(ALLOCATING, error, at=place, forever=True)
            session = Session(folder / "store.zarr", layout, disk).run()
            assert disk.hits or place > 0.8 * n_calls  # the background may need a call less
            assert not session.failed
            seen |= set(session.full)
            session.check_finished()
    assert seen & {"step", "reset", "flush"}


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_failed_fsync_is_reported_by_every_later_call_and_loses_no_committed_row(tmp_path, name):
    layout = LAYOUTS[name]
    n_calls = count_calls(tmp_path / "sound.zarr", layout, SYNCING)
    assert n_calls > 60
    for place in some(n_calls, 2):
        folder = tmp_path / str(place)
        folder.mkdir()
        with faults.faulty_disk() as disk:
            disk.fail(SYNCING, errno.EIO, at=place)
            session = Session(folder / "store.zarr", layout, disk).run()
            if not disk.hits:  # the background needed a call less
                assert place > 0.8 * n_calls
                continue
            assert len(session.failed) == 1, f"fsync {place} of {n_calls} failed, nobody was told"
            check_over(session)


def check_over(session):
    """Writing is over, reading is not; the next writer takes over everything."""
    writer, model = session.writer, session.model
    if writer is None:
        # Nothing has the store's name, or all of it has.
        if session.path.exists():
            mmreplay.create(session.path, append=True, flush_s=0).close()
        return
    if session.failed != ["close"]:
        session.check_readable()
        syncs = sum(session.disk.counts.get(name, 0) for name in SYNCING)
        running = model.lanes[0].running
        for call in (writer.flush, session.pair.step if running else session.pair.reset):
            with pytest.raises(mmreplay.FailedStoreError):
                call()
        assert sum(session.disk.counts.get(name, 0) for name in SYNCING) == syncs
        session.check_readable()
        writer.close()
    session.follower.close()
    with mmreplay.create(session.path, append=True, flush_s=0) as again:
        model = session.cut(again.rows)
        model.lanes[0].end_session()
        with mmreplay.open(session.path) as store:
            model.lanes[0].forget(store.lanes[0].base)
        pair = Pair(again, model, session.random)
        pair.play(12)
    model.lanes[0].end_session()
    with mmreplay.open(session.path) as store:
        checks.check_store(store, model, most=20)
    check_plain_zarr(session.path)
    checks.check_verified(session.path)


def test_background_failure_reaches_the_writer_at_its_next_call(tmp_path):
    layout = LAYOUTS["raw"]
    with faults.faulty_disk() as disk:
        with layout.create(tmp_path / "s.zarr", flush_s=0.002) as writer:
            pair = Pair(writer, layout.model(), np.random.default_rng(0))
            follower = mmreplay.open(tmp_path / "s.zarr")
            disk.fail(SYNCING, errno.EIO)
            with pytest.raises(mmreplay.FailedStoreError, match="fsync"):
                while True:
                    pair.play(1)
        with follower:
            checks.check_ids(follower, pair.model)
