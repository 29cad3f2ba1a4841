"""Images in files are what they were, or refused."""

import io

import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.images import decoded

Image = pytest.importorskip("PIL.Image")


def png(rows, mode=None):
    out = io.BytesIO()
    Image.fromarray(rows, mode=mode).save(out, "PNG") if mode else Image.fromarray(rows).save(
        out, "PNG"
    )
    return out.getvalue()


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 5 6
%%EndComments
showpage
"""
NOISE = png(np.random.default_rng(0).integers(0, 256, (6, 5), np.uint8))


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3), (6, 5, 4)])
def test_each_pixel_is_the_same(shape):
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    plain = [one[..., 0] if shape[-1] == 1 else one for one in images]
    assert np.array_equal(decoded([png(one) for one in plain], shape, "x"), images)
    assert decoded([], shape, "x").shape == (0, *shape)


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "WEBP"])
def test_no_other_decoder_is_reached(kind):
    out = io.BytesIO()
    Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(out, kind)
    with pytest.raises(FormatError, match="not an image in PNG or JPEG"):
        decoded([out.getvalue()], (6, 5, 3), "x")


def test_the_size_is_checked_before_anything_is_decoded(monkeypatch):
    data = png(np.zeros((6, 6), np.uint8))
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda self: pytest.fail("decoded"))
    with pytest.raises(FormatError, match="found one of 6 x 6"):
        decoded([data], (6, 5), "x")


def test_a_palette_is_its_colours():
    image = np.random.default_rng(0).integers(0, 2, (6, 5, 3), np.uint8) * 255
    out = io.BytesIO()
    Image.fromarray(image).quantize(8).save(out, "PNG")
    assert np.array_equal(decoded([out.getvalue()], (6, 5, 3), "x")[0], image)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "x: an image is missing"),
        (b"", "x: not an image"),
        (NOISE[: len(NOISE) // 2], "x: not an image"),
        (
            png(np.zeros((5, 6), np.uint8)),
            r"x: expected images of shape \(6, 5\) in uint8, found one of 6 x 5",
        ),
        (png(np.zeros((6, 5, 3), np.uint8)), r"found uint8 \(6, 5, 3\)"),
        (EPS, "x: not an image in PNG or JPEG"),
        (png(np.zeros((6, 5), np.uint16)), r"found uint16 \(6, 5\)"),
    ],
)
def test_what_is_no_such_image_is_refused(data, message):
    with pytest.raises(FormatError, match=message):
        decoded([data], (6, 5), "x")


def test_a_picture_that_is_far_too_large_is_refused(monkeypatch):
    data = png(np.zeros((60, 50), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(FormatError, match=r"not an image in .*decompression bomb"):
        decoded([data], (60, 50), "x")
