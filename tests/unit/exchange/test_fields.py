"""Foreign columns as fields: kept as they are, refused, or left out with a word."""

import sys

import numpy as np
import pytest

from mmreplay import Field, FormatError, MissingExtraError, SchemaError
from mmreplay.exchange.fields import (
    check_key,
    check_names,
    extra_field,
    extra_name,
    field,
    flags,
    is_new,
    key_name,
    key_names,
    need,
    reward_dtype,
)
from mmreplay.exchange.losses import Losses


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("infos/qpos", "infos.qpos"),
        ("/agent pos/", "agent_pos"),
        ("reward", "reward_"),
        (".x", "x"),
        ("/", "_"),
        ("a" * 200, "a" * 100),
    ],
)
def test_names_of_extra_columns_are_those_a_store_takes(given, expected):
    assert extra_name(given) == expected


def test_keys_of_observations_may_be_called_as_arguments_of_step():
    assert (key_name("reward"), key_name("pixels/left eye")) == ("reward", "pixels.left_eye")


@pytest.mark.parametrize("key", ["", ".", "../../x", "a/b", "a" * 101, "zarr.json", "own", None])
def test_a_key_that_is_no_name_is_refused(key):
    check_key("agent_pos", {"own"}.__contains__)
    with pytest.raises(SchemaError, match=r"key: expected a name of .*, found"):
        check_key(key, {"own"}.__contains__)


def test_a_name_of_the_format_itself_is_refused_with_what_to_do():
    check_names(["a", "b"], {"own"}.__contains__, "x: extra columns")
    with pytest.raises(SchemaError, match=r"x: extra columns: 'own' is .* under another name, or"):
        check_names(["a", "own"], {"own"}.__contains__, "x: extra columns")


def test_of_two_columns_of_one_name_the_second_is_a_loss():
    losses = Losses()
    assert is_new("a_b", "a b", {"c"}, losses)
    assert losses.all() == ()
    assert not is_new("a_b", "a_b", {"a_b"}, losses)
    assert [one.what for one in losses.all()] == ["column a_b: another one is called a_b already"]


def test_two_observations_of_one_key_are_refused():
    assert key_names(["a/b", "c"], "x") == {"a.b": "a/b", "c": "c"}
    with pytest.raises(FormatError, match=r"x: observations 'a/b' and 'a.b': both .* 'a.b'"):
        key_names(["a/b", "a.b"], "x")


def test_a_field_keeps_shape_and_dtype():
    assert field((2, 3), ">f4", "x") == Field((2, 3), "float32")
    with pytest.raises(FormatError, match=r"x: expected numbers .* found complex128"):
        field((), "complex128", "x")


def test_an_extra_column_that_no_store_holds_is_a_loss():
    losses = Losses()
    assert extra_field((2,), "bool", "a", losses) == Field((2,), "bool")
    assert extra_field((), "<U5", "b", losses) is None
    assert extra_field((0,), "int8", "c", losses) is None
    assert [one.what[:8] for one in losses.all()] == ["column b", "column c"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("float64", "float64"), ("float16", "float32"), ("int64", "float64"), ("uint8", "float32")],
)
def test_rewards_get_a_dtype_that_holds_them(given, expected):
    assert reward_dtype(given, "rewards") == expected


def test_rewards_that_are_no_numbers_are_refused():
    with pytest.raises(FormatError, match="rewards: expected numbers"):
        reward_dtype("<U3", "rewards")


def test_flags_may_be_numbers_with_an_axis_of_one():
    assert flags(np.array([[0.0], [1.0], [-0.0]]), "x").tolist() == [False, True, False]


@pytest.mark.parametrize("rows", [[0, 2], [1, -1], [0.0, np.nan], [0.5, 1.0], [[0], [255]]])
def test_flags_that_are_neither_0_nor_1_are_refused(rows):
    with pytest.raises(FormatError, match=r"x: expected flags, each 0 or 1, found .*; make them 0"):
        flags(np.array(rows), "x")


def test_a_library_that_is_not_there_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r'h5py: pip install "mmreplay\[exchange\]"'):
        need("h5py")
