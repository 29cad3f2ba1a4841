"""Fields and schemas: what they accept, and that a value keeps its meaning on the way in."""

import json

import numpy as np
import pytest

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format import parse
from mmreplay.schema import FRAME, Field, Schema

U8 = Field((2,), "uint8")
ACTION = Field((), "int64")


def same(found, expected):
    expected = np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


# ---------------------------------------------------------------- Field


def test_a_field_completes_what_it_is_given():
    field = Field((84, 84))
    assert (field.shape, field.dtype, field.codec) == ((84, 84), np.dtype("uint8"), None)
    assert (field.chunk, field.shard) == (None, None)
    assert Field().shape == ()
    assert Field(5, np.float32).shape == (5,)
    assert Field([2, np.int64(3)]).shape == (2, 3)  # type: ignore[arg-type]
    assert Field((2, 3), "float32").row_bytes == 24


@pytest.mark.parametrize(
    "shape",
    [(0,), (-1,), (2.5,), "ab", "12", (1,) * 9, None, ("a",), (1 << 31,), (1 << 20, 1 << 20)],
)
def test_a_shape_that_cannot_be_stored_is_refused(shape):
    with pytest.raises(SchemaError, match=r"shape|row"):
        Field(shape)


@pytest.mark.parametrize(
    "dtype", ["complex64", "O", "U3", "S3", "M8[s]", "m8[s]", "u1,u1", "no such", "float128", [1]]
)
def test_a_dtype_that_zarr_has_no_number_for_is_refused(dtype):
    with pytest.raises(SchemaError, match="dtype"):
        Field((2,), dtype)


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, "4"])
@pytest.mark.parametrize("name", ["chunk", "shard"])
def test_a_chunk_or_shard_that_is_no_number_of_rows_is_refused(name, rows):
    with pytest.raises(SchemaError, match=name):
        Field((2,), **{name: rows})


# ---------------------------------------------------------------- coerce


DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_what_coerce_returns_has_the_fields_shape_and_dtype_and_means_the_same(shape, dtype):
    field = Field(shape, np.dtype(dtype).newbyteorder(">"))
    assert field.dtype == np.dtype(dtype)
    assert field.dtype.isnative
    count = int(np.prod(shape))
    for value in (
        np.arange(count).astype(dtype).reshape(shape),
        np.ones(shape, bool).tolist(),
        np.ones(shape, dtype).tolist(),
    ):
        found = field.coerce(value, "x")
        assert (found.shape, found.dtype) == (shape, np.dtype(dtype))
        assert np.array_equal(found, np.asarray(value))


def test_floats_for_bytes_are_scaled_and_rounded_not_truncated():
    levels = np.arange(256)
    field = Field((256,), "uint8")
    for dtype in ("float32", "float64"):
        same(field.coerce((levels / 255).astype(dtype), "x"), levels.astype(np.uint8))
        same(
            field.coerce(levels.astype(dtype) / np.dtype(dtype).type(255), "x"), levels.astype("u1")
        )
    same(field.coerce(np.full(256, 0.1, np.float32), "x"), np.full(256, 26, np.uint8))
    same(U8.coerce(np.array([0.0, 1.0], np.float16), "x"), np.array([0, 255], np.uint8))


@pytest.mark.parametrize("wrong", [-0.001, 1.001, 255.0, np.nan, np.inf, -np.inf])
def test_floats_for_bytes_outside_of_0_to_1_are_refused(wrong):
    with pytest.raises(SchemaError, match=r"frame: floats for a uint8 field must lie in \[0, 1\]"):
        U8.coerce(np.array([0.5, wrong]), "frame")


@pytest.mark.parametrize("value", [np.zeros(3, "u1"), np.zeros((2, 1), "u1"), 3, []])
def test_another_shape_is_refused_with_both_shapes_named(value):
    with pytest.raises(SchemaError, match=r"frame: expected shape \(2,\), found \("):
        U8.coerce(value, "frame")


