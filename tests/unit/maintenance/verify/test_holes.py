"""`verify` says of a file with holes what it says of the same file without any."""

import os
import random
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, verify
from mmreplay.format import compression
from mmreplay.maintenance.verify import chunk_files
from mmreplay.storage.checksums import crc32c_of_file

BLOCK = 4096


@pytest.fixture
def pieces(monkeypatch):
    """A file is read in many pieces, though it is small."""
    monkeypatch.setattr(chunk_files, "_PIECE_BYTES", BLOCK)


def test_zeros_that_are_not_read(tmp_path):
    luck = random.Random(0)
    for _ in range(30):
        before = luck.randbytes(luck.randrange(9))
        n, value = luck.randrange(5_000), compression.crc32c(before)
        assert compression.crc32c_of_zeros(n, value) == compression.crc32c(before + bytes(n))
    path = tmp_path / "file"
    for _ in range(10):
        size = luck.randrange(1, 1 << 20)
        with path.open("wb") as file:
            file.truncate(size)
            for _ in range(luck.randrange(4)):
                file.seek(luck.randrange(size))
                file.write(luck.randbytes(min(9_000, size - file.tell())))
        data, used = path.read_bytes(), luck.choice([None, 0, luck.randrange(size)])
        expected = data if used is None else data[:used].ljust(size, b"\0")
        assert crc32c_of_file(path, size, used) == (compression.crc32c(expected) or 1)


def dig(path):
    """The same bytes, with a hole wherever a block of them is zeros."""
    data = path.read_bytes()
    with path.open("wb") as file:
        file.truncate(len(data))
        for start in range(0, len(data), BLOCK):
            if any(data[start : start + BLOCK]):
                file.seek(start)
                file.write(data[start : start + BLOCK])


@pytest.fixture(scope="module")
def sparse_store(tmp_path_factory):
    """A closed store of 18,000 rows, nearly all of which are zeros in some columns."""
    luck = np.random.default_rng(0)
    writer = mmreplay.create(
        tmp_path_factory.mktemp("sparse") / "store.zarr",
        frame=Field((2,), "uint8", "raw", chunk=32_768),
        action=Field((), "int64", chunk=16_384),
        extras={"value": Field((3,), "float32", chunk=32_768)},
        flush_s=0,
    )
    zeros = np.zeros(2, "uint8")
    writer.reset(zeros)
    while writer.rows < 18_000:
        if not writer.running:
            writer.reset(zeros)
            continue
        busy = writer.rows % 7_000 < 50
        ended = bool(luck.random() < (0.2 if busy else 0.001))
        writer.step(int(busy), float(busy), zeros, terminated=ended, value=np.full(3, busy))
    writer.close()
    return writer.path


@pytest.fixture
def sparse(sparse_store, tmp_path):
    """A copy of that store."""
    return shutil.copytree(sparse_store, tmp_path / "store.zarr")


def test_holes_say_what_zeros_say(sparse, pieces):
    arrays = ("resets/c.0", "resets/c.1", "non_terminals/c.0", "non_terminals/c.1", "rewards/c.0",
              "actions/c.0", "actions/c.1", "frames/c.0.0", "extras/value/c.0.0")  # fmt: skip
    assert verify(sparse).findings == []
    luck = random.Random(0)
    for trial in range(9):
        file = sparse / luck.choice(arrays)
        sound = file.read_bytes()
        data = bytearray(sound)
        at, n = luck.randrange(len(data)), luck.choice([1, 1, BLOCK, 5 * BLOCK])
        data[at : at + n] = (
            bytes(len(data[at : at + n])) if trial % 3 else b"\1" * len(data[at : at + n])
        )
        file.write_bytes(data)
        dense = verify(sparse).findings
        dig(file)
        assert file.read_bytes() == data
        assert verify(sparse).findings == dense, (trial, file, at, n)
        file.write_bytes(sound)
    for file in sparse.rglob("c.*"):
        dig(file)
    assert verify(sparse).findings == []


def test_a_reset_in_row_0_that_lies_in_a_hole(sparse, pieces):
    for name in ("resets", "checksums/resets"):
        os.truncate(sparse / name / "c.0", 0)
    os.truncate(sparse / "resets" / "c.0", 16_384)
    os.truncate(sparse / "checksums" / "resets" / "c.0", BLOCK)
    found = [one.message for one in verify(sparse).findings if one.file == "resets/c.0"]
    assert any("expected a reset in row 0" in one for one in found)
