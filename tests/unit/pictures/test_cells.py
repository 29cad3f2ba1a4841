"""Cells of notebooks: escaped, complete without extras, and never an error."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from mmreplay.pictures.cells import Cell, cell_html, cell_png, even, rows_at

HOSTILE = "<script>alert('x')</script>&\"<b>"


def images_in(text):
    found = re.findall(r"data:image/png;base64,([\w+/=]+)", text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in found]


def parsed(text):
    """The elements, if every text was escaped and every tag closed."""
    return ET.fromstring(re.sub(r"(<img[^>]*)>", r"\1/>", text))


def test_frames_are_shown_with_captions():
    frames = np.random.default_rng(0).integers(0, 256, (2, 84, 84), np.uint8)
    text = cell_html(lambda: Cell("Title", [("a", "b")], frames, ["first", "second"]))
    assert all(np.array_equal(*pair) for pair in zip(images_in(text), frames, strict=True))
    assert [one.text for one in parsed(text).iter("figcaption")] == ["first", "second"]
    assert [one.text for one in parsed(text).iter("th")] == ["a"]
    shown = np.asarray(Image.open(io.BytesIO(cell_png(lambda: Cell("", [], frames)))))
    assert np.array_equal(shown[:, :84], frames[0])
    assert np.array_equal(shown[:, -84:], frames[1])


def test_every_text_is_escaped():
    frames = {HOSTILE: np.zeros((1, 9, 9), np.uint8)}
    curves = {HOSTILE: np.arange(3)}
    cell = Cell(HOSTILE, [(HOSTILE, HOSTILE)], frames, [HOSTILE], curves)
    text = cell_html(lambda: cell)
    assert "<script" not in text
    assert {one.tag for one in parsed(text).iter()} == {
        *("div", "b", "figure", "img", "figcaption", "svg", "polyline", "table", "tr", "th", "td")
    }


def test_keys_that_are_no_pictures_are_left_out():
    frames = {"speed": np.zeros((2, 3)), "depth": np.linspace(0, 5, 98).reshape(2, 7, 7)}
    shown = images_in(cell_html(lambda: Cell("", [], frames)))
    assert [one.shape for one in shown] == [(91, 91), (91, 91)]
    assert (shown[0].min(), shown[1].max()) == (0, 5)
    assert cell_png(lambda: Cell("", [], {"speed": frames["speed"]})) is None
    assert cell_png(lambda: Cell("")) is None


def test_large_frames_are_made_smaller():
    (shown,) = images_in(cell_html(lambda: Cell("", [], np.zeros((1, 1080, 1920, 3), np.uint8))))
    assert shown.shape == (54, 96, 3)


def test_curves():
    values = np.stack([np.arange(1000), np.full(1000, np.nan), -np.arange(1000)], 1)
    text = cell_html(lambda: Cell("", curves={"v": values, "same": np.ones(5)}))
    lines = [one.get("points").split() for one in parsed(text).iter("polyline")]
    assert [len(line) for line in lines] == [240, 0, 240]
    assert (lines[0][-1], lines[2][-1]) == ("480.0,1.0", "480.0,47.0")
    assert "v: -999 to 999" in text
    assert "same: 1" in text
    assert cell_html(lambda: Cell("", curves={"v": np.full(9, np.nan)})).count("<svg") == 0


def test_a_thin_reward_is_not_lost_in_a_long_curve():
    rewards = np.zeros(100_000)
    rewards[54_321] = 1
    assert "r: 0 to 1" in cell_html(lambda: Cell("", curves={"r": rewards}))


@pytest.mark.parametrize("error", [ValueError("<why>"), MemoryError(), OSError(5, "I/O")])
def test_no_error_comes_out(error):
    def fail():
        raise error

    assert cell_html(fail).startswith("<p>cannot be shown: ")
    assert "<why>" not in cell_html(fail)
    assert cell_png(fail) is None


def test_what_cannot_be_drawn_is_told_in_the_table():
    text = cell_html(lambda: Cell("Title", [("a", "b")], np.array([["x"]], object)[:, None]))
    assert "<th" in text
    bad = np.full((1, 9, 9), "x")
    text = cell_html(lambda: Cell("Title", [("a", "b")], bad))
    assert [one.text for one in parsed(text).iter("th")] == ["a", "pictures"]


def test_even_numbers_have_the_first_and_the_last():
    assert even(5).tolist() == [0, 1, 2, 3, 4]
    assert even(1).tolist() == [0]
    assert even(0).tolist() == []
    assert even(10**12)[[0, -1]].tolist() == [0, 10**12 - 1]
    assert len(even(10**12)) == 8


def test_rows_of_arrays_and_of_dicts():
    frames = np.arange(12).reshape(4, 3)
    assert np.array_equal(rows_at(frames, np.array([0, 3])), frames[[0, 3]])
    assert np.array_equal(rows_at({"a": frames}, np.array([1]))["a"], frames[[1]])
