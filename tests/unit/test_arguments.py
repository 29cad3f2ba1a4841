"""The checks of whole numbers, bools and masks that settings go through."""

import numpy as np
import pytest

from mmreplay.arguments import mask_of, true_or_false, whole_number, whole_number_or_none
from mmreplay.errors import SchemaError


@pytest.mark.parametrize("given", [7, np.int8(7), np.uint64(7)])
def test_a_whole_number_comes_back_as_an_int(given):
    for check in (whole_number, whole_number_or_none):
        found = check("n", given, 7, 7)
        assert found == 7
        assert type(found) is int
    assert whole_number_or_none("n", None) is None


@pytest.mark.parametrize("given", [True, np.True_, 1.0, np.float32(1), "1", None, [1], 0, 10**400])
def test_anything_else_is_refused_by_name(given):
    with pytest.raises(SchemaError, match=r"^n: expected a whole number, 1 to 1,000; found "):
        whole_number("n", given, 1, 1000)


def test_the_message_says_what_may_be_given():
    with pytest.raises(SchemaError, match=r"^n: expected a whole number, 1 or more; found None$"):
        whole_number("n", None)
    with pytest.raises(
        SchemaError, match=r"^n: expected a whole number, 0 or more, or None; found -1$"
    ):
        whole_number_or_none("n", -1, 0)


@pytest.mark.parametrize("given", [True, False, np.True_, np.False_])
def test_a_bool_comes_back_as_one_of_python(given):
    assert true_or_false("x", given) is bool(given)


@pytest.mark.parametrize("given", ["no", 1, 0, None, np.array([True])])
def test_what_is_no_bool_is_refused_by_name(given):
    with pytest.raises(SchemaError, match=r"^x: expected True or False; found "):
        true_or_false("x", given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([True, False, True], [0, 2]),
        ([0, -1], [0, 2]),
        ([], []),
        (np.array([2, 2], np.uint8), [2]),
    ],
)
def test_a_mask_is_made_of_one_or_of_numbers(given, expected):
    assert np.flatnonzero(mask_of("x", given, 3, "things")).tolist() == expected


@pytest.mark.parametrize("given", [[3], [-4], [0.5], [True], [[0]], "a", None])
def test_a_mask_of_something_else_is_refused_by_name(given):
    with pytest.raises(SchemaError, match=r"x: expected (things 0 to 2|.*3 things)"):
        mask_of("x", given, 3, "things")
