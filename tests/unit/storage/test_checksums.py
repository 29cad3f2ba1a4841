"""Checksums of chunk files: of finished files only, forgotten when rows come again."""

import collections

import google_crc32c
import numpy as np
import pytest

from mmreplay import Field
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import Checksums

pytestmark = pytest.mark.usefixtures("quick_disk")

RAW = ArraySpec("rewards", (), np.dtype("float32"), 10)
PACKED = ArraySpec("frames/a", (3,), np.dtype("uint8"), 8, 4, {"name": "zstd", "configuration": {}})


@pytest.fixture
def fresh():
    return collections.deque()


@pytest.fixture
def sums(tmp_path, fresh):
    specs = {spec.path: spec for spec in (RAW, PACKED)}
    for path in specs:
        (tmp_path / "checksums" / path).mkdir(parents=True)
    return Checksums(tmp_path, specs, fresh)


def stored(lane, spec):
    """Every checksum on disk, by chunk, zeros left out."""
    out = {}
    for path in (lane / "checksums" / spec.path).glob("c.*"):
        first = int(path.name[2:]) * 1024
        values = np.frombuffer(path.read_bytes(), "<u4")
        assert values.size == 1024
        out |= {first + int(n): int(values[n]) for n in np.flatnonzero(values)}
    return out


def test_a_checksum_stands_at_the_number_of_its_chunk(sums, tmp_path):
    for chunk, value in ((0, 7), (1023, 8), (1024, 9), (5000, 0xFFFFFFFF)):
        assert not sums.has(RAW, chunk)
        sums.set(RAW, chunk, value)
        assert sums.has(RAW, chunk)
    assert stored(tmp_path, RAW) == {0: 7, 1023: 8, 1024: 9, 5000: 0xFFFFFFFF}
    assert not sums.has(PACKED, 0)


def test_a_checksum_of_0_is_stored_as_1_for_0_stands_for_none(sums, tmp_path):
    sums.set(PACKED, 3, 0)
    assert stored(tmp_path, PACKED) == {3: 1}


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (3, []),
        (15, [0]),
        (10_241, list(range(1024))),
    ],
)
def test_checksums_of_files_that_are_still_to_be_filled_are_forgotten(sums, tmp_path, head, kept):
    for chunk in range(1030):
        sums.set(RAW, chunk, chunk + 1)
    sums.sync()
    sums.forget(head, head)
    assert stored(tmp_path, RAW) == {chunk: chunk + 1 for chunk in kept}


def test_checksums_of_compressed_files_from_the_tail_on_are_forgotten(sums, tmp_path):
    for chunk in range(6):
        sums.set(RAW, chunk, 5)
        sums.set(PACKED, chunk, 5)
    sums.forget(35, 16)
    assert sorted(stored(tmp_path, RAW)) == [0, 1, 2]
    assert sorted(stored(tmp_path, PACKED)) == [0, 1]


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_after_a_close_every_file_has_its_checksum_and_a_reopening_forgets_the_last(
    make, story, codec
):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8))
    story.play(writer, 30)
    writer.close()
    for spec in writer.files.rows.specs.values():
        found = stored(writer.path, spec)
        files_ = {
            chunk: google_crc32c.value(
                chunk_files.chunk_path(writer.path, spec, chunk).read_bytes()
            )
            for chunk in chunk_files.chunk_files(writer.path, spec)
        }
        assert found == files_
        assert sorted(found) == list(range(-(-30 // spec.chunk_rows)))
    again = make(append=True)
    for spec in again.files.rows.specs.values():
        assert sorted(stored(again.path, spec)) == list(
            range((30 if not spec.is_raw else 29) // spec.chunk_rows)
        )
