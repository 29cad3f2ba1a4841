"""`repair` is cut off at any call, by a kill or a power cut, and called again.

Invariant: at any moment the store is there, as it was or as it shall be; after the next call it is
repaired, and the damaged one stands beside it with every byte that it had.
"""

import json
import os
import random
import shutil
import sys

import pytest

import mmreplay
from mmreplay import repair
from mmreplay.system import checked_reads, durable_writes
from tests.support.disks.faults import CALLS, faulty_disk
from tests.support.disks.trees import contents, names
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.power_cut.power import power_disk
from tests.support.tampering import flips

pytestmark = pytest.mark.deep

SWAP = 24  # calls from the mark to the end, and some before
KINDS = ("lz4", "evicted, lanes", "priorities")
SOME = ("lz4", "evicted, lanes")


class Case:
    """A damaged store, and what becomes of it."""

    def __init__(self, folder, kind):
        self.folder, self.harmed = folder, folder / "harmed.zarr"
        flips.build(self.harmed, flips.KINDS[kind])
        lane = sorted(self.harmed.glob("lane-*"))[-1:] or [self.harmed]
        one = sorted(
            (lane[0] / "rewards").glob("c.*"), key=lambda path: int(path.name.split(".")[1])
        )[-2]
        data = bytearray(one.read_bytes())
        data[3] ^= 4
        one.write_bytes(data)
        self.before = contents(self.harmed)
        path = self.again()
        with faulty_disk() as disk:
            assert repair(path).lost
        self.after = self.rows(path)
        self.total = sum(disk.counts[name] for name in CALLS & disk.counts.keys())

    @staticmethod
    def rows(path):
        """What a store says, but for what each making of it chooses anew."""
        said = flips.everything(path)
        return {name: one for name, one in said.items() if "attributes" not in name}

    def again(self):
        """The damaged store in a folder of its own."""
        folder = self.folder / "again"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.harmed, folder / "store.zarr")
        return folder / "store.zarr"

    def points(self, n):
        """Some of the calls, and all of the last ones."""
        early = range(1, self.total - SWAP, max(self.total // n, 1))
        late = range(self.total - SWAP, self.total + 1, by_effort(12, 6, 1))
        return [*early, *late]

    def check_there(self, path):
        """Between the two renames, where there is no exchange, the store may have no name."""
        if path.exists():
            found = contents(path)
            assert found == self.before or self.rows(path) == self.after
            return found == self.before
        return False

    def check_repaired(self, path):
        assert names(path.parent) == ["store.zarr", "store.zarr.damaged"]
        assert contents(path.with_name("store.zarr.damaged")) == self.before
        assert self.rows(path) == self.after
        checks.check_verified(path)


@pytest.fixture(params=by_effort([True], *[[True, False]] * 2))
def exchange(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(durable_writes, "exchange", lambda one, other: False)
    return request.param


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nobody to kill")
@pytest.mark.parametrize("kind", by_effort(SOME[1:], SOME, KINDS))
def test_killed_at_any_call_and_called_again(tmp_path, kind, exchange):
    case, n_killed = Case(tmp_path, kind), 0
    for at in case.points(by_effort(1, 4, 10**9)):
        path = case.again()
        child = os.fork()
        if not child:
            with faulty_disk() as disk:
                disk.die(CALLS, at=at)
                repair(path)
            os._exit(0)
        n_killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        case.check_there(path)
        assert path.exists() or not exchange
        repair(path)
        case.check_repaired(path)
    assert n_killed >= len(case.points(by_effort(1, 4, 10**9))) - 1


def translate_mark(image, known, before):
    """An image is a copy: the directory that the mark names has another inode there."""
    mark = image / ".store.zarr.repair.tmp" / "mark"
    if not mark.exists() or json.dumps(known).encode() != mark.read_bytes():
        return
    for one in (image / "store.zarr", mark.with_name("new"), mark.with_name("old")):
        if one.exists() and contents(one) == before:
            mark.write_text(json.dumps(checked_reads.identity(one)))


@pytest.mark.skipif(sys.platform != "linux", reason="needs the path of a descriptor")
@pytest.mark.parametrize("kind", by_effort(SOME[:1], SOME, KINDS))
def test_a_power_cut_at_any_call_of_the_swap_loses_nothing(tmp_path, kind, exchange, measured):
    case = Case(tmp_path, kind)
    root, images = tmp_path / "root", tmp_path / "images"
    root.mkdir()
    images.mkdir()
    shutil.copytree(case.harmed, root / "store.zarr")
    luck = random.Random(kind if not THOROUGH else None)
    swapping, disks = [], []

    def before_call(number):
        if not disks:
            return
        call = disks[0].calls[-1]
        if call == "exchange" or swapping:
            swapping.append(number)
        share = by_effort(0.15, 0.15, 1) if swapping else by_effort(0.003, 0.01, 1)
        if luck.random() > share:
            return
        # Of what was not synced nothing has come to the disk, or some of it.
        lost = [None, luck]
        more = [luck] * (4 if swapping else 0)
        for chosen in lost + more if THOROUGH else [luck.choice(lost)]:
            disks[0].image(images / f"{len(list(images.iterdir()))}-{number}-{call}", chosen)

    with power_disk(root, before_call) as disk:
        disks.append(disk)
        repair(root / "store.zarr")
    assert "exchange" in disk.calls
    assert len(swapping) > 5
    n_images, known = 0, checked_reads.identity(root / "store.zarr.damaged")
    for image in sorted(images.iterdir()):
        path = image / "store.zarr"
        case.check_there(path)
        assert path.exists() or not exchange, image
        translate_mark(image, known, case.before)
        if names(image) != ["store.zarr", "store.zarr.damaged"]:
            done = repair(path)
            assert done.changed or not mmreplay.verify(path).findings, image
        case.check_repaired(path)
        n_images += 1
        shutil.rmtree(image)
    result = measured(f"repair_power_{kind.replace(', ', '_')}_{exchange}", kind=kind)
    result.add("power cuts", n_images, "")
