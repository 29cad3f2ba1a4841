"""``mmreplay plot``: one line about the file, or a message and no file."""

import re
import shutil

import pytest


def test_curves_of_two_stores(command, store):
    shutil.copytree(store, "other.zarr")
    result = command("plot", store, "other.zarr", "--out", "x.svg")
    assert (result.status, result.err) == (0, "")
    said = r"x\.svg: returns, lengths, rewards and actions, [\d.]+ kB\n"
    assert re.fullmatch(said, result.out)
    assert command("plot", "*.zarr", "--out", "y.svg").status == 0  # a pattern, quoted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["store.zarr", "--out", "x.gif"],
            "out: 'x.gif': expected a name that ends in .svg or .png",
        ),
        (
            ["store.zarr", "no.zarr", "--out", "x.svg"],
            "no.zarr: there is no store here; check the path, or record one first",
        ),
        (["store.zarr"] * 11 + ["--out", "x.svg"], "paths: expected 1 to 10 stores, found 11"),
    ],
)
def test_what_is_refused(command, store, folder, arguments, message):
    result = command("plot", *arguments)
    assert (result.status, result.out, result.err) == (1, "", f"Error: {message}\n")
    assert {one.name for one in folder.iterdir()} == {"store.zarr"}
