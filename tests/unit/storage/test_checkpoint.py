"""The checkpoint: two slots, of which the better one is never overwritten."""

import errno
import os
import struct
import uuid

import pytest

from mmreplay.errors import CorruptStoreError, DiskFullError, FailedStoreError
from mmreplay.format.compression import crc32c
from mmreplay.storage.state_page import Checkpoint, CheckpointFile
from mmreplay.system import platform

STORE = "0123456789abcdef" * 2
HERE, ELSEWHERE = b"this boot of it!", b"another boot ..."

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def boot(monkeypatch):
    """Set the boot id that the system has from now on."""

    def now(value):
        monkeypatch.setattr(platform, "boot_id", lambda: value)

    now(HERE)
    return now


@pytest.fixture
def path(tmp_path, boot):
    CheckpointFile.create(tmp_path / "checkpoint", STORE, head=110, tail_start=8, base=2, before=1)
    return tmp_path / "checkpoint"


def record(
    generation,
    *,
    store=STORE,
    head=110,
    tail_start=8,
    base=2,
    before=1,
    boot=HERE,
    magic=b"MMRCKPT1",
):
    """A slot, packed by hand from docs/format.md."""
    data = magic + uuid.UUID(store).bytes + boot
    data += struct.pack("<QQQQQ", generation, head, tail_start, base, before)
    return (data + struct.pack("<I", crc32c(data))).ljust(4096, b"\0")


def test_a_checkpoint_is_created_whole_with_one_slot(path):
    assert path.read_bytes() == record(1) + bytes(4096)
    assert CheckpointFile(path, STORE).best == Checkpoint(110, 8, 2, 1, 1, HERE)


def test_a_write_changes_what_it_names_and_copies_the_rest(path):
    one = CheckpointFile(path, STORE)
    for number, (changes, expected) in enumerate(
        [
            ({"head": 120}, (120, 8, 2, 1)),
            ({"tail_start": 16}, (120, 16, 2, 1)),
            ({"base": 5, "head": 130}, (130, 16, 5, 1)),
            ({"before": 4}, (130, 16, 5, 4)),
            ({}, (130, 16, 5, 4)),
        ],
        start=2,
    ):
        one.write(**changes)
        wanted = Checkpoint(*expected, number, HERE)
        assert one.best == wanted
        assert CheckpointFile(path, STORE).best == wanted


def test_a_checkpoint_knows_whether_its_best_slot_is_the_newest(path):
    one = CheckpointFile(path, STORE)
    assert one.is_newest
    for damaged in (0, 4096):  # the first write goes to the slot at 4,096
        one.write(head=111)
        assert one.is_newest
        data = path.read_bytes()
        assert CheckpointFile(path, STORE).is_newest
        path.write_bytes(data[:damaged] + b"?" + data[damaged + 1 :])
        assert not CheckpointFile(path, STORE).is_newest
        path.write_bytes(data)
    path.write_bytes(record(1) + b"\0" * 4095 + b"?")
    assert not CheckpointFile(path, STORE).is_newest


def test_the_slot_with_the_later_generation_is_the_best_in_either_place(tmp_path, boot):
    for first, second in ((5, 6), (6, 5), (2**63 - 1, 3)):
        (tmp_path / "c").write_bytes(record(first) + record(second))
        assert CheckpointFile(tmp_path / "c", STORE).best.generation == max(first, second)


def test_every_flipped_bit_of_a_slot_is_noticed(path):
    CheckpointFile(path, STORE).write(head=111)
    data = path.read_bytes()
    for place in range(84):
        wrong = bytearray(data)
        wrong[4096 + place] ^= 1 << place % 8
        path.write_bytes(wrong)
        assert CheckpointFile(path, STORE).best.generation == 1


def test_an_invalid_slot_is_ignored(path):
    for slot in (
        bytes(4096),
        record(9, store="f" * 32),
        record(9, magic=b"MMRCKPT2"),
        record(2**63),  # it would have no next one, one day
        record(9, base=111),
    ):
        for data in (record(1) + slot, slot + record(1)):
            path.write_bytes(data)
            assert CheckpointFile(path, STORE).best.generation == 1
        path.write_bytes(bytes(8192))
        with pytest.raises(
            CorruptStoreError, match="expected a valid checkpoint in one of two slots"
        ):
            CheckpointFile(path, STORE)


def test_a_checkpoint_of_another_size_or_missing_is_refused(path, tmp_path):
    for size in (0, 70, 4096, 8191):
        os.truncate(path, size)
        with pytest.raises(CorruptStoreError, match=f"expected 8,192 bytes, found {size:,}"):
            CheckpointFile(path, STORE)
        path.write_bytes(record(1) + bytes(4096))
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptStoreError, match="at most 8,192 bytes"):
        CheckpointFile(path, STORE)
    with pytest.raises(FileNotFoundError):
        CheckpointFile(tmp_path / "none", STORE)


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [("write", errno.ENOSPC, DiskFullError), ("write", errno.EIO, FailedStoreError),
     ("fdatasync", errno.ENOSPC, FailedStoreError)],
)  # fmt: skip
def test_a_write_that_failed_leaves_the_best_slot_the_best(path, monkeypatch, call, number, error):
    monkeypatch.undo()  # the real fsync
    monkeypatch.setattr(platform, "boot_id", lambda: HERE)
    one = CheckpointFile(path, STORE)

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(error):
            one.write(head=77)
    assert one.best == Checkpoint(110, 8, 2, 1, 1, HERE)
    one.write(head=112)
    assert path.read_bytes() == record(1) + record(2, head=112)
