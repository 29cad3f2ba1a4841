"""Chunk files of a packed log: copied, or written from rows, with the checksums they must have."""

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from mmreplay import CorruptStoreError, Field
from mmreplay.maintenance.packed_layout import FrameLayout
from mmreplay.maintenance.packed_log import LogFile, log_files, write_checksums, write_documents
from mmreplay.maintenance.packed_rows import ChosenRows, StoredRows
from mmreplay.reading.joined_lanes import open_lane
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from tests.support.disks.trees import flip

GO_ON = threading.Event()
LZ4 = Field((3,), "uint8", "lz4", chunk=4, shard=8)


@pytest.fixture
def reader(make, story):
    writer = make(frame=LZ4, action=Field((), "int64", chunk=8))
    story.play_every_end(writer)
    writer.close()
    return open_lane(writer.path, 0)


@pytest.mark.parametrize("codec", [None, "zstd", "raw"])
def test_each_file_and_its_checksum(reader, tmp_path, codec):
    rows, target = StoredRows(reader), tmp_path / "packed"
    specs = FrameLayout.of(codec, None, None).same_kind(reader)[""]
    write_documents(target, {}, specs, rows)
    files = log_files(target, rows, specs)
    assert sum(file.weight for file in files) == 37 * sum(s.row_bytes for s in specs.values())
    values = [file.write(GO_ON) for file in files]
    write_checksums(files, values)
    for file, value in zip(files, values, strict=True):
        path = target / file.spec.path / file.spec.key(file.chunk)
        assert value == crc32c_of_file(path, path.stat().st_size)
        assert value == stored_checksum(target, file.spec, file.chunk)
        if codec is None:
            source = reader.path / file.spec.path / path.name
            assert path.read_bytes() == source.read_bytes()
            assert path.stat().st_blocks <= source.stat().st_blocks  # holes stay holes


def test_what_is_copied_must_match_its_checksum(reader, tmp_path):
    rows = StoredRows(reader)
    write_documents(tmp_path / "packed", {}, reader.specs, rows)
    for name in ("frames", "rewards"):
        spec = reader.specs[name]
        flip(reader.path / name / spec.key(1))
        with pytest.raises(CorruptStoreError, match="does not match its checksum"):
            LogFile(tmp_path / "packed", rows, spec, 1).write(GO_ON)
        (reader.path / name / spec.key(0)).unlink()
        with pytest.raises(CorruptStoreError, match="missing"):
            LogFile(tmp_path / "packed", rows, spec, 0).write(GO_ON)


def test_files_of_a_log_without_rows(reader, tmp_path):
    none = ChosenRows(reader, np.empty(0, np.int64), np.empty(0, np.int64))
    assert log_files(tmp_path / "packed", none, reader.specs) == []


def test_a_shard_is_given_up_where_that_is_asked_for(reader, tmp_path):
    stop, rows = threading.Event(), StoredRows(reader)
    specs = FrameLayout.of("zstd", None, None).same_kind(reader)[""]
    write_documents(tmp_path / "packed", {}, specs, rows)
    stop.set()
    with pytest.raises(CancelledError):
        LogFile(tmp_path / "packed", rows, specs["frames"], 0).write(stop)
    assert not list((tmp_path / "packed" / "frames").glob("c.*"))
