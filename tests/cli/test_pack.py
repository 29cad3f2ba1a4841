"""``mmreplay pack``: one line about the new store."""

import json
import re

import numpy as np
import pytest

import mmreplay


def test_one_store(command, store):
    result = command("pack", store, "packed.zarr")
    assert (result.status, result.err) == (0, "")
    assert re.fullmatch(
        r"packed\.zarr: 30 transitions in 5 episodes; [\d.]+ kB, the source [\d.]+ kB\n", result.out
    )
    assert mmreplay.verify("packed.zarr").sound


def test_a_result_that_is_larger_than_its_sources_says_so(command, write, play):
    with write(frame=mmreplay.Field((64, 64), "uint8", "zstd"), flush_s=0) as writer:
        writer.reset(np.zeros((64, 64), np.uint8))
        for _ in range(30):
            writer.step(1, 1.0, np.zeros((64, 64), np.uint8))
    result = command("pack", "store.zarr", "packed.zarr", "--codec", "raw")
    assert re.search(r"kB; [\d.]+ times larger than the source\n\Z", result.out)


def test_a_quoted_pattern(command, store, write, play):
    with write("other.zarr") as writer:
        play(writer, 4, "terminated")
    result = command("pack", "*.zarr", "packed.store")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("packed.store: 34 transitions in 6 episodes; ")


def test_a_choice_of_two_stores(command, store, write, play):
    with write("other.zarr") as writer:
        for _ in range(3):
            play(writer, 4, "terminated")
    result = command(
        "pack", store, "other.zarr", "packed.zarr", "--episodes", "0-2, 5,7", "--codec", "zstd:3"
    )
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("packed.zarr: 25 transitions in 5 episodes, 3 left out; ")
    with mmreplay.open("packed.zarr") as packed:
        assert packed.episodes["length"].tolist() == [4, 9, 4, 4, 4]
        assert packed.info()["fields"]["frames"]["codec"] == "zstd"


@pytest.mark.parametrize(
    ("options", "n_episodes"),
    [(("--min-return", "5"), 3), (("--min-return", "-1"), 5), (("--env", "0"), 5)],
)
def test_by_return_and_environment(command, store, options, n_episodes):
    assert command("pack", store, "packed.zarr", *options).status == 0
    assert len(mmreplay.open("packed.zarr").episodes) == n_episodes


def test_environments_of_many(command, vector_store):
    result = command("pack", vector_store, "packed.zarr", "--env", "1", "--json")
    assert (result.status, result.err) == (0, "")
    made = json.loads(result.out)
    assert list(made) == [
        *("path", "transitions", "episodes", "left_out", "source_bytes", "bytes_on_disk")
    ]
    assert list(made.values())[:4] == ["packed.zarr", 30, 3, 3]


def test_the_newest_that_a_capacity_leaves_room_for(command, store):
    assert command("pack", store, "packed.zarr", "--capacity", "12").status == 0
    assert len(mmreplay.open("packed.zarr")) == 12


@pytest.mark.parametrize("text", ["", "1-", "3-1", "x", "1,,2", "-1", "0-999999999"])
def test_numbers_that_are_none(command, store, text):
    result = command("pack", store, "packed.zarr", f"--episodes={text}")
    assert (result.status, result.out) == (2, "")
    assert "Invalid value for '--episodes': expected" in result.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("store.zarr", "store.zarr"), "store.zarr: already exists; choose another"),
        (
            ("store.zarr", "store.zarr/packed"),
            "store.zarr/packed: lies within the store store.zarr",
        ),
        (("nothing.zarr", "packed.zarr"), "nothing.zarr: there is no store here; check the path"),
        (("store.zarr", "packed.zarr", "--codec", "png"), "codec 'raw', 'lz4', 'zstd' or"),
        (
            ("store.zarr", "packed.zarr", "--episodes", "5"),
            "episodes: expected episodes 0 to 4, found number 5",
        ),
        (("store.zarr", "packed.zarr", "--min-return", "99"), "the greatest return is 11"),
    ],
)
def test_what_is_refused(command, store, folder, arguments, text):
    result = command("pack", *arguments)
    assert (result.status, result.out) == (1, "")
    assert text in result.err
    assert [one.name for one in folder.iterdir()] == ["store.zarr"]
