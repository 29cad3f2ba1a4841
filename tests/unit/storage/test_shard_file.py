"""One shard file: written, checked when it is opened, and decoded."""

import os
import struct
import warnings

import google_crc32c
import numpy as np
import pytest
import zarr

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression, layout
from mmreplay.storage import shard_file
from mmreplay.storage.shard_file import OpenShard, Shard
from tests.support.oracle.handmade_lanes import (
    ABSENT,
    LZ4,
    ZSTD,
    compressed_spec,
    inner_chunk,
    shard_bytes,
    shard_of,
)

GZIP = {"name": "gzip", "configuration": {"level": 9}}


def mapped(path, spec):
    return Shard(path, spec, compression.make_codec(spec.codec))


OPEN = []


def read(path, spec):
    OPEN.append(OpenShard(path, spec, compression.make_codec(spec.codec)))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture(params=[mapped, read])
def opened(request):
    return request.param


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=["lz4", "zstd"])
@pytest.mark.parametrize("n_rows", [1, 4, 5, 12])
def test_a_shard_is_read_by_zarr_and_by_ourselves(opened, tmp_path, codec, n_rows):
    spec = compressed_spec(codec=codec, shape=(2, 2), dtype="uint16")
    rows = np.arange(n_rows * 4, dtype=np.uint16).reshape(n_rows, 2, 2) + 1
    one = compression.make_codec(codec)
    chunks = []
    for start in range(0, n_rows, 4):
        whole = np.zeros((4, 2, 2), np.uint16)
        whole[: n_rows - start] = rows[start : start + 4]
        chunks.append(compression.encode(one, whole.reshape(-1).view(np.uint8)))
    folder = tmp_path / "frames"
    folder.mkdir()
    (folder / "zarr.json").write_bytes(layout.array_json(spec, n_rows))
    (folder / spec.key(0)).write_bytes(shard_file.assemble(spec, chunks))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(zarr.open_array(folder, mode="r")[:], rows)
    shard = opened(folder / spec.key(0), spec)
    out = np.empty((4, 2, 2), np.uint16)
    for inner, start in enumerate(range(0, n_rows, 4)):
        shard.decode(inner, out.reshape(-1).view(np.uint8))
        expected = rows[start : start + 4]
        assert np.array_equal(out[: len(expected)], expected)
    for inner, start in enumerate((0, 4, 8)):
        if start >= n_rows:
            with pytest.raises(CorruptStoreError, match="found none in the index"):
                shard.decode(inner, out.reshape(-1).view(np.uint8))


def test_a_shard_is_its_chunks_a_digest_of_their_sums_and_the_index():
    chunks = [b"abc" + b"1234", b"d" * 10 + b"5678"]
    digest = struct.pack("<I", google_crc32c.value(b"12345678"))
    expected = shard_bytes([*chunks, digest], [(0, 7), (7, 14), (ABSENT, ABSENT)])
    assert shard_file.assemble(compressed_spec(), chunks) == expected


def test_shards_of_equal_lengths_and_other_contents_have_other_checksums():
    # Each chunk and the index end with a crc of their own, which alone would cancel.
    random = np.random.default_rng(0)
    sums = set()
    for _ in range(20):
        parts = [random.integers(0, 256, 50, dtype=np.uint8).tobytes() for _ in range(3)]
        chunks = [part + struct.pack("<I", google_crc32c.value(part)) for part in parts]
        sums.add(google_crc32c.value(shard_file.assemble(compressed_spec(), chunks)))
        sums.add(google_crc32c.value(shard_file.assemble(compressed_spec(), chunks[::-1])))
    assert len(sums) == 40


@pytest.mark.parametrize("codec", [LZ4, ZSTD, GZIP], ids=["lz4", "zstd", "gzip"])
def test_a_shard_of_many_small_incompressible_chunks_is_not_too_large(opened, tmp_path, codec):
    spec = compressed_spec(65_536, 1, (28,), codec=codec)
    frame = np.random.default_rng(0).integers(0, 256, 28, "uint8")
    chunk = compression.encode(compression.make_codec(codec), frame)
    assert len(chunk) > 28
    path = tmp_path / "c.0.0"
    path.write_bytes(shard_file.assemble(spec, [chunk] * 65_536))
    out = np.empty(28, np.uint8)
    opened(path, spec).decode(65_535, out)
    assert out.tobytes() == frame.tobytes()


def wrong_index(change):
    """A sound shard but for its index, whose checksum is right."""
    chunks = [inner_chunk(np.full((4, 3), n, np.uint8), LZ4) for n in range(3)]
    sizes = [len(one) for one in chunks]
    index = [[sum(sizes[:n]), sizes[n]] for n in range(3)]
    change(index, sum(sizes))
    return shard_bytes(chunks, index)