def test_an_array_of_another_dtype_is_refused_although_its_values_would_fit():
    for dtype in ("int8", "uint16", "int64", "bool"):
        with pytest.raises(SchemaError, match=f"x: expected dtype uint8, found {dtype}"):
            U8.coerce(np.zeros(2, dtype), "x")
    with pytest.raises(SchemaError, match="expected dtype uint8, found float64"):
        U8.coerce([0.0, 1.0], "x")  # which may mean either


def test_floats_are_rounded_to_the_floats_of_a_field_as_an_environment_of_float64_gives_them():
    numbers = np.random.default_rng(0).normal(size=(3, 4))
    for dtype in ("float16", "float32", "float64"):
        for given in (numbers, numbers.astype(np.float32)):
            same(Field((3, 4), dtype).coerce(given, "x"), given.astype(dtype))
            same(Field((4,), dtype).coerce_many(given, 3, "x"), given.astype(dtype))
    with pytest.raises(SchemaError, match="x: expected dtype float32, found float64 that it does"):
        Field((2,), "float32").coerce(np.array([0, 1e300]), "x")
    with pytest.raises(SchemaError, match="x: expected dtype float32, found int64"):
        Field((2,), "float32").coerce(np.array([0, 1]), "x")


@pytest.mark.parametrize(
    "value", [[[1], [1, 2]], ["a", "b"], [None, None], [{}, {}], "ab", [1j, 0]]
)
def test_what_is_no_array_of_numbers_is_refused(value):
    with pytest.raises(SchemaError, match="x: "):
        U8.coerce(value, "x")
    with pytest.raises(SchemaError, match="x: "):
        U8.coerce_loosely(value, "x")
    with pytest.raises(SchemaError, match="x: "):
        U8.coerce_many(value, 2, "x")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int8", 128),
        ("int64", 1 << 63),
        ("uint64", -1),
        ("int32", 1.0),
    ],
)
def test_a_number_that_the_dtype_does_not_hold_is_refused(dtype, value):
    with pytest.raises(SchemaError, match=f"expected dtype {dtype}"):
        Field((), dtype).coerce(value, "x")


def test_a_bool_fits_a_field_of_numbers_but_a_number_fits_no_field_of_bools():
    same(Field((), "uint8").coerce(True, "x"), np.array(1, np.uint8))
    same(Field((), "float32").coerce(np.True_, "x"), np.array(1, np.float32))
    with pytest.raises(SchemaError, match="expected dtype bool, found int64"):
        Field((), "bool").coerce(1, "x")
    with pytest.raises(SchemaError, match="expected dtype bool"):
        Field((2,), "bool").coerce_loosely(np.array([1, 0]), "x")


def test_floats_may_lose_digits_but_not_become_infinite():
    same(Field((), "float32").coerce(0.1, "x"), np.array(0.1, np.float32))
    for dtype, value in (("float32", 1e300), ("float16", 70_000.0), ("float32", -1e39)):
        with pytest.raises(SchemaError, match=f"expected dtype {dtype}"):
            Field((), dtype).coerce(value, "x")
        with pytest.raises(SchemaError, match=f"expected dtype {dtype}"):
            Field((), dtype).coerce_loosely(np.array(value), "x")


def test_another_byte_order_is_no_other_dtype():
    values = np.array([1, 258], ">u2")
    same(Field((2,), ">u2").coerce(values, "x"), values.astype("u2"))
    same(Field((2,), "u2").coerce_loosely(values, "x"), values.astype("u2"))


def test_arrays_of_a_lower_kind_are_cast_loosely_where_exact():
    same(Field((2,), "float32").coerce_loosely(np.array([1, 2]), "x"), np.array([1, 2], "f4"))
    same(Field((2,), "float32").coerce_loosely(np.array([1.5, 2]), "x"), np.array([1.5, 2], "f4"))
    same(Field((2,), "int8").coerce_loosely(np.array([1, -2]), "x"), np.array([1, -2], "i1"))
    with pytest.raises(SchemaError, match="x: expected dtype int8"):
        Field((2,), "int8").coerce_loosely(np.array([1, 128]), "x")
    with pytest.raises(SchemaError, match="x: expected dtype int8"):
        Field((2,), "int8").coerce_loosely(np.array([1.0, 2.0]), "x")
    with pytest.raises(SchemaError, match=r"x: expected shape \(2,\)"):
        Field((2,), "int8").coerce_loosely(np.array([1.0]), "x")


