"""zarr.json read and checked: what was written comes back, anything else is refused."""

import json

import numpy as np
import pytest

from mmreplay.errors import FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec
from mmreplay.schema import Field, Schema
from tests.support.oracle.array_specs import LZ4, SPECS, UINT8, root

ACTION = Field((), "int64")


def test_what_parse_array_returns_is_what_was_written():
    for rows in (0, 1, 100_000, (1 << 40) - 1):
        for spec in SPECS:
            data = layout.array_json(spec, rows)
            assert parse.parse_array(data, spec.path, "here") == (spec, rows)


def test_a_schema_comes_back_from_its_json():
    for schema in (
        Schema.make(Field((84, 84)), ACTION),
        Schema.make(
            {"a": Field((2,), "float32"), "b": Field()},
            Field((3,), "float64"),
            {"x": Field((2, 2), "bool")},
            "float64",
        ),
    ):
        again = parse.schema_from_json(json.loads(json.dumps(schema.to_json())), "here")
        assert again.same_data(schema)
        assert again.is_dict == schema.is_dict


def test_an_invalid_schema_is_refused():
    for key, value in (
        ("frame", None),
        ("frame", {}),
        ("frame", {"shape": [2], "dtype": "object"}),
        ("frame", {"shape": [2], "dtype": ["uint8"]}),
        ("frame", {"shape": [-2], "dtype": "uint8"}),
        ("frame", {"shape": [2.0], "dtype": "uint8"}),
        ("frame", {"shape": [True], "dtype": "uint8"}),
        ("frame", {"shape": "", "dtype": "uint8"}),
        ("frame", {"shape": [10**30], "dtype": "uint8"}),
        ("frame", {"dict": {}}),
        ("frame", {"dict": []}),
        ("frame", {"dict": {"../x": {"shape": [2], "dtype": "uint8"}}}),
        ("action", [1]),
        ("extras", None),
        ("extras", {"a/b": {"shape": [], "dtype": "uint8"}}),
        *(
            ("reward", one)
            for one in ("int32", "(", "f4,(", "float", ">f4", "O", ["float32"], None)
        ),
    ):
        document = Schema.make(Field((84, 84)), ACTION).to_json()
        document[key] = value
        with pytest.raises(FormatError, match="here: the schema cannot be read"):
            parse.schema_from_json(document, "here")
        del document[key]
        with pytest.raises(FormatError, match="here: the schema cannot be read"):
            parse.schema_from_json(document, "here")


def test_what_is_no_json_object_is_refused_and_never_crashes():
    for data in (
        b"",
        b"{",
        b"{} x",
        b"[]",
        b"3",
        b'"x"',
        b"null",
        b"\xff\xfe\x00",
        b"\x80",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": -1e999}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": ' + b"[" * 200_000,
        b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
    ):
        with pytest.raises(FormatError, match="here: expected"):
            parse.parse_json(data, "here")
        with pytest.raises(FormatError, match="here: expected"):
            parse.parse_array(data, "frames", "here")
        with pytest.raises(FormatError, match="here: expected"):
            parse.parse_root(data, "here")


def test_equal_documents_of_many_lanes_are_parsed_once_and_a_wrong_one_says_where_it_is():
    spec = ArraySpec("extras/of_this_test", (3,), np.dtype("float32"), 8)
    data = layout.array_json(spec, 5)
    before = parse._array_spec_once.cache_info().misses
    for where in ("one lane", "another"):
        assert parse.parse_array(data, spec.path, where) == (spec, 5)
        assert parse.array_spec(parse.parse_json(data, where), spec.path, where) == (spec, 5)
    assert parse._array_spec_once.cache_info().misses == before + 1
    wrong = data.replace(b'"zarr_format": 3', b'"zarr_format": 2')
    for where in ("one lane", "another"):
        with pytest.raises(FormatError, match=f"^{where}: zarr_format: expected 3, found 2"):
            parse.parse_array(wrong, spec.path, where)
        with pytest.raises(FormatError, match=f"^{where}: zarr_format: expected 3, found 2"):
            parse.array_spec(json.loads(wrong), spec.path, where)
    for path, value in ((("zarr_format",), 3.0), (("shape", 0), True)):  # as 3 == 3.0, 1 == True
        wrong = json.loads(data)
        set_at(wrong, path, value)
        with pytest.raises(FormatError, match=path[0]):
            parse.array_spec(wrong, spec.path, "here")


def set_at(document, path, value):
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is DELETE:
        del document[last]
    else:
        document[last] = value


