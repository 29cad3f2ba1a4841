"""``mmreplay bench``: it measures what it says."""

import json
import re

import numpy as np
import pytest

import mmreplay
from mmreplay import Field

KEYS = set(
    "path transitions batch_size stack codec batches batches_per_s transitions_per_s "
    "first_us median_us p10_us p90_us frame_bytes_per_s".split()
)


def measured(command, *arguments):
    result = command("bench", *arguments, "--seconds", "0.05", "--json")
    assert (result.status, result.err) == (0, "")
    return json.loads(result.out)


def test_json(command, store):
    about = measured(command, store)
    assert about.keys() == KEYS
    assert (about["path"], about["transitions"], about["codec"]) == (store, 30, "raw")
    assert (about["batch_size"], about["stack"]) == (32, None)
    assert 0 < about["p10_us"] <= about["median_us"] <= about["p90_us"]
    assert about["first_us"] > 0


def test_a_batch_slower_than_the_time_limit_ends_the_benchmark(command, store):
    result = command("bench", store, "--seconds", "1e-9", "--json")
    assert json.loads(result.out)["batches"] == 1


def test_the_figures_agree_with_each_other(command, store):
    about = measured(command, store, "--batch-size", 8, "--stack", 3)
    assert (about["batch_size"], about["stack"]) == (8, 3)
    assert about["transitions_per_s"] == pytest.approx(8 * about["batches_per_s"])
    # Two stacks of three frames of three bytes, eight times a batch.
    assert about["frame_bytes_per_s"] == pytest.approx(8 * 2 * 3 * 3 * about["batches_per_s"])
    fastest, slowest = 1e6 / about["p10_us"], 1e6 / about["p90_us"]
    assert about["batches_per_s"] < 2 * fastest
    assert slowest > 0


def test_the_text_output(command, store):
    out = command("bench", store, "--seconds", "0.05", "--batch-size", "4", "--stack", "3").out
    number = r"[\d,]+"
    time = r"\d[\d.]* (?:us|ms)"
    assert re.fullmatch(
        rf"""store\.zarr: 30 transitions, frames raw
batches of 4, stacks of 3

transitions/s     {number}
batches/s         {number}
one batch         {time} median, {time} to {time} for 80%
the first batch   {time}
frames            [\d.]+ .?B/s as observation and next observation
""",
        out,
    )


def test_compressed_frames_and_dicts(command, folder):
    fields = {"pixels": Field((8, 8), "uint8", "lz4"), "speed": Field((2,), "float32")}
    with mmreplay.create("store.zarr", frame=fields, action=Field()) as writer:
        row = {"pixels": np.zeros((8, 8), np.uint8), "speed": np.zeros(2, np.float32)}
        writer.reset(row)
        for _ in range(40):
            writer.step(0, 1.0, row, False, False)
    about = measured(command, "store.zarr")
    assert about["codec"] == "lz4, raw"
    assert about["frame_bytes_per_s"] == pytest.approx(
        32 * 2 * (4 * 64 + 8) * about["batches_per_s"]
    )


def test_an_empty_store_has_nothing_to_sample(command, write):
    write().close()
    result = command("bench", "store.zarr")
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("Error: ")
    assert "Traceback" not in result.err


def test_the_default_is_that_of_load(command, folder):
    with mmreplay.create("gray.zarr", Field((8, 8)), Field((), "int64")) as writer:
        writer.reset(np.zeros((8, 8), "uint8"))
        writer.step(0, 1.0, np.zeros((8, 8), "uint8"))
    assert measured(command, "gray.zarr")["stack"] == 4
    out = command("bench", "gray.zarr", "--seconds", "0.05").out
    assert "batches of 32, stacks of 4\n" in out
