"""The power goes off just after a snapshot, a pack or a repair has returned: it is there, and whole.

Invariant: what has the name of a store is durable before it has it, the names included.
"""

import random
import shutil
import sys

import pytest

import mmreplay
from mmreplay.schema import FRAME
from tests.support.disks.trees import contents
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.power_cut.power import power_disk
from tests.support.processes.parties import Party

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs the path of a descriptor"),
    pytest.mark.usefixtures("short_chunks"),
]
Field = mmreplay.Field

LAYOUTS = {
    "raw": Layout(Field((3, 4), "uint8", "raw", 8), Field((), "int64", chunk=11), {}),
    "lz4": Layout(Field((3, 4), "uint8", "lz4", 2, 4), Field((), "int64", chunk=13)),
    "lz4, many": Layout(
        Field((3, 4), "uint8", "lz4", 2, 4), Field((), "int64", chunk=13), environments=3
    ),
}


def images(disk, folder):
    """What may be on the disk now: nothing but what was synced, or any part of the rest."""
    for number, luck in enumerate((None, *map(random.Random, range(by_effort(2, 4, 6))))):
        disk.image(folder / f"image-{number}", luck)
        yield folder / f"image-{number}"


def write(path, layout):
    """Forty rows a lane, flushed in the middle, by a writer that is still at it."""
    party = Party(layout, 10, random.Random(1))
    party.make(path)
    party.step(25)
    party.writer.flush()
    party.step(15)
    return party.writer, party.model


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_snapshot_survives_a_power_cut_that_its_source_does_not(tmp_path, layout):
    root = tmp_path / "root"
    root.mkdir()
    with power_disk(root, lambda number: None) as disk:
        writer, model = write(root / "store.zarr", layout)
        mmreplay.snapshot(root / "store.zarr", root / "copy.zarr")
        model.end_session()
        for image in images(disk, tmp_path):
            checks.check_verified(image / "copy.zarr")
            with mmreplay.open(image / "copy.zarr") as store:
                checks.check_store(store, model, most=12)
        writer.close()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("codec", [None, pytest.param("zstd", marks=pytest.mark.deep(only=True))])
def test_a_packed_store_survives_a_power_cut(tmp_path, layout, codec):
    root = tmp_path / "root"
    root.mkdir()
    with power_disk(root, lambda number: None) as disk:
        writer, _ = write(root / "store.zarr", layout)
        # Short shards, so that some are written before the lane is closed.
        raw = (codec or layout.schema.frames[FRAME].codec) == "raw"
        lengths = {} if raw else {"chunk_frames": 2, "shard_frames": 4}
        mmreplay.pack(root / "store.zarr", root / "packed.zarr", codec, workers=1, **lengths)
        after = contents(root / "packed.zarr")
        for image in images(disk, tmp_path):
            assert contents(image / "packed.zarr") == after
            checks.check_verified(image / "packed.zarr")
        writer.close()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_repair_survives_a_power_cut(tmp_path, layout):
    root = tmp_path / "root"
    root.mkdir()
    writer, _ = write(tmp_path / "sound.zarr", layout)
    writer.close()
    shutil.copytree(tmp_path / "sound.zarr", root / "store.zarr")
    next((root / "store.zarr").rglob("actions/c.1*")).unlink()
    before = contents(root / "store.zarr")
    with power_disk(root, lambda number: None) as disk:
        mmreplay.repair(root / "store.zarr")
        after = contents(root / "store.zarr")
        for image in images(disk, tmp_path):
            assert contents(image / "store.zarr") == after
            assert contents(image / "store.zarr.damaged") == before
            assert mmreplay.verify(image / "store.zarr").sound