def test_many_rows_are_checked_like_one():
    rows = np.arange(6, dtype=np.uint8).reshape(3, 2)
    assert U8.coerce_many(rows, 3, "x") is rows
    same(U8.coerce_many(rows.tolist(), 3, "x"), rows)
    same(U8.coerce_many(rows / 255, 3, "x"), rows)
    for wrong in (rows[:2], rows.astype("i2"), rows - 300.0):
        with pytest.raises(SchemaError, match="x: "):
            U8.coerce_many(wrong, 3, "x")


# ---------------------------------------------------------------- Schema


def test_a_schema_of_one_frame_names_its_columns():
    schema = Schema.make(Field((2,)), ACTION, {"log_prob": Field((), "float32")}, "float64")
    assert list(schema.columns()) == ["frames", "actions", "rewards", "extras/log_prob"]
    assert not schema.is_dict
    assert schema.frames == {FRAME: Field((2,))}
    assert schema.columns()["rewards"] == Field((), "float64")


def test_a_schema_of_a_dict_names_each_key():
    schema = Schema.make({"image": Field((2, 2)), "pose": Field((3,), "float32")}, ACTION)
    assert list(schema.columns()) == ["frames/image", "frames/pose", "actions", "rewards"]
    assert schema.stacks() == (4, ("image",))
    assert [schema.stacks(stack)[0] for stack in (None, 1, 7)] == [None, 1, 7]
    assert schema.is_dict
    assert schema.reward_dtype == np.float32


def test_the_codec_of_all_frames_leaves_a_fields_own_alone():
    schema = Schema.make(
        {"a": Field((2,)), "b": Field((2,), codec="raw", chunk=3)}, ACTION, codec="zstd"
    )
    assert [one.codec for one in schema.frames.values()] == ["zstd", "raw"]
    alone = Schema.make(Field((2,), chunk=4, shard=8), ACTION, codec="lz4").frames[FRAME]
    assert (alone.codec, alone.chunk, alone.shard) == ("lz4", 4, 8)


@pytest.mark.parametrize(
    "name",
    ["", "a/b", ".a", "a b", "ä", "a\n", "zarr.json", "a" * 101, 3, None, "..", "a~b", "a\0b"],
)
def test_a_name_that_could_not_be_a_directory_of_its_own_is_refused(name):
    with pytest.raises(SchemaError, match="frame: the name"):
        Schema.make({name: Field((2,))}, ACTION)
    with pytest.raises(SchemaError, match="extras: the name"):
        Schema.make(Field((2,)), ACTION, {name: Field()})


@pytest.mark.parametrize(
    "name",
    "action reward next_frame terminated truncated life_lost actions rewards frames mask self".split(),
)
def test_an_extra_with_the_name_of_an_argument_of_step_is_refused(name):
    with pytest.raises(SchemaError, match=f"'{name}'.*arguments of step"):
        Schema.make(Field((2,)), ACTION, {name: Field()})


@pytest.mark.parametrize("dtype", ["int32", "float16", "bool"])
def test_rewards_are_floats_of_32_or_64_bits(dtype):
    with pytest.raises(SchemaError, match="reward_dtype: expected float32 or float64"):
        Schema.make(Field((2,)), ACTION, reward_dtype=dtype)


def test_only_frames_are_compressed():
    for codec in ("lz4", "zstd", {"name": "gzip"}):
        with pytest.raises(SchemaError, match="action: only frames are compressed"):
            Schema.make(Field((2,)), Field((), "int64", codec))
        with pytest.raises(SchemaError, match="x: only frames are compressed"):
            Schema.make(Field((2,)), ACTION, {"x": Field((), "int64", codec)})
    assert Schema.make(Field((2,)), Field((), "int64", "raw")).action.codec == "raw"


@pytest.mark.parametrize("frame", [{}, None, (84, 84), {"a": (2,)}, "uint8"])
def test_what_is_no_field_is_refused(frame):
    with pytest.raises(SchemaError, match=r"frame|a:"):
        Schema.make(frame, ACTION)
    with pytest.raises(SchemaError, match=r"action: expected an mmreplay\.Field"):
        Schema.make(Field((2,)), None)  # type: ignore[arg-type]


