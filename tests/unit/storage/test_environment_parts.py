"""Raw frames of many environments: environment by environment in each chunk file, if they are large."""

import json

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files
from mmreplay.system import memory_maps, platform
from tests.support.disks import faults

N, CHUNK = 3, 8
ACTION = mmreplay.Field((), "int64")


def field(side):
    return mmreplay.Field((side, side), "uint8", "raw", chunk=CHUNK)


def write(path, frames):
    writer = mmreplay.create(path, field(frames.shape[-1]), ACTION, lanes=N, append=True, flush_s=0)
    writer.reset(frames[0])
    for t, now in enumerate(frames[1:]):
        writer.step([t] * N, [0.0] * N, now, [False] * N, [False] * N)
    return writer


def frames_of(n, side=64, seed=0):
    return np.random.default_rng(seed).integers(1, 255, (n, N, side, side), "uint8")


def chunk_bytes(path, chunk, side=64):
    data = np.fromfile(path / f"frames/c.{chunk}.0.0.0", "uint8")
    return data.reshape(N, CHUNK, side, side)


def test_large_frames_lie_environment_by_environment_and_zarr_reads_them(tmp_path):
    path, frames = tmp_path / "v.zarr", frames_of(31)
    write(path, frames).close()
    document = json.loads((path / "frames/zarr.json").read_bytes())
    order = {"name": "transpose", "configuration": {"order": [1, 0, 2, 3]}}
    assert document["codecs"] == [order, {"name": "bytes"}]
    assert np.array_equal(zarr.open_group(path, mode="r")["frames"][:], frames[:-1])
    assert np.array_equal(chunk_bytes(path, 0), frames[:8].swapaxes(0, 1))
    last = chunk_bytes(path, 3)
    assert np.array_equal(last[:, :6], frames[24:30].swapaxes(0, 1))
    assert not last[:, 6:].any()
    assert not mmreplay.verify(path).findings


def test_small_frames_lie_step_by_step(tmp_path):
    path, frames = tmp_path / "v.zarr", frames_of(9, side=63)
    write(path, frames).close()
    data = np.fromfile(path / "frames/c.0.0.0.0", "uint8")
    assert np.array_equal(data.reshape(CHUNK, N, 63, 63), frames[:-1])
    assert np.array_equal(zarr.open_group(path, mode="r")["frames"][:], frames[:-1])


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_lane_that_is_opened_again_goes_on_in_each_part(tmp_path, end):
    path, old, new = tmp_path / "v.zarr", frames_of(12), frames_of(15, seed=1)
    writer = write(path, old)
    writer.close() if end == "close" else faults.kill(writer)
    write(path, new).close()
    expected = np.concatenate((old[:-1], new[:-1]))
    with mmreplay.open(path) as store:
        assert np.array_equal(store.frames[:], expected)
        batch = store.transitions(store.ids, stack=2)
        steps, envs = np.divmod(store.ids, N)
        following = np.concatenate((old[1:], new[1:]))
        assert np.array_equal(batch.next_observation[:, -1], following[steps, envs])
    assert not mmreplay.verify(path).findings


def test_bytes_past_the_last_row_of_each_part_harm_no_row(tmp_path):
    path = tmp_path / "v.zarr"
    write(path, frames_of(6)).close()
    with (path / "frames/c.0.0.0.0").open("r+b") as file:
        file.seek(6 * 4096)  # of environment 0, past its 5 steps
        file.write(b"x")
    assert [one.message for one in mmreplay.verify(path).findings if "past" in one.message]
    write(path, frames_of(2)).close()  # the rows match their checksum, and are written on
    assert not mmreplay.verify(path).findings
    with (path / "frames/c.0.0.0.0").open("r+b") as file:
        file.seek(CHUNK * 4096 + 7)  # of environment 1, in its first step
        file.write(b"\0")
    with pytest.raises(CorruptStoreError, match="checksum"):
        write(path, frames_of(2))


def test_rows_and_places_are_those_of_the_bytes():
    spec = ArraySpec("frames", (N, 2), np.dtype("uint16"), 5, width=N)
    values = np.arange(5 * N * 2, dtype="uint16").reshape(5, N, 2)
    data = values.swapaxes(0, 1).tobytes()
    assert np.array_equal(chunk_files.rows_of(spec, data), values)
    for start in range(5):
        for stop in range(start + 1, 6):
            ranges = chunk_files.byte_ranges(spec, start, stop)
            part = b"".join(data[offset : offset + length] for offset, length in ranges)
            assert np.array_equal(chunk_files.rows_of(spec, part), values[start:stop])
    entries = np.arange(10 * N)  # of two files
    places = chunk_files.file_places(entries, np.array(N), np.array(5))
    stored = np.concatenate([one.reshape(-1) for one in np.split(entries.reshape(10, N), 2)])
    by_file = np.concatenate([one.T.ravel() for one in stored.reshape(2, 5, N)])
    assert np.array_equal(by_file[places], entries)


def test_other_orders_and_other_arrays_are_refused():
    spec = ArraySpec("frames", (N, 4, 4), np.dtype("uint8"), 5, width=N)
    text = layout.array_json(spec, 7)
    assert parse.parse_array(text, "frames", "here") == (spec, 7)
    for path, wrong in (
        ("extras/x", text),
        ("frames", text.replace(b'"transpose"', b'"other"')),
        ("frames", json.dumps(_with_order(text, [0, 1, 2, 3])).encode()),
    ):
        with pytest.raises(FormatError):
            parse.parse_array(wrong, path, "here")


def _with_order(text, order):
    document = json.loads(text)
    document["codecs"][0]["configuration"]["order"] = order
    return document


@pytest.mark.skipif(not platform.LINUX, reason="populates no pages")
def test_a_file_has_all_of_its_pages_before_its_first_step(tmp_path):
    with write(tmp_path / "store.zarr", np.ones((2, N, 300, 300), "uint8")) as writer:
        assert memory_maps.resident(writer._rows.columns["frames"].new.data) == 1.0
