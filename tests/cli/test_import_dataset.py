"""``mmreplay import``: what was made, what was lost, and the formats in its help."""

import json
import pathlib

import numpy as np
import pytest

import mmreplay


@pytest.fixture
def arrays(folder):
    """in.npz: six steps, two of which end an episode."""
    np.savez(
        "in.npz",
        observations=np.arange(6, dtype="f4"),
        actions=np.arange(6),
        rewards=np.ones(6),
        terminals=np.arange(6) == 2,
        timeouts=np.arange(6) == 5,
    )
    return "in.npz"


def test_a_store_is_made_and_losses_are_said(command, arrays):
    result = command("import", "arrays", arrays, "a.zarr")
    assert (result.status, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("a.zarr: 6 transitions, 2 episodes (1 terminated, 1 truncated); ")
    assert second.startswith("not converted, 2 times: final observations")
    assert mmreplay.verify("a.zarr").sound


def test_options_and_json(command, arrays):
    result = command(
        *("import", "arrays", arrays, "a.zarr", "--codec", "raw", "--json"),
        *("-o", "final_observation=drop"),
    )
    assert (result.status, result.err) == (0, "")
    made = json.loads(result.out)
    assert (made["transitions"], made["path"]) == (5, "a.zarr")
    assert sum(one["count"] for one in made["losses"]) == 2


def test_columns_are_chosen_and_control_characters_escaped(command, folder):
    given = {"observations": np.zeros((2, 1)), "actions": np.zeros(2), "rewards": np.ones(2)}
    np.savez(
        "in.npz", **given, **{"terminals": np.ones(2), "a": np.ones(2), "b\x1b[2J": np.ones(2)}
    )
    target = "a\x1b[31m.zarr"
    result = command("import", "arrays", "in.npz", target, "--columns", "observations")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("a\\x1b[31m.zarr: 2 transitions")
    assert "column b\\x1b[2J: left out, as columns does not name it" in result.out
    result = command("import", "arrays", "in.npz", "b.zarr", "--leave-out", "a")
    assert "column a: left out, as leave_out says" in result.out
    assert set(mmreplay.open("b.zarr").extras) == {"b__2J"}
    result = command("import", "arrays", "in.npz", "c.zarr", "--leave-out", "c")
    assert (result.status, result.out) == (1, "")
    assert "found no column 'c'" in result.err


def test_a_codec_may_have_a_level(command, arrays):
    result = command("import", "arrays", arrays, "a.zarr", "--codec", "zstd:9")
    assert (result.status, result.err) == (0, "")
    document = json.loads(pathlib.Path("a.zarr/frames/zarr.json").read_bytes())
    assert '"level": 9' in json.dumps(document)
    result = command("import", "arrays", arrays, "b.zarr", "--codec", "png")
    assert (result.status, result.out) == (1, "")
    assert "expected codec 'raw', 'lz4', 'zstd' or one with a level, as 'zstd:9'" in result.err
    assert "dict" not in result.err


def test_help_lists_the_formats_and_what_each_cannot_carry(command):
    result = command("import", "--help")
    assert (result.status, result.err) == (0, "")
    text = " ".join(result.out.split())
    for one in mmreplay.exchange_formats():
        if one.not_in is not None:
            assert f"Not converted: {one.not_in}" in text
    assert "Options: final_observation (repeat, drop)." in text


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("array", "in.npz", "a.zarr"), 1, "did you mean 'arrays'?"),
        (("arrays", "none.npz", "a.zarr"), 1, "there is no such file or directory"),
        (("arrays", "in.npz", "a.zarr", "-o", "x=1"), 1, "no such option as 'x'"),
        (("arrays", "in.npz", "a.zarr", "-o", "x"), 2, "expected KEY=VALUE"),
        (
            ("arrays", "in.npz", "a.zarr", "-o", "codec=raw"),
            2,
            "codec is not an option of a format",
        ),
        (("arrays", "in.npz"), 2, "Missing argument 'SRC...'"),
    ],
)
def test_wrong_usage(command, arrays, arguments, status, message):
    result = command("import", *arguments)
    assert (result.status, result.out) == (status, "")
    assert message in result.err
