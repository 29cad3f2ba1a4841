"""Which arrays are pictures, and what their values become."""

import numpy as np
import pytest

from mmreplay.pictures import limits_of, plane, to_bytes


def numbered(*shape):
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "picture"),
    [
        ((84, 84), lambda f: f),
        ((7, 9, 3), lambda f: f),
        ((3, 7, 9), lambda f: np.moveaxis(f, 0, -1)),
        ((7, 9, 1), lambda f: f[..., 0]),
        ((1, 7, 9), lambda f: f[0]),
        ((4, 7, 9), lambda f: f[3]),  # a stack of gray ones
        ((7, 9, 4), lambda f: f[..., 3]),
        ((2, 7, 9, 3), lambda f: f[1]),
        ((7, 9, 3, 2), lambda f: f[..., 1]),
        ((2, 3, 7, 9), lambda f: np.moveaxis(f[1], 0, -1)),
    ],
)
def test_picture_in_a_frame(shape, picture):
    frame = numbered(*shape)
    assert np.array_equal(plane(frame), picture(frame))


@pytest.mark.parametrize("shape", [(), (4,), (4, 17), (17, 4), (0, 9), (9, 0, 3), (4, 4, 4)])
def test_other_shapes_are_not_images(shape):
    assert plane(np.zeros(shape)) is None


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.25, 0.75], (0, 1)),
        ([0.9, 0.99], (0.9, 0.99)),  # of a depth buffer
        ([0.4, 3.7], (0.4, 3.7)),  # metres
        ([-0.5, 1.0], (-1, 1)),
        ([0.0, 200.0], (0, 255)),
        ([-3.0, 2.0], (-3, 2)),
        ([np.nan, np.inf], (0, 1)),
        ([7.0, np.nan], (0, 255)),
    ],
)
def test_limits_are_the_usual_range_that_the_values_fill_or_their_own(values, limits):
    assert limits_of([np.array([one]) for one in values]) == limits


def test_bytes_stay_and_other_values_fill_the_range():
    frame = numbered(5, 5)
    assert limits_of([frame]) is None
    assert np.array_equal(to_bytes(frame, None), frame)
    shown = to_bytes(np.array([-3, -0.5, 2, np.nan, np.inf]), (-3, 2))
    assert shown.tolist() == [0, 128, 255, 0, 255]
    assert to_bytes(np.array([True, False]), (0, 1)).tolist() == [255, 0]
    assert to_bytes(np.full(2, 7.0), (7, 7)).tolist() == [0, 0]
