"""Decoders by address: as numcodecs decodes, and within their bounds, whatever the bytes are."""

import ctypes
import subprocess
import sys
import threading

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression, native_decoders
from tests.support.effort import by_effort
from tests.support.hostile_chunks import header, sealed

BLOSC = {"clevel": 5, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0, "cname": "lz4hc"}
ZSTD = {"level": 1, "checksum": False}
SIZE = 112_000
DATA = np.repeat(np.random.default_rng(0).integers(0, 256, SIZE // 20, np.uint8), 20)
FILL = 77


def codec_of(name, **changes):
    options = (BLOSC if name == "blosc" else ZSTD) | changes
    return compression.make_codec({"name": name, "configuration": options})


def chunk_of(codec, data=DATA, fast=False):
    return np.frombuffer(compression.encode(codec, data, fast=fast), np.uint8)


def decoded(codec, chunk, n_bytes, room=SIZE):
    """What a native decoder writes, with bytes behind that must stay."""
    out = np.full(room + 64, FILL, np.uint8)
    found = codec.native(chunk.ctypes.data, chunk.size, out.ctypes.data, n_bytes, room)
    assert (out[room:] == FILL).all()
    return found, out[:room]


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere numcodecs may not show its functions"
)
def test_the_decoders_are_there_on_linux():
    assert native_decoders.lz4() is not None
    assert native_decoders.zstd() is not None


@pytest.mark.parametrize("fast", [False, True])
def test_lz4_stops_behind_the_bytes_that_are_needed(fast):
    codec = codec_of("blosc")
    chunk = chunk_of(codec, fast=fast)
    assert compression.check(codec, chunk, SIZE)
    for n_bytes in (1, 19, 20, 21, 4096, SIZE // 2, SIZE - 1, SIZE):
        found, out = decoded(codec, chunk, n_bytes)
        assert found
        assert out[:n_bytes].tobytes() == DATA[:n_bytes].tobytes()
        assert (out[n_bytes:] == FILL).all()


def test_zstd_is_decoded_whole_into_its_room_and_no_other():
    codec = codec_of("zstd")
    chunk = chunk_of(codec)
    assert compression.check(codec, chunk, SIZE)
    assert decoded(codec, chunk, SIZE)[1].tobytes() == DATA.tobytes()
    assert not decoded(codec, chunk, SIZE - 1, SIZE - 1)[0]
    assert not decoded(codec, chunk, SIZE + 1, SIZE + 1)[0]


@pytest.mark.parametrize(
    "options",
    [
        {"cname": "zstd"},
        {"shuffle": "shuffle", "typesize": 4},
        {"shuffle": "bitshuffle"},
        {"typesize": 8, "cname": "lz4"},  # which is split into a stream per byte
        {"blocksize": 65_536},
        {"clevel": 0},
    ],
)
def test_chunks_of_another_form_are_left_to_numcodecs(options):
    codec = codec_of("blosc", **options)
    chunk = chunk_of(codec)
    assert not compression.check(codec, chunk, SIZE)
    out = np.zeros(SIZE, np.uint8)
    compression.decode(codec, chunk, out)
    assert out.tobytes() == DATA.tobytes()


@pytest.mark.parametrize(
    "changes",
    [{"lz": 2}, {"flags": 0x21}, {"flags": 0x24}, {"flags": 0x28}, {"flags": 0x20, "typesize": 2}],
)
def test_a_header_that_says_anything_unusual_is_left_to_numcodecs(changes):
    codec = codec_of("blosc")
    assert compression.check(codec, header(chunk_of(codec)), SIZE)
    assert not compression.check(codec, header(chunk_of(codec), **changes), SIZE)


@pytest.mark.parametrize("length", [-1, 0, 1, SIZE, 1 << 30])
def test_a_stream_of_another_length_than_the_chunk_has_is_left_to_numcodecs(length):
    codec = codec_of("blosc")
    chunk = chunk_of(codec)
    wrong = bytearray(chunk[:-4].tobytes())
    wrong[20:24] = length.to_bytes(4, "little", signed=True)
    assert not compression.check(codec, sealed(wrong), SIZE)


def test_damage_behind_the_bytes_that_are_needed_is_found_when_they_are():
    codec = codec_of("blosc")
    wrong = bytearray(chunk_of(codec)[:-4].tobytes())
    wrong[-40:] = b"\0" * 40  # matches at distance 0
    chunk = sealed(wrong)  # as only a program would write it: its checksum fits
    assert compression.check(codec, chunk, SIZE)
    found, out = decoded(codec, chunk, SIZE // 2)
    assert found
    assert out[: SIZE // 2].tobytes() == DATA[: SIZE // 2].tobytes()
    assert not decoded(codec, chunk, SIZE)[0]
    with pytest.raises(CorruptStoreError, match="cannot be decompressed"):
        compression.decode(codec, chunk, out)


class Library:
    """A library of which some functions differ."""

    def __init__(self, path, **functions):
        self.__dict__ |= functions
        self._real = REAL(path)

    def __getattr__(self, name):
        return getattr(self._real, name)


REAL = ctypes.CDLL


def unseen(path):
    return object()


def missing(path):
    raise OSError(path)


def old(path):
    return Library(path, LZ4_versionNumber=lambda: 10_903, ZSTD_versionNumber=lambda: 10_408)


def lying(path):
    """Says that it wrote all, and writes nothing."""

    class Silent:
        def __call__(self, *numbers):
            return numbers[3] if len(numbers) == 5 and numbers[0] > 1 << 20 else numbers[-1]

    names = ("LZ4_decompress_safe", "LZ4_decompress_safe_partial", "ZSTD_decompressDCtx")
    return Library(path, **{name: Silent() for name in names})


@pytest.mark.parametrize("library", [unseen, missing, old, lying])
@pytest.mark.parametrize("name", ["blosc", "zstd"])
def test_without_a_sound_library_numcodecs_decodes(monkeypatch, library, name):
    monkeypatch.setattr(ctypes, "CDLL", library)
    for decoder in ("lz4", "zstd"):
        monkeypatch.setattr(native_decoders, decoder, getattr(native_decoders, decoder).__wrapped__)
    codec = codec_of(name)
    assert codec.native is None
    chunk, out = chunk_of(codec), np.zeros(SIZE, np.uint8)
    assert not compression.check(codec, chunk, SIZE)
    compression.decode(codec, chunk, out)
    assert out.tobytes() == DATA.tobytes()


class Freeing:
    """zstd's function, and what was given back with it."""

    def __init__(self):
        self.freed = []

    def __call__(self, pointer):
        self.freed.append(pointer)


def test_a_context_of_zstd_is_kept_by_its_thread_and_given_back_after_it(monkeypatch):
    free, codec, found = Freeing(), codec_of("zstd"), []
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library(path, ZSTD_freeDCtx=free))
    codec.native = native_decoders.zstd.__wrapped__()
    chunk = chunk_of(codec)
    for _ in range(2):
        assert decoded(codec, chunk, SIZE)[0]
    thread = threading.Thread(target=lambda: found.append(decoded(codec, chunk, SIZE)[0]))
    thread.start()
    thread.join()
    assert found == [True]
    assert not free.freed
    del thread
    assert len(free.freed) == 1
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path: Library(path, ZSTD_createDCtx=NoMemory(), ZSTD_freeDCtx=free)
    )
    assert native_decoders.zstd.__wrapped__() is None


class NoMemory:
    def __call__(self):
        return None


@pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded with Linux's mprotect")
def test_no_damage_is_read_or_written_out_of_bounds_or_decoded_otherwise_than_by_numcodecs():
    # In a process of its own: what goes wrong here does so in C.
    command = [
        sys.executable,
        "-m",
        "tests.support.hostile_chunks",
        str(by_effort(300, 3000, 20_000)),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr[-2000:]
    assert run.stdout.startswith("sound: "), run.stdout
