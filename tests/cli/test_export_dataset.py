"""``mmreplay export``: what was written, and the formats in its help."""

import json
import zipfile

import numpy as np
import pytest

import mmreplay


def test_a_dataset_is_written(command, store):
    result = command("export", "arrays", store, "out.npz", "-o", "compressed=true")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("out.npz: 30 transitions, 5 episodes; ")
    assert len(result.out.splitlines()) == 1
    with np.load("out.npz") as found:
        assert found["observations"].shape == (30, 3)


def test_a_switch_as_it_is_written_in_python_and_by_people(command, store):
    for text, kind in (("True", zipfile.ZIP_DEFLATED), ("no", zipfile.ZIP_STORED)):
        command("export", "arrays", store, f"{text}.npz", "-o", f"compressed={text}")
        with zipfile.ZipFile(f"{text}.npz") as found:
            assert {one.compress_type for one in found.infolist()} == {kind}


def test_a_switch_that_is_neither(command, store):
    result = command("export", "arrays", store, "out.npz", "-o", "compressed=maybe")
    assert (result.status, result.out) == (1, "")
    assert "arrays: compressed: expected true or false, found 'maybe'" in result.err
    assert "True, False, yes, no" in " ".join(command("export", "--help").out.split())


def test_json(command, store):
    result = command("export", "arrays", store, "out", "--json")
    made = json.loads(result.out)
    assert (made["format"], made["episodes"], made["losses"]) == ("arrays", 5, [])


def test_help_lists_the_formats_and_what_each_cannot_carry(command):
    text = " ".join(command("export", "--help").out.split())
    for one in mmreplay.exchange_formats():
        assert (f"Not converted: {one.not_out}" in text) == (one.not_out is not None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none", "store.zarr", "out"), "format: expected one of arrays"),
        (("arrays", "none.zarr", "out"), "none.zarr: there is no store"),
        (("arrays", "store.zarr", "store.zarr"), "already exists; choose another path"),
    ],
)
def test_wrong_usage(command, store, arguments, message):
    result = command("export", *arguments)
    assert (result.status, result.out) == (1, "")
    assert message in result.err