DELETE = object()
SHARDING = ("codecs", 0, "configuration")
WRONG_ARRAY = [
    (("zarr_format",), True, "zarr_format"),
    (("zarr_format",), DELETE, "zarr_format"),
    (("node_type",), "group", "node_type"),
    (("shape",), DELETE, "shape"),
    (("shape",), [], "whole rows"),
    (("shape",), [5, 84, 83], "whole rows"),
    (("shape",), [-1, 84, 84], "shape"),
    (("shape",), [1 << 40, 84, 84], "shape"),
    (("shape",), [5.0, 84, 84], "shape"),
    (("shape",), [True, 84, 84], "shape"),
    (("shape",), [5, 0, 84], "shape|whole rows"),
    (("shape",), [1] * 10, "shape"),
    (("data_type",), "object", "data_type"),
    (("data_type",), ["uint8"], "data_type"),
    (("data_type",), None, "data_type"),
    (("chunk_grid", "name"), "rectangular", "chunk_grid"),
    (("chunk_grid",), DELETE, "chunk_grid"),
    (("chunk_grid", "configuration"), DELETE, "chunk_shape"),
    (("chunk_grid", "configuration", "chunk_shape"), [0, 84, 84], "chunk_shape"),
    (("chunk_grid", "configuration", "chunk_shape"), [8, 84, 42], "whole rows"),
    (("chunk_grid", "configuration", "chunk_shape"), [1_000_000, 84, 84], "at most"),
    (("chunk_grid", "configuration", "chunk_shape"), [1 << 39, 84, 84], "at most"),
    (("chunk_key_encoding", "name"), "v2", "chunk_key_encoding"),
    (("chunk_key_encoding", "configuration", "separator"), "/", "separator"),
    (("chunk_key_encoding", "configuration"), DELETE, "separator"),
    (("fill_value",), 1, "fill_value"),
    (("fill_value",), "NaN", "fill_value"),
    (("fill_value",), DELETE, "fill_value"),
    (("codecs",), [], "codec"),
    (("codecs",), DELETE, "codec"),
    (("codecs",), [None], "codec"),
    (("codecs",), [{"name": "bytes"}, {"name": "crc32c"}], "codec"),
    (("codecs",), [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}], "bytes"),
    (("storage_transformers",), [{"name": "x"}], "unknown keys"),
    (("must_understand",), True, "unknown keys"),
]
WRONG_BYTES = [
    (("codecs", 0, "configuration"), {"endian": "big"}, "endian: expected 'little', found 'big'"),
    (("codecs", 0, "configuration"), [1], "bytes|configuration"),
    (("codecs", 0, "name"), "numcodecs.pickle", "bytes"),
    (("codecs", 0, "name"), None, "bytes"),
]
WRONG_SHARDING = [
    ((*SHARDING, "chunk_shape"), [3, 84, 84], "divide"),
    ((*SHARDING, "chunk_shape"), [4, 84, 42], "divide"),
    ((*SHARDING, "chunk_shape"), [0, 84, 84], "inner chunk_shape"),
    ((*SHARDING, "chunk_shape"), DELETE, "inner chunk_shape"),
    ((*SHARDING, "index_location"), "start", "index_location"),
    ((*SHARDING, "index_codecs"), [], "index_codecs"),
    ((*SHARDING, "index_codecs"), [{"name": "bytes"}, {"name": "crc32c"}], "index_codecs"),
    ((*SHARDING, "codecs"), DELETE, "inner codecs"),
    ((*SHARDING, "codecs"), [{"name": "bytes"}, {"name": "crc32c"}], "inner codecs"),
    ((*SHARDING, "codecs", 0), {"name": "transpose"}, "bytes"),
    ((*SHARDING, "codecs", 1), {"name": "crc32c"}, "standard set"),
    ((*SHARDING, "codecs", 1), {"name": "numcodecs.zlib"}, "standard set"),
    ((*SHARDING, "codecs", 1), None, "compressor"),
    ((*SHARDING, "codecs", 1, "configuration"), [], "configuration"),
    ((*SHARDING, "codecs", 1, "configuration", "cname"), "zlib", "cname"),
    ((*SHARDING, "codecs", 1, "configuration", "shuffle"), {}, "shuffle"),
    ((*SHARDING, "codecs", 1, "configuration", "typesize"), "1", "typesize"),
    ((*SHARDING, "codecs", 1, "configuration", "blocksize"), -1, "blocksize"),
    ((*SHARDING, "codecs", 2), {"name": "adler32"}, "crc32c"),
    ((*SHARDING, "codecs", 2), None, "crc32c"),
    (("codecs", 0, "configuration"), None, "inner chunk_shape"),
]


def refused(spec, path, value, match):
    document = json.loads(layout.array_json(spec, 5))
    set_at(document, path, value)
    with pytest.raises(FormatError, match=match) as caught:
        parse.parse_array(json.dumps(document).encode(), spec.path, "/a/zarr.json")
    assert str(caught.value).startswith("/a/zarr.json: ")
    assert len(str(caught.value)) < 1000


def test_an_array_that_the_format_does_not_have_is_refused():
    for path, value, match in WRONG_ARRAY:
        refused(ArraySpec("frames", (84, 84), UINT8, 8), path, value, match)


def test_bytes_that_would_read_otherwise_are_refused():
    for path, value, match in WRONG_BYTES:
        refused(ArraySpec("rewards", (), np.dtype("float32"), 8), path, value, match)


