"""The order of a close: plain zarr, and nothing lost where one fails."""

import errno
import json
import os
import shutil
import warnings

import google_crc32c
import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    ClosedError,
    DiskFullError,
    FailedStoreError,
)
from mmreplay.storage import chunk_files
from mmreplay.writing import build_lane, close
from tests.support.writers import drain

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize(
    ("codec", "length"),
    [*(("lz4", length) for length in (0, 1, 7, 8, 16, 30)), ("zstd", 30), ("raw", 30)],
)
def test_a_closed_lane_is_plain_zarr_and_nothing_else(make, story, codec, length):
    writer = make(
        frame={"a": Field((3,), "uint8", codec, chunk=4, shard=8), "b": Field((), "float16")},
        action=Field((2,), "float32", chunk=5),
        extras={"x": Field((2,), "bool", chunk=7)},
    )
    if length:
        story.play(writer, length - 1)
    writer.close()
    path = writer.path
    for folder in [path, *(one for one in path.rglob("*") if one.is_dir())]:
        names = {one.name for one in folder.iterdir() if one.is_file()}
        assert "zarr.json" in names
        assert all(name == "zarr.json" or name.startswith("c.") for name in names)
    assert not (path / ".live").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
        members = dict(group.members(max_depth=None))
    story.lanes.setdefault(path, [])
    if length:
        for name, expected in story.columns(path, writer.schema).items():
            assert members[name].dtype == expected.dtype
            assert np.array_equal(members[name][:], expected)
    for name, spec in writer.specs.items():
        assert members[name].shape == (length, *spec.row_shape)
        sums = members[f"checksums/{name}"][:]
        assert sums.shape == (-(-length // spec.chunk_rows),)
        for chunk, value in enumerate(sums):
            data = chunk_files.chunk_path(path, spec, chunk).read_bytes()
            assert google_crc32c.value(data) == value
    assert members["episodes/starts"][:].tolist() == [0][:length]
    own = json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]
    assert (own["rows"], own["first"], own["closed"]) == (length, 0, True)


def test_the_unused_end_of_the_last_chunk_is_zeros_that_take_no_room(make, story):
    action = Field((), "int64", chunk=1 << 17)  # 1 MiB a chunk file
    writer = make(action=action)
    story.play(writer, 10)
    # What an interrupted step has left past the head must not get into the file.
    writer._chunks.columns["actions"].new.rows[11] = 77
    path = chunk_files.chunk_path(writer.path, writer.specs["actions"], 0)
    assert path.stat().st_blocks * 512 >= 1 << 20
    writer.close()
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 <= 64 * 1024
    assert path.read_bytes()[11 * 8 :].strip(b"\0") == b""
    again = make(append=True)
    assert path.stat().st_blocks * 512 >= 1 << 20
    again.close()


def test_the_index_of_a_closed_lane_names_its_resets(make, story):
    writer = make(capacity=30)
    for length in (3, 0, 5, 7, 100, 2, 0, 0, 9, 20):
        story.play(writer, length)
    writer.close()
    starts = zarr.open_array(writer.path / "episodes" / "starts", mode="r")[:]
    resets = np.flatnonzero(story.columns(writer.path, writer.schema)["resets"])
    first = story.transitions(writer.path)[-30]
    base = first - 64
    assert starts.tolist() == [row for row in resets.tolist() if row >= base]
    assert len(starts) < len(resets)
    again = make(append=True)
    story.play(again, 4)
    again.close()
    with mmreplay.open(writer.path) as store:
        story.check(store, start=store.lanes[0].base)


def test_evicted_files_stay_gone_and_read_as_zeros(make, story):
    writer = make(capacity=5)
    story.play(writer, 100)
    writer.close()
    rewards = zarr.open_array(writer.path / "rewards", mode="r")[:]
    expected = story.columns(writer.path, writer.schema)["rewards"]
    assert rewards[:24].tolist() == [0] * 24
    assert rewards[24:].tolist() == expected[24:].tolist()


@pytest.mark.parametrize("codec", ["raw", "lz4"])
@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, FailedStoreError)]
)
def test_a_close_that_fails_at_any_write_loses_nothing(
    make, story, monkeypatch, codec, number, error
):
    writer = make(frame=Field((3,), "uint8", codec, chunk=4, shard=8))
    story.play(writer, 20)
    n_failed, at, real = 0, 0, os.write
    while True:
        count = [0]

        def write(descriptor, data, count=count, at=at):
            count[0] += 1
            if count[0] > at:
                raise OSError(number, "no")
            return real(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            try:
                writer.close()
                break
            except error:
                n_failed += 1
        at += 3
        with mmreplay.open(writer.path) as store:
            story.check(store)
        if error is DiskFullError:  # the same call works once there is room, and no other
            for call in (story.step, story.reset):
                with pytest.raises(ClosedError, match=r"close\(\) found no room"):
                    call(writer)
        else:
            writer = make(append=True)
        with mmreplay.open(writer.path) as store:
            story.check(store)
    with mmreplay.open(writer.path) as store:
        story.check(store)
    assert mmreplay.verify(writer.path).findings == []
    assert n_failed > 3


def test_the_root_says_closed_only_after_everything_else_is_durable(
    make, story, lz4, log, monkeypatch
):
    writer = make(**lz4)
    story.play(writer, 20)
    drain(writer)
    log.clear()
    real = build_lane.write_metadata

    def write_metadata(*args, **changes):
        log.append(("closed", str(changes["closed"])))
        return real(*args, **changes)

    monkeypatch.setattr(build_lane, "write_metadata", write_metadata)
    writer.close()
    place = log.index(("closed", "True"))
    before, after = log[:place], log[place + 1 :]
    for name in writer.specs:
        assert ("write_file", f"{name}/zarr.json") in before
    assert ("write_file", "frames/c.2.0") in before
    assert ("write_file", "episodes/starts/zarr.json") in before
    assert after[0] == ("write_file", "zarr.json")
    assert all(path.startswith(".live") for name, path in after if name == "unlink")
    assert not any(name in {"write_at", "sync_file", "allocate"} for name, _ in after)


def test_a_close_meets_a_store_that_is_being_removed(make, story, monkeypatch):
    writer = make(codec="raw")
    story.play(writer, 10)
    zero_unused = close._zero_unused

    def removing(lane, head):
        shutil.rmtree(writer.path / "non_terminals")
        zero_unused(lane, head)

    monkeypatch.setattr(close, "_zero_unused", removing)
    with pytest.raises(FailedStoreError, match="'non_terminals' is missing: somebody is removing"):
        writer.close()
    with pytest.raises(ClosedError):
        writer.flush()
