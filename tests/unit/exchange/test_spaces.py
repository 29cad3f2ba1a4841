"""Spaces as JSON: their arrays, and bounds that are written once."""

import math

import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.spaces import (
    Leaf,
    leaves,
    names_of,
)


def box(shape, dtype="float32", low=-1.0, high=1.0):
    bounds = {key: np.full(shape, one).tolist() for key, one in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": dtype, "shape": list(shape), **bounds}


TREE = {
    "type": "Dict",
    "subspaces": {
        "a": box((2, 3)),
        "b": {
            "type": "Tuple",
            "subspaces": [
                {"type": "Discrete", "dtype": "int64", "start": 1, "n": 4},
                {"type": "MultiDiscrete", "dtype": "int64", "nvec": [2, 3], "start": [0, 0]},
                {"type": "MultiBinary", "n": [2, 2]},
            ],
        },
        "an image": box((40, 36, 3), "uint8", 0, 255),
        "unlike": box((2,), low=0.0) | {"high": [1.0, math.inf]},
    },
}


def test_the_arrays_of_a_tree():
    found = leaves(TREE)
    assert [(one.name, one.path, one.shape, one.is_image) for one in found] == [
        ("a", ("a",), (2, 3), False),
        ("b.0", ("b", 0), (), False),
        ("b.1", ("b", 1), (2,), False),
        ("b.2", ("b", 2), (2, 2), False),
        ("an_image", ("an image",), (40, 36, 3), True),
        ("unlike", ("unlike",), (2,), False),
    ]
    assert leaves(box((3,))) == [Leaf("frame", (), "Box", "float32", (3,), False)]


def test_texts_are_left_out_and_parts_of_one_name_refused():
    text = {"type": "Text"}
    assert leaves(text) == []
    assert names_of({"type": "Tuple", "subspaces": [box((1,)), text]}) == {"0", "1"}
    with pytest.raises(FormatError, match="two parts of a space have one name"):
        leaves({"type": "Dict", "subspaces": {"a b": box((1,)), "a_b": box((1,))}})