def test_an_index_that_points_outside_the_file_or_twice_is_refused(tmp_path):
    for change in {
        "past the end": lambda index, end: index[2].__setitem__(1, index[2][1] + 1),
        "offset past the end": lambda index, end: index[2].__setitem__(0, end + 1),
        "a sum that overflows": lambda index, end: index[2].__setitem__(
            1, ABSENT - index[2][0] + 2
        ),
        "an offset that overflows": lambda index, end: index[0].__setitem__(0, ABSENT - 1),
        "the same bytes twice": lambda index, end: index[1].__setitem__(0, index[0][0]),
        "overlapping by one": lambda index, end: index[1].__setitem__(0, index[1][0] - 1),
        "no bytes": lambda index, end: index[1].__setitem__(1, 0),
        "half absent": lambda index, end: index[1].__setitem__(1, ABSENT),
        "half absent, the other way": lambda index, end: index.__setitem__(0, [end + 5, ABSENT]),
    }.items():
        path = tmp_path / "c.0.0"
        path.write_bytes(wrong_index(change[1]))
        with pytest.raises(CorruptStoreError, match="points outside the file, or twice"):
            mapped(path, compressed_spec())


def test_chunks_in_another_order_with_gaps_are_read(opened, tmp_path):
    # Whoever repacks a shard may do so.
    chunks = [inner_chunk(np.full((4, 3), n, np.uint8), LZ4) for n in range(3)]
    body, index = b"", [(0, 0)] * 3
    for n in (2, 0, 1):
        body += b"gap"
        index[n] = (len(body), len(chunks[n]))
        body += chunks[n]
    path = tmp_path / "c.0.0"
    path.write_bytes(shard_bytes([body], index))
    shard, out = opened(path, compressed_spec()), np.empty(12, np.uint8)
    for n in range(3):
        shard.decode(n, out)
        assert out.tolist() == [n] * 12


def test_a_shard_that_was_cut_or_whose_index_changed_does_not_match_its_crc32c(tmp_path):
    path = tmp_path / "c.0.0"
    data = shard_of(np.ones((12, 3), np.uint8), compressed_spec())
    for wrong in (
        data[:-1],
        data[1:] + b"x",
        data[:-20] + b"\x01" + data[-19:],
        data[:-4] + b"abcd",
    ):
        path.write_bytes(wrong)
        with pytest.raises(CorruptStoreError, match=r"c\.0\.0: the shard's index does not match"):
            mapped(path, compressed_spec())


def test_a_damaged_inner_chunk_names_file_and_chunk(opened, tmp_path):
    path = tmp_path / "c.0.0"
    data = bytearray(shard_of(np.ones((12, 3), np.uint8), compressed_spec()))
    data[3] ^= 1
    path.write_bytes(data)
    shard, out = opened(path, compressed_spec()), np.empty(12, np.uint8)
    shard.decode(1, out)
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"c\.0\.0: inner chunk 0: expected crc32c"):
            shard.decode(0, out)


def test_a_shard_that_is_not_mapped_tells_what_its_file_is_by_then(tmp_path):
    for wrong, text in (
        (b"", "expected a shard with an index of 3 chunks, found 0 bytes"),
        (b"short", "expected a shard with an index of 3 chunks, found 5 bytes"),
        (bytes(500), "the shard's index does not match its crc32c"),
        (bytes(3 << 20), "expected at most 1,0[0-9,]+ bytes, found 3,145,728"),
    ):
        path, out, spec = tmp_path / "c.0.0", np.empty(12, np.uint8), compressed_spec()
        path.write_bytes(shard_of(np.ones((12, 3), np.uint8), spec))
        shard = read(path, spec)
        for chunk in (0, 2):
            out[:] = 0
            shard.decode(chunk, out)
            assert out.tolist() == [1] * 12
        path.write_bytes(wrong)
        with pytest.raises(CorruptStoreError, match=rf"c\.0\.0: {text}"):
            shard.decode(2, out)
        with pytest.raises(CorruptStoreError, match=rf"c\.0\.0: {text}"):
            read(path, spec)
        path.unlink()
        with pytest.raises(FileNotFoundError):
            read(path, spec)


def test_a_directory_in_the_place_of_a_shard_is_damage_and_stays_open_nowhere(tmp_path):
    (tmp_path / "c.0.0").mkdir()
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(CorruptStoreError, match="expected a regular file"):
        read(tmp_path / "c.0.0", compressed_spec())
    assert len(os.listdir("/dev/fd")) == before
