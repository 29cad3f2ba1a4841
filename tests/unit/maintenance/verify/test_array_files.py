"""Which chunk files, checksums and index files a lane must have."""

import os

import pytest
import zarr

from mmreplay import verify
from tests.support.tampering.findings import messages


@pytest.mark.parametrize("array", ["frames", "resets"])
def test_a_missing_chunk_file_is_found_though_zarr_reads_zeros(lz4_store, array):
    file = next((lz4_store / array).glob("c.2*"))
    file.unlink()
    assert messages(lz4_store, f"{array}/{file.name}") == ["expected this chunk file, found none"]
    assert not zarr.open_group(lz4_store, mode="r")[array][16:24].any()


def test_an_evicted_chunk_file_is_not_missing_but_the_next_one_is(evicted):
    oldest = min((evicted / "rewards").glob("c.*"), key=lambda path: int(path.name[2:]))
    oldest.unlink()
    assert messages(evicted, f"rewards/{oldest.name}") == ["expected this chunk file, found none"]


def test_missing_checksums_are_found_once_for_each_chunk_file(lz4_store):
    (lz4_store / "checksums" / "rewards" / "c.0").unlink()
    assert len(verify(lz4_store).findings) == 5  # each of its chunk files


def test_checksums_that_cannot_be_read_are_named_once(lz4_store):
    (lz4_store / "checksums" / "rewards" / "c.0").write_bytes(b"short")
    assert messages(lz4_store, "checksums/rewards/c.0") == [
        "expected 4,096 bytes, found 5: the file was cut or replaced"
    ]


def test_a_missing_index_is_found(lz4_store):
    (file,) = (lz4_store / "episodes" / "starts").glob("c.*")
    file.unlink()
    assert messages(lz4_store, f"episodes/starts/{file.name}") == [
        "expected this chunk file, found none"
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_the_place_of_a_chunk_file_is_a_finding(lz4_store):
    file = lz4_store / "rewards" / "c.0"
    file.unlink()
    os.mkfifo(file)
    assert messages(lz4_store, "rewards/c.0") == ["expected a regular file, found something else"]
