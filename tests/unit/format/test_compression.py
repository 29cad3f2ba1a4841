"""Inner chunks: encoded and decoded, and nothing decoded whose header could lead astray."""

import gzip
import struct
import subprocess
import sys

import numcodecs
import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression, plan
from mmreplay.schema import Field, Schema
from tests.support.effort import by_effort
from tests.support.hostile_chunks import header, sealed


def blosc(cname, shuffle, typesize, clevel=5, blocksize=0):
    options = {
        "cname": cname,
        "clevel": clevel,
        "shuffle": shuffle,
        "typesize": typesize,
        "blocksize": blocksize,
    }
    return {"name": "blosc", "configuration": options}


GIVEN = {
    "lz4": "lz4",
    "zstd": "zstd",
    "gzip": {"name": "gzip", "configuration": {"level": 1}},
    "zstd with a checksum": {"name": "zstd", "configuration": {"level": 3, "checksum": True}},
    "zstd of a negative level": {"name": "zstd", "configuration": {"level": -5}},
    "blosc lz4": blosc("lz4", "noshuffle", 1),
    "blosc lz4hc, shuffled": blosc("lz4hc", "shuffle", 4, 9),
    "blosc zstd, bits shuffled": blosc("zstd", "bitshuffle", 2, 3),
    "blosc of short blocks": blosc("lz4", "shuffle", 8, 5, 512),
    "blosc that only stores": blosc("lz4", "noshuffle", 1, 0),
}


def documented(given, dtype="uint8"):
    """A codec as it stands in zarr.json."""
    schema = Schema.make(Field((2048,), dtype, given), Field())
    document = plan.plan_lane(schema, None, None).rows["frames"].codec
    assert document is not None
    return document


def codec_of(given, dtype="uint8"):
    return compression.make_codec(documented(given, dtype))


def stored(given, data, fast=False):
    return np.frombuffer(compression.encode(codec_of(given), data, fast=fast), np.uint8)


