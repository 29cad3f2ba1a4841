"""Chunk files: sizes, checksums, inner chunks, and holes."""

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
from tests.support.disks.trees import flip
from tests.support.tampering.findings import messages

ACTION = Field((), "uint8", chunk=8)


def test_a_truncated_file_is_named_with_its_rows(lz4_store):
    (file,) = (lz4_store / "rewards").glob("c.2")
    file.write_bytes(file.read_bytes()[:-1])
    (finding,) = verify(lz4_store).findings
    assert str(finding).startswith("rewards/c.2, rows 16 to 23: expected 32 bytes, found 31")
    assert (finding.array, finding.rows) == ("rewards", (16, 24))


@pytest.mark.parametrize("size", [0, 1, 20, -1])
def test_a_truncated_shard_is_found(lz4_store, size):
    shard = lz4_store / "frames" / "c.1.0"
    shard.write_bytes(shard.read_bytes()[:size])
    assert messages(lz4_store, "frames/c.1.0")


@pytest.mark.parametrize("array", ["frames", "rewards"])
def test_two_chunk_files_that_were_exchanged_are_found(make, array):
    """Also shards whose inner chunks are of equal lengths, as of frames that are mere noise."""
    generator = np.random.default_rng(0)
    writer = make(frame=Field((64,), "uint8", "lz4", chunk=4, shard=8), action=ACTION)
    writer.reset(np.zeros(64, np.uint8))
    for row in range(1, 30):
        writer.step(0, float(row), generator.integers(256, size=64, dtype=np.uint8))
    writer.close()
    one, two = (next((writer.path / array).glob(f"c.{chunk}*")) for chunk in (0, 1))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    files = [one.file for one in verify(writer.path).findings]
    assert files == [f"{array}/{one.name}", f"{array}/{two.name}"]


def test_a_damaged_inner_chunk_is_named_with_its_rows(lz4_store):
    flip(lz4_store / "frames" / "c.1.0", 17)
    found = verify(lz4_store).findings
    assert [one.message.partition(":")[0] for one in found] == ["checksum", "inner chunk 0"]
    assert [one.rows for one in found] == [(8, 16), (8, 12)]


def test_adjacent_damaged_inner_chunks_are_one_finding(lz4_store):
    shard = lz4_store / "frames" / "c.1.0"
    size = shard.stat().st_size
    flip(shard, 20)
    flip(shard, size - 4 - 32 - 10)
    inner = verify(lz4_store).findings[-1]
    assert inner.message.endswith("; and 1 more behind it")
    assert inner.rows == (8, 16)


def test_a_shard_of_another_layout_is_found(lz4_store, make, story):
    """With a whole-file checksum that fits: the shard's own checks have to find it."""
    other = make("other.zarr", frame=Field((3,), "uint8", "lz4", chunk=2, shard=8))
    story.play_every_end(other)
    other.close()
    shard = lz4_store / "frames" / "c.0.0"
    shutil.copy(other.path / "frames" / "c.0.0", shard)
    sums = lz4_store / "checksums" / "frames" / "c.0"
    theirs = (other.path / "checksums" / "frames" / "c.0").read_bytes()
    sums.write_bytes(theirs[:4] + sums.read_bytes()[4:])
    (text,) = messages(lz4_store, "frames/c.0.0")
    assert "index" in text


def test_a_wrong_checksum_is_found(lz4_store):
    for at in (4, 5):
        flip(lz4_store / "checksums" / "rewards" / "c.0", at)
    (text,) = messages(lz4_store, "rewards/c.1")
    assert text.startswith("checksum: expected crc32c ")


def test_a_chunk_file_without_a_checksum_is_found_in_a_closed_store(lz4_store):
    for array in ("rewards", "frames"):
        sums = lz4_store / "checksums" / array / "c.0"
        sums.write_bytes(bytes(4) + sums.read_bytes()[4:])
    expected = "expected a checksum, as every file of a closed lane has; found 0"
    report = verify(lz4_store)
    assert {one.file: one.message for one in report.findings} == {
        "rewards/c.0": expected,
        "frames/c.0.0": expected,
    }
    assert report.warnings == []


@pytest.mark.parametrize("array", ["frames", "actions"])
def test_a_flipped_bit_in_a_checksum_is_told_from_one_in_its_file(lz4_store, array):
    flip(lz4_store / "checksums" / array / "c.0", 2)
    (finding,) = verify(lz4_store).findings
    assert finding.message == (
        "expected a checksum that fits, found one in which a single bit differs"
    )
    assert mmreplay.repair(lz4_store).lost == 0
    report = verify(lz4_store)
    assert (report.findings, report.warnings, report.rows) == ([], [], 37)


# ---------------------------------------------------------------- holes

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
        ranges = None if used is None else [(0, used)]
        assert crc32c_of_file(path, size, ranges) == (compression.crc32c(expected) or 1)


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