def test_sharding_that_the_format_does_not_have_is_refused():
    for path, value, match in WRONG_SHARDING:
        refused(ArraySpec("frames", (84, 84), UINT8, 8, 4, LZ4), path, value, match)


def test_what_changes_no_meaning_is_accepted():
    spec = ArraySpec("frames", (84, 84), UINT8, 8, 4, LZ4)
    document = json.loads(layout.array_json(spec, 5))
    document["attributes"] = {"note": [1, {"a": None}]}
    document["storage_transformers"] = []
    document["fill_value"] = 0.0
    del document["codecs"][0]["configuration"]["index_location"]
    assert parse.parse_array(json.dumps(document).encode(), "frames", "here") == (spec, 5)


def test_the_root_comes_back_as_it_was_written():
    for kind in ("lane", "lanes"):
        own = root(kind) | {"env": {"id": "ALE/Pong-v5"}, "name": "actor-3"}
        assert parse.parse_root(layout.group_json(own), "here") == own


WRONG_ROOT = [
    ("format", 2, "expected format 1, found 2; a newer mmreplay may read it"),
    ("format", True, "expected format 1"),
    ("format", DELETE, "expected format 1, found None"),
    ("kind", "store", "kind"),
    ("kind", DELETE, "kind"),
    ("uuid", "0123456789ABCDEF" * 2, "uuid"),
    ("uuid", "0123456789abcdef" * 2 + "\n", "uuid"),
    ("uuid", DELETE, "uuid"),
    ("capacity", 0, "capacity"),
    ("capacity", 1.5, "capacity"),
    ("capacity", True, "capacity"),
    ("capacity", 1 << 40, "capacity"),
    ("capacity", DELETE, "capacity"),
    ("padding", "edge", "padding"),
    ("padding", None, "padding"),
    ("rows", -1, "rows: expected a number"),
    ("rows", 1 << 40, "rows: expected a number"),
    ("rows", DELETE, "rows: expected a number"),
    ("first", -1, "first: expected a number"),
    ("first", 11, "first: expected at most rows = 10, found 11"),
    ("first", DELETE, "first: expected a number"),
    ("finals", 0, "first_final: expected at most finals = 0, found 1"),
    ("first_final", DELETE, "first_final: expected a number"),
    ("episodes_before", -1, "episodes_before: expected a number"),
    ("environments", DELETE, "environments: expected null"),
    ("environments", 0, "environments: expected null, or 1 to 65,536, found 0"),
    ("environments", 65_537, "environments: expected null"),
    ("environments", True, "environments: expected null"),
    ("closed", 1, "closed: expected a bool, found 1"),
    ("closed", DELETE, "closed: expected a bool"),
]


def test_a_root_that_the_format_does_not_have_is_refused():
    for key, value, match in WRONG_ROOT:
        own = root()
        set_at(own, (key,), value)
        with pytest.raises(FormatError, match=match) as caught:
            parse.parse_root(layout.group_json(own), "/a/zarr.json")
        assert str(caught.value).startswith("/a/zarr.json: ")


def test_a_zarr_group_that_is_no_store_is_refused():
    for document, match in (
        ({}, "zarr v3 group"),
        ({"zarr_format": 2, "node_type": "group", "attributes": {"mmreplay": root()}}, "zarr v3"),
        ({"zarr_format": 3, "node_type": "array", "attributes": {"mmreplay": root()}}, "zarr v3"),
        ({"zarr_format": 3, "node_type": "group"}, "no mmreplay store"),
        ({"zarr_format": 3, "node_type": "group", "attributes": []}, "no mmreplay store"),
        ({"zarr_format": 3, "node_type": "group", "attributes": {}}, "no mmreplay store"),
        ({"zarr_format": 3, "node_type": "group", "attributes": {"mmreplay": 1}}, "no mmreplay"),
    ):
        with pytest.raises(FormatError, match=match):
            parse.parse_root(json.dumps(document).encode(), "here")


def test_the_borders_of_a_root_are_accepted():
    own = root() | {"rows": (1 << 40) - 1, "first": (1 << 40) - 1, "capacity": (1 << 40) - 1}
    assert parse.parse_root(layout.group_json(own), "here") == own
    own = root() | {"rows": 0, "first": 0, "capacity": 1, "closed": False, "padding": "zero"}
    assert parse.parse_root(layout.group_json(own), "here") == own
    own = root() | {"environments": 65_536, "rows": (1 << 24) - 1}
    assert parse.parse_root(layout.group_json(own), "here") == own
    with pytest.raises(FormatError, match=r"fewer than 2\*\*40 transitions of 65,536"):
        parse.parse_root(layout.group_json(own | {"rows": 1 << 24}), "here")


def test_names_of_axes_that_are_none_are_refused():
    for names in ("abc", ["step"], ["step", "y", 1], ["step", "y", "x" * 256], {}):
        refused(
            ArraySpec("frames", (84, 84), UINT8, 8), ("dimension_names",), names, "dimension_names"
        )
