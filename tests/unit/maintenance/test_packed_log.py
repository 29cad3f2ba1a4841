"""Chunk files of a packed log: copied, or written from rows, with the checksums they must have."""

import numpy as np
import pytest

from mmreplay import CorruptStoreError, Field
from mmreplay.maintenance.packed_layout import FrameLayout
from mmreplay.maintenance.packed_log import PackedLog, write_documents
from mmreplay.maintenance.packed_rows import ChosenRows, StoredRows
from mmreplay.reading.joined_lanes import open_lane
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from tests.support.disks.trees import flip

LZ4 = Field((3,), "uint8", "lz4", chunk=4, shard=8)


def go_on():
    """A pause between chunks in which nothing happens."""


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
    log = PackedLog(target, rows, specs)
    files = list(log.files())
    assert log.weight == sum(log.weight_of(*file) for file in files)
    made = [file for file in files if rows.stored(file[0]) is None]
    assert log.made() == (len(made), sum(log.weight_of(*file) for file in made))
    assert log.weight == 37 * sum(spec.row_bytes for spec in specs.values())
    for file in files:
        log.note(file[0].path, file[1], log.write(*file, go_on))
    log.write_checksums()
    for spec, chunk in files:
        path = target / spec.path / spec.key(chunk)
        value = crc32c_of_file(path, path.stat().st_size)
        assert value == stored_checksum(target, spec, chunk)
        if codec is None:
            source = reader.path / spec.path / path.name
            assert path.read_bytes() == source.read_bytes()
            assert path.stat().st_blocks <= source.stat().st_blocks  # holes stay holes


def test_what_is_copied_must_match_its_checksum(reader, tmp_path):
    log = PackedLog(tmp_path / "packed", StoredRows(reader), reader.specs)
    write_documents(tmp_path / "packed", {}, reader.specs, StoredRows(reader))
    for name in ("frames", "rewards"):
        spec = reader.specs[name]
        flip(reader.path / name / spec.key(1))
        with pytest.raises(CorruptStoreError, match="does not match its checksum"):
            log.write(spec, 1, go_on)
        (reader.path / name / spec.key(0)).unlink()
        with pytest.raises(CorruptStoreError, match="missing"):
            log.write(spec, 0, go_on)


def test_a_log_without_rows_has_no_files(reader, tmp_path):
    none = ChosenRows(reader, np.empty(0, np.int64), np.empty(0, np.int64))
    assert list(PackedLog(tmp_path / "packed", none, reader.specs).files()) == []


def test_a_shard_is_given_up_where_that_is_asked_for(reader, tmp_path):
    class StoppedError(Exception):
        pass

    def stop():
        raise StoppedError

    rows = StoredRows(reader)
    specs = FrameLayout.of("zstd", None, None).same_kind(reader)[""]
    write_documents(tmp_path / "packed", {}, specs, rows)
    with pytest.raises(StoppedError):
        PackedLog(tmp_path / "packed", rows, specs).write(specs["frames"], 0, stop)
    assert not list((tmp_path / "packed" / "frames").glob("c.*"))