def test_schemas_hold_the_same_data_by_names_shapes_and_dtypes_alone():
    one = Schema.make(Field((2,), codec="raw"), ACTION, {"x": Field()})
    assert one.same_data(Schema.make(Field((2,), codec="zstd", shard=16), ACTION, {"x": Field()}))
    for other in (
        Schema.make(Field((3,)), ACTION, {"x": Field()}),
        Schema.make(Field((2,)), Field((), "int32"), {"x": Field()}),
        Schema.make(Field((2,)), ACTION),
        Schema.make(Field((2,)), ACTION, {"y": Field()}),
        Schema.make(Field((2,)), ACTION, {"x": Field()}, "float64"),
        Schema.make({FRAME: Field((2,))}, ACTION, {"x": Field()}),
    ):
        assert not one.same_data(other)
        assert not other.same_data(one)
        assert one.differences(other)
    assert one.differences(one) == ""
    assert one.differences(other) == (
        "frames none and not (2,) uint8, frames/frame (2,) uint8 and not none"
    )


@pytest.mark.parametrize("codec", [5, b"lz4", ["lz4"], lambda: "lz4"])
def test_a_codec_is_a_name_or_a_dict(codec):
    with pytest.raises(
        SchemaError, match=r"codec: expected 'raw', 'lz4', 'zstd', .* or a zarr codec"
    ):
        Field((3,), codec=codec)


def test_rows_of_many_lanes_given_to_one_lane_are_refused():
    one = Field((3,))
    with pytest.raises(SchemaError, match=r"frame: expected shape .* store with lanes="):
        one.coerce(np.zeros((4, 3), np.uint8), "frame")
    with pytest.raises(
        SchemaError, match=r"shape \(3,\), found \(4, 2\); pass one row as"
    ) as found:
        one.coerce(np.zeros((4, 2), np.uint8), "frame")
    assert "lanes" not in str(found.value)
    with pytest.raises(
        SchemaError, match=r"frames: expected 4 rows .*, one for each environment, found"
    ):
        one.coerce_many(np.zeros(3, np.uint8), 4, "frames")


# ---------------------------------------------------------------- fill


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        *[("float32", x) for x in (0, -1.5, np.nan, np.inf, -np.inf)],
        *[("int16", -3), ("bool", True), ("uint64", 2**63)],
    ],
)
def test_a_fill_survives_the_text_of_the_store(dtype, fill):
    schema = Schema.make(Field((2,)), ACTION, {"x": Field((2,), dtype, fill=fill), "y": Field()})
    text = json.dumps(schema.to_json(), allow_nan=False)
    read = parse.schema_from_json(json.loads(text), "zarr.json")
    same(read.extras["x"].filled(3), np.full((3, 2), fill, dtype))
    assert read.extras["y"].fill is None
    assert "fill" not in read.to_json()["extras"]["y"]
    assert read.to_json() == schema.to_json()


@pytest.mark.parametrize(
    ("dtype", "fill"), [("uint8", -1), ("int8", 0.5), ("bool", 2), ("u1", "a")]
)
def test_a_fill_that_the_field_does_not_hold_is_refused(dtype, fill):
    with pytest.raises(SchemaError, match="fill"):
        Field((), dtype, fill=fill)


def test_only_extras_have_a_fill():
    for frame, action in (
        (Field((2,), fill=0), ACTION),
        ({"a": Field((2,), fill=0)}, ACTION),
        (Field((2,)), Field((), "int64", fill=0)),
    ):
        with pytest.raises(SchemaError, match="only extras have a fill, found 0"):
            Schema.make(frame, action)


def test_a_fill_in_a_store_that_is_no_number_is_refused():
    document = Schema.make(Field((2,)), ACTION, {"x": Field((), "f4", fill=0)}).to_json()
    for wrong in ("zero", [], {}, 1e300):
        document["extras"]["x"]["fill"] = wrong
        with pytest.raises(FormatError, match="schema cannot be read"):
            parse.schema_from_json(document, "zarr.json")