def frames(kind, size):
    random = np.random.default_rng(size)
    if kind == "random":
        return random.integers(0, 256, size, dtype=np.uint8)
    if kind == "zero":
        return np.zeros(size, np.uint8)
    return np.repeat(random.integers(0, 256, -(-size // 50), dtype=np.uint8), 50)[:size]


def test_decode_writes_exactly_the_bytes_that_encode_was_given():
    for kind in ("random", "zero", "runs"):
        for given in GIVEN.values():
            codec = codec_of(given)
            for size in (1, 3, 127, 128, 20_003):
                data = frames(kind, size)
                for fast in (False, True):
                    chunk = stored(given, data, fast)
                    compression.check(codec, chunk, size)
                    out = np.full(size, 77, np.uint8)
                    compression.decode(codec, chunk, out)
                    assert out.tobytes() == data.tobytes()


def test_fast_encoding_gives_other_bytes_that_the_same_decoder_reads():
    data, out = frames("runs", 200_000), np.empty(200_000, np.uint8)
    hurried = (
        "lz4",
        GIVEN["blosc lz4hc, shuffled"],
        {"name": "zstd", "configuration": {"level": 9}},
    )
    for given in hurried:
        slow, fast = stored(given, data), stored(given, data, True)
        assert slow.tobytes() != fast.tobytes()
        compression.decode(codec_of(given), fast, out)
        assert out.tobytes() == data.tobytes()
    assert stored("zstd", data).tobytes() == stored("zstd", data, True).tobytes()


def test_every_single_flipped_bit_is_noticed():
    for given in GIVEN.values():
        chunk = stored(given, frames("runs", 300))
        codec = codec_of(given)
        for place in range(chunk.size):
            for bit in (1, 128):
                wrong = chunk.copy()
                wrong[place] ^= bit
                with pytest.raises(CorruptStoreError, match="expected crc32c"):
                    compression.check(codec, wrong, 300)


def test_a_chunk_of_another_size_is_refused_before_or_while_it_is_decoded():
    for given in GIVEN.values():
        chunk = stored(given, frames("runs", 3000))
        codec = codec_of(given)
        for size in (2999, 3001, 1, 1 << 40):
            with pytest.raises(CorruptStoreError):
                compression.check(codec, chunk, size)
                compression.decode(codec, chunk, np.empty(min(size, 10_000), np.uint8))


def test_a_blosc_header_that_could_lead_the_decompressor_astray_is_refused():
    for changes in (
        {"version": 1},
        {"version": 3},
        {"typesize": 0},
        {"n_bytes": 0},
        {"n_bytes": 2999},
        {"n_bytes": (1 << 32) - 1},
        {"c_bytes": 0},
        {"c_bytes": 15},
        {"c_bytes": (1 << 32) - 1},
        {"block": 0},
        {"block": 3001},
        {"block": (1 << 32) - 1},
        {"block": 1},
        {"flags": 0 << 5},
        {"flags": 2 << 5},
        {"flags": 3 << 5},
        {"flags": 7 << 5},
        {"flags": (1 << 5) | 2},
    ):
        chunk = stored("lz4", frames("runs", 3000))
        with pytest.raises(CorruptStoreError, match="blosc header"):
            compression.check(codec_of("lz4"), header(chunk, **changes), 3000)


def test_a_blosc_block_outside_of_the_chunk_is_refused():
    chunk = stored("lz4", frames("runs", 3000))
    for start in (-1, 0, 16, 19, chunk.size - 4, 1 << 30):
        wrong = sealed(chunk[:16].tobytes() + struct.pack("<i", start) + chunk[20:-4].tobytes())
        with pytest.raises(CorruptStoreError, match="a block lies outside the chunk"):
            compression.check(codec_of("lz4"), wrong, 3000)


def test_the_declared_size_of_a_zstd_frame_is_read_in_every_width():
    for size in (1, 255, 256, 257, 65_791, 65_792, 100_000):
        for checksum in (False, True):
            given = {"name": "zstd", "configuration": {"level": 1, "checksum": checksum}}
            chunk = stored(given, frames("random", size))
            compression.check(codec_of(given), chunk, size)
            for wrong in (size - 1, size + 1, size + 256, size ^ 1 << 20):
                with pytest.raises(
                    CorruptStoreError, match=f"expected {wrong} bytes, found {size} declared"
                ):
                    compression.check(codec_of(given), chunk, wrong)


def test_a_zstd_frame_that_declares_no_size_or_another_is_refused():
    magic = b"\x28\xb5\x2f\xfd"
    unknown = magic + bytes([0x00, 0x58]) + b"\x01\x00\x00" * 5
    gigabyte = magic + bytes([0x80, 0x58]) + struct.pack("<I", 1 << 30) + b"\x01\x00\x00" * 3
    for payload in (
        unknown,
        gigabyte,
        magic,
        magic + b"\x20",
        b"\x50\x2a\x4d\x18" + b"\0" * 20,
        b"x" * 30,
    ):
        with pytest.raises(CorruptStoreError, match="zstd frame"):
            compression.check(codec_of("zstd"), sealed(payload), 100)


def test_a_second_zstd_frame_behind_the_first_is_refused():
    frame = bytes(numcodecs.zstd.compress(np.zeros(100, np.uint8), 1))
    chunk = sealed(frame + frame)
    out = np.zeros(100, np.uint8)
    compression.check(codec_of("zstd"), chunk, 100)
    with pytest.raises(CorruptStoreError, match="cannot be decompressed"):
        compression.decode(codec_of("zstd"), chunk, out)


def test_a_gzip_bomb_is_decoded_no_further_than_its_place():
    import tracemalloc

    bomb = sealed(gzip.compress(bytes(1 << 24)))
    codec, out = codec_of(GIVEN["gzip"]), np.zeros(1000, np.uint8)
    compression.check(codec, bomb, 1000)
    tracemalloc.start()
    with pytest.raises(CorruptStoreError, match="expected 1000 bytes, found 1001"):
        compression.decode(codec, bomb, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


MUTATE = """
import struct, sys
import google_crc32c, numpy as np
from mmreplay.format import compression
from mmreplay.errors import CorruptStoreError

n_rounds, documents = int(sys.argv[1]), eval(sys.argv[2])
random = np.random.default_rng(0)
n_refused = n_decoded = 0
for document in documents:
    codec = compression.make_codec(document)
    for size in (90, 3000, 40_000):
        data = np.repeat(random.integers(0, 256, -(-size // 20), dtype=np.uint8), 20)[:size]
        payload = np.frombuffer(compression.encode(codec, data), np.uint8)[:-4]
        for _ in range(n_rounds):
            wrong = payload.copy()
            where = random.integers(0, min(wrong.size, random.choice([16, 24, 64, wrong.size])), random.integers(1, 4))
            wrong[where] = random.choice([0, 1, 2, 127, 128, 254, 255, random.integers(256)], where.size)
            if random.random() < 0.2:
                wrong = wrong[: random.integers(1, wrong.size)]
            chunk = np.frombuffer(wrong.tobytes() + struct.pack("<I", google_crc32c.value(wrong.tobytes())), np.uint8)
            guarded = np.full(size + 64, 171, np.uint8)
            try:
                compression.check(codec, chunk, size)
                compression.decode(codec, chunk, guarded[:size])
                n_decoded += 1
            except CorruptStoreError:
                n_refused += 1
            assert (guarded[size:] == 171).all()
print(n_refused > 100, n_decoded + n_refused == 3 * n_rounds * len(documents))
"""


@pytest.mark.deep
def test_no_mutation_with_a_right_checksum_crashes_or_writes_past_its_place():
    # In a process of its own: what goes wrong here does so in C.
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            MUTATE,
            str(by_effort(20, 500, 500)),
            repr([documented(given) for given in GIVEN.values()]),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True True\n", "")


def test_a_codec_leaves_no_import_to_its_first_call(monkeypatch):
    """A child that is forked during one would wait for it for ever."""
    monkeypatch.delitem(sys.modules, "multiprocessing.synchronize", raising=False)
    codec_of("lz4")
    assert "multiprocessing.synchronize" in sys.modules
