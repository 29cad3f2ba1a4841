"""``mmreplay render``: one line about the film, or a message and no file."""

import re

import numpy as np
import pytest
from PIL import Image

import mmreplay
from mmreplay import Field


@pytest.fixture
def pictures(write):
    """store.zarr, closed: two episodes of five steps, frames of 9 x 9."""
    with write(frame=Field((9, 9))) as writer:
        for _ in range(2):
            writer.reset(np.zeros((9, 9), np.uint8))
            for t in range(5):
                writer.step(1, 1.0, np.full((9, 9), 9 * t, np.uint8), terminated=t == 4)
    return "store.zarr"


@pytest.mark.parametrize(("out", "form"), [("x.gif", "GIF"), ("x.png", "PNG")])
def test_pictures(command, pictures, out, form):
    result = command("render", pictures, "--episode", 0, "--out", out, "--scale", 2, "--fps", 10)
    assert (result.status, result.err) == (0, "")
    assert re.fullmatch(
        rf"{re.escape(out)}: 6 frames of episode 0 \(5 steps, return 5, terminated\), "
        r"\d+x\d+ pixels, [\d.]+ k?B\n",
        result.out,
    )
    with Image.open(out) as found:
        assert found.format == form


def test_by_default_the_last_episode(command, pictures):
    assert " of episode 1 " in command("render", pictures, "--out", "x.png").out
    assert " of episode 0 " in command("render", pictures, "--out", "y.png", "--episode", -2).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.avi"], "out: 'x.avi': expected a name that ends in .gif, .mp4 or .png"),
        (
            ["--out", "x.gif", "--episode", "2"],
            (
                "episode: expected a number from 0 to 1, or from -1 (the last) down to -2, found 2; "
                "`mmreplay episodes store.zarr` lists them"
            ),
        ),
        (
            ["--out", "x.gif", "--key", "a"],
            "key: the observations of store.zarr are not dicts; leave it out",
        ),
        (["--out", "there.gif"], "there.gif: already exists; choose another path"),
        (
            ["--out", "no/x.gif"],
            "no: there is no such directory; make one first, or choose another path",
        ),
        (
            ["--out", "store.zarr/x.gif"],
            "store.zarr/x.gif: lies within the store store.zarr; choose another path",
        ),
        (["--out", "x.gif", "--fps", "51"], "fps: expected a whole number, 1 to 50; found 51"),
    ],
)
def test_what_is_refused(command, pictures, folder, arguments, message):
    (folder / "there.gif").write_text("")
    result = command("render", pictures, *arguments)
    assert (result.status, result.out, result.err) == (1, "", f"Error: {message}\n")
    assert {one.name for one in folder.iterdir()} == {"store.zarr", "there.gif"}


def test_no_pictures(command, store):
    result = command("render", store, "--out", "x.gif")
    assert (result.status, result.out) == (1, "")
    assert result.err.endswith("`mmreplay plot` draws returns, rewards and actions\n")


def test_out_is_needed(command, pictures):
    assert command("render", pictures).status == 2


def test_a_game_as_it_is_recorded(command, folder):
    mmreplay.record("ALE/Pong-v5", "game.zarr", 8)
    result = command("render", "game.zarr", "--out", "x.mp4")
    assert (result.status, result.err) == (0, "")
    assert "x.mp4: 9 frames of episode 0 (8 steps, " in result.out
    assert "420x470 pixels" in result.out
