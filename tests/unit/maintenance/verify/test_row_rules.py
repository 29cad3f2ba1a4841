"""What rows may hold: final rows, flags, the index, the capacity."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, verify
from tests.support.tampering.findings import messages, texts
from tests.support.tampering.forgery import edit, forge

ACTION = Field((), "uint8", chunk=8)


def test_a_final_row_with_a_reward(lz4_store):
    # Rows 0 to 9 are the first episode: row 9 is its final one.
    def change(data):
        data[4:8] = np.float32(1).tobytes()

    forge(lz4_store, "rewards", 1, change)
    (finding,) = verify(lz4_store).findings
    assert str(finding) == (
        "rewards/c.1, row 9: final rows: expected zeros, found other values in row 9"
    )


@pytest.mark.parametrize(("array", "byte"), [("actions", 1), ("extras/log_prob", 7)])
def test_a_final_row_with_an_action_or_an_extra(lz4_store, array, byte):
    forge(lz4_store, array, 1, lambda data: data.__setitem__(byte, 1))
    found = verify(lz4_store).findings
    assert [one.message.partition(":")[0] for one in found] == ["final rows"]
    assert found[0].rows == (9, 10)


def test_the_last_row_of_a_closed_store_is_final(lz4_store):
    forge(lz4_store, "actions", 4, lambda data: data.__setitem__(4, 1))
    assert verify(lz4_store).findings[0].rows == (36, 37)


def test_a_final_row_with_another_flag_than_the_row_before(lz4_store):
    forge(lz4_store, "non_terminals", 1, lambda data: data.__setitem__(1, 1))
    (finding,) = verify(lz4_store).findings
    assert finding.rows == (9, 10)
    assert finding.message.startswith("final rows: expected the flag of the row before")


def test_the_flag_of_a_final_row_is_compared_across_chunk_files(make, story):
    writer = make(action=ACTION)
    story.play(writer, 8, "terminated")  # row 8 is final, and the first of its chunk file
    story.play(writer, 3)
    writer.close()
    forge(writer.path, "non_terminals", 1, lambda data: data.__setitem__(0, 1))
    assert verify(writer.path).findings[0].rows == (8, 9)


@pytest.mark.parametrize(("array", "what"), [("non_terminals", "flags"), ("resets", "reset bits")])
def test_a_flag_that_is_neither_0_nor_1(lz4_store, array, what):
    forge(lz4_store, array, 0, lambda data: data.__setitem__(3, 2))
    assert verify(lz4_store).findings[0].message == (
        f"{what}: expected 0 or 1, found other values in row 3"
    )


def test_a_bool_that_is_neither_0_nor_1(make, story, kinds):
    writer = make(frame=kinds["dict"])
    story.play_every_end(writer)
    writer.close()
    forge(writer.path, "frames/seen", 0, lambda data: data.__setitem__(3, 2))
    assert messages(writer.path, "frames/seen/c.0") == [
        "bools: expected 0 or 1, found other values in row 3"
    ]


def test_a_store_whose_first_row_is_no_reset(lz4_store):
    forge(lz4_store, "resets", 0, lambda data: data.__setitem__(0, 0))
    found = texts(verify(lz4_store))
    assert found[0] == (
        "resets/c.0, row 0: expected a reset in row 0, the first of all, found none"
    )


@pytest.mark.parametrize("row", [4, 10])
def test_reset_bits_that_differ_from_the_index(lz4_store, row):
    forge(lz4_store, "resets", row // 8, lambda data: data.__setitem__(row % 8, 1 - data[row % 8]))
    found = verify(lz4_store).findings
    assert "episodes/starts" in {one.file for one in found}
    index = next(one for one in found if one.file == "episodes/starts")
    assert index.message.startswith("expected the ")


def test_an_index_that_differs_from_the_reset_bits(lz4_store):
    (file,) = (lz4_store / "episodes" / "starts").glob("c.*")
    starts = np.frombuffer(file.read_bytes(), "<i8").copy()
    assert starts[:4].tolist() == [0, 10, 22, 23]
    starts[1] = 11
    file.write_bytes(starts.tobytes())
    assert messages(lz4_store, "episodes/starts") == [
        "expected the 4 rows with a reset bit, found 4, and at entry 1 row 11 for row 10"
    ]


@pytest.mark.parametrize("array", ["rewards", "frames"])
def test_rows_past_the_last_one_are_zero(make, story, array):
    writer = make(action=ACTION)
    story.play(writer, 9)
    writer.close()
    forge(writer.path, array, 1, lambda data: data.__setitem__(-1, 1))
    file = next((writer.path / array).glob("c.1*")).name
    assert messages(writer.path, f"{array}/{file}") == [
        "expected zeros past the last of 10 rows, found 1 other bytes"
    ]


def test_first_follows_from_the_capacity(evicted):
    first = json.loads((evicted / "zarr.json").read_text())["attributes"]["mmreplay"]["first"]
    edit(evicted / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(first=first - 1))
    assert any(one.message.startswith("first: expected ") for one in verify(evicted).findings)


def test_first_without_a_capacity_is_0(lz4_store):
    edit(lz4_store / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(first=2))
    assert messages(lz4_store, "zarr.json") == [
        "first: expected 0 where no capacity is set, found 2"
    ]


def test_a_capacity_that_was_raised_after_eviction_is_a_warning(evicted):
    edit(evicted / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(capacity=25))
    report = verify(evicted)
    assert report.sound
    assert report.warnings[0].message.startswith("older rows were evicted, though 20 transitions")


# ---------------------------------------------------------------- NaN and infinity

FLOATS = Field((2,), "float32", "lz4", chunk=2, shard=4), Field((2,), "float32", "raw", chunk=4)
ODD = "NaN or infinite values: {}, the first in row {}; stored as they came"


def of_floats(path, frame, **more):
    """Steps of which some give a NaN or an infinity: a reward, a frame and an extra."""
    extras = {"x": Field((2,), "float64", chunk=8)}
    with mmreplay.create(path, frame, ACTION, extras=extras, flush_s=0, **more) as writer:
        frames, x = np.zeros((9, 2), "float32"), np.zeros((8, 2))
        frames[5] = np.nan, np.inf
        x[6, 1] = np.inf
        writer.reset(frames[0])
        for t, reward in enumerate([0, np.nan, 1, -np.inf, 0, np.inf, 0, 1]):
            writer.step(0, reward, frames[t + 1], x=x[t])
    return path


@pytest.mark.parametrize("frame", FLOATS)
def test_values_that_are_not_finite_are_counted_and_no_damage(tmp_path, frame):
    report = verify(of_floats(tmp_path / "odd.zarr", frame))
    assert report.findings == []
    assert {one.array: one.message for one in report.warnings} == {
        "rewards": ODD.format(3, 1),
        "frames": ODD.format(2, 5),
        "extras/x": ODD.format(1, 6),
    }


def test_of_many_environments_those_of_ticks_and_starts_are_counted(tmp_path):
    path = tmp_path / "odd.zarr"
    with mmreplay.create(path, Field((2,), "float32"), ACTION, lanes=3, flush_s=0) as writer:
        frames, no = np.zeros((3, 2), "float32"), np.zeros(3, bool)
        frames[1] = np.inf
        writer.reset(frames)
        writer.step([0, 0, 0], [0, 0, 0], np.zeros_like(frames), no, no)
        writer.step([0, 0, 0], [0, np.nan, np.nan], frames, no, no)
    report = verify(path)
    assert report.findings == []
    assert {one.array: one.message for one in report.warnings} == {
        "ticks/frames": ODD.format(2, 1),
        "ticks/rewards": ODD.format(2, 1),
        "starts/frames": ODD.format(2, 1),
    }
