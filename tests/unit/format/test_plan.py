"""Lengths and codecs of arrays, where the user leaves them open and where he does not."""

import json

import numpy as np
import pytest

from mmreplay.errors import FormatError, SchemaError
from mmreplay.format import layout, plan
from mmreplay.schema import Field, Schema

MIB = 1 << 20
ACTION = Field((), "int64")
LZ4 = {
    "name": "blosc",
    "configuration": {
        "typesize": 1,
        "cname": "lz4hc",
        "clevel": 5,
        "shuffle": "noshuffle",
        "blocksize": 0,
    },
}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
BITS = {
    "name": "blosc",
    "configuration": LZ4["configuration"]
    | {"typesize": 2, "cname": "zstd", "clevel": 3, "shuffle": "bitshuffle"},
}


def planned(frame, action=ACTION, extras=None, *, codec=None, in_group=False):
    schema = Schema.make(frame, action, extras, codec=codec)
    return plan.plan_lane(schema, None, None, in_group=in_group).rows


def test_atari_frames_get_the_lengths_that_the_format_names():
    specs = planned(Field((84, 84)))
    frames = specs["frames"]
    assert (frames.chunk_rows, frames.inner_rows, frames.codec) == (4096, 16, LZ4)
    assert frames.codec_name == "lz4"
    assert {specs[name].chunk_rows for name in layout.SCALARS} == {65_536}
    assert all(spec.is_raw for name, spec in specs.items() if name != "frames")
    raw = planned(Field((84, 84), codec="raw"))["frames"]
    assert (raw.chunk_rows, raw.inner_rows, raw.codec, raw.codec_name) == (4096, 0, None, "raw")
    assert raw.chunk_bytes == 4096 * 7056


def test_tails_of_a_store_of_lanes_stay_under_256_mib():
    for frame in (
        Field((84, 84)),
        Field((210, 160, 3)),
        Field((96, 96, 3), codec="zstd"),
        Field((17,), "float32", "lz4"),
        {"a": Field((64, 64, 3)), "b": Field((84, 84)), "c": Field((17,), "float32")},
    ):
        specs = planned(frame, in_group=True)
        tails = 2 * 16 * sum(s.chunk_bytes for s in specs.values() if not s.is_raw)
        assert tails <= 256 * MIB
        assert specs["actions"].chunk_rows == 8_192
        shards = [s for s in planned(frame).values() if not s.is_raw]
        assert max(s.chunk_bytes for s in shards) <= 32 * MIB
        assert all(s.chunk_rows <= 4096 for s in shards)


def test_whole_inner_chunks_fill_a_shard_of_any_frame():
    for row in (1, 3, 1000, 1023, 7056, 12_288, 100_800, 600_000, 3 * MIB, 200 * MIB):
        for in_group in (False, True):
            spec = planned(Field((row,), codec="lz4"), in_group=in_group)["frames"]
            assert spec.chunk_rows >= 1
            assert spec.chunk_rows % spec.inner_rows == 0
            assert 1 <= spec.inner_rows <= 16
            assert spec.inner_rows == 1 or spec.inner_rows * row <= MIB // 2


def test_rows_from_one_kib_on_are_compressed_and_vectors_are_not():
    assert planned(Field((1023,)))["frames"].codec_name == "raw"
    assert planned(Field((1024,)))["frames"].codec_name == "lz4"
    assert planned(Field((348,), "float64"))["frames"].codec_name == "raw"
    assert planned(Field((84, 84), "float16"))["frames"].codec_name == "raw"
    assert planned(Field((348,), "float64"), codec="lz4")["frames"].codec_name == "lz4"
    assert planned(Field((1024,), "int8"))["frames"].codec_name == "lz4"
    assert planned(Field((17,), "float32"))["frames"].codec_name == "raw"
    assert planned(Field((17,), "float32", "zstd"))["frames"].codec_name == "zstd"
    assert planned(Field((84, 84)), codec="raw")["frames"].codec_name == "raw"


def test_explicit_lengths_hold():
    spec = planned(Field((84, 84), chunk=3, shard=12))["frames"]
    assert (spec.inner_rows, spec.chunk_rows) == (3, 12)
    spec = planned(Field((84, 84), codec="raw", chunk=7))["frames"]
    assert (spec.inner_rows, spec.chunk_rows) == (0, 7)
    specs = planned(
        Field((2,)), Field((), "int64", chunk=5), {"x": Field((), chunk=3), "y": Field()}
    )
    rows = {name: spec.chunk_rows for name, spec in specs.items() if name != "frames"}
    assert rows == {
        "actions": 5,
        "rewards": 5,
        "non_terminals": 5,
        "resets": 5,
        "ends": 5,
        "step": 5,
        "extras/x": 3,
        "extras/y": 5,
    }


def test_a_shard_of_broken_chunks_is_refused():
    with pytest.raises(SchemaError, match="frames: expected a shard of a multiple of the 5 rows"):
        planned(Field((84, 84), chunk=5, shard=12))


def test_compressed_keys_share_one_shard_length():
    specs = planned({"a": Field((64, 64, 3)), "b": Field((84, 84)), "c": Field((17,), "f4")})
    a, b, c = (specs[f"frames/{name}"] for name in "abc")
    assert a.chunk_rows == b.chunk_rows == 2384
    assert (a.inner_rows, b.inner_rows, c.is_raw) == (16, 16, True)
    specs = planned({"a": Field((64, 64), shard=24), "b": Field((84, 84), chunk=3)})
    assert {specs["frames/a"].chunk_rows, specs["frames/b"].chunk_rows} == {24}
    assert (specs["frames/a"].inner_rows, specs["frames/b"].inner_rows) == (8, 3)
    with pytest.raises(SchemaError, match=r"share one length, found \[8, 16\]"):
        planned({"a": Field((64, 64), shard=8), "b": Field((84, 84), shard=16)})


def test_keys_whose_chunks_have_no_common_multiple_still_share_a_shard():
    sizes = {"a": 40_000, "b": 47_000, "c": 58_000, "d": 75_000, "e": 5_000_000}
    frame = {name: Field((size,), codec="lz4") for name, size in sizes.items()}
    for in_group in (False, True):
        found = plan.plan_lane(Schema.make(frame, ACTION), None, None, in_group=in_group)
        for specs, most in ((found.rows, 64 * MIB), (found.finals, 16 * 5_000_000)):
            shards = [s for s in specs.values() if not s.is_raw]
            assert len({s.chunk_rows for s in shards}) == 1
            assert all(s.chunk_rows % s.inner_rows == 0 for s in shards)
            assert max(s.chunk_bytes for s in shards) <= most


def test_a_chunk_of_gigabytes_is_refused():
    with pytest.raises(SchemaError, match="at most 4,294,967,296: give a smaller chunk"):
        planned(Field((84, 84), codec="raw", chunk=1_000_000))
    with pytest.raises(SchemaError, match="smaller chunk or shard"):
        planned(Field((84, 84), shard=1_000_000))
    with pytest.raises(SchemaError, match="actions"):
        planned(Field((2,)), Field((1 << 20,), "float64", chunk=1024))


def test_chunk_files_of_many_environments_hold_as_many_entries_as_those_of_one():
    for n, capacity, steps in (
        (1, None, 65_536),
        (16, None, 4_096),
        (1_024, None, 64),
        (4_096, None, 64),
        (16, 1_000_000, 4_096),
        (4_096, 1_000_000, 24),
        (4_096, 10_000, 16),
    ):
        schema = Schema.make(Field((2,), "float32"), ACTION, None)
        specs = plan.plan_lane(schema, n, capacity).rows
        assert specs["rewards"].chunk_rows == specs["actions"].chunk_rows == steps
        assert specs["frames"].chunk_rows == steps
        assert all(spec.chunk_bytes % 4096 == 0 for spec in specs.values())


def test_a_codec_is_stored_with_all_that_it_means():
    for codec, document, name in (
        ("lz4", LZ4, "lz4"),
        ("zstd", ZSTD, "zstd"),
        ({"name": "gzip"}, GZIP, "gzip"),
        (
            {"name": "zstd", "configuration": {"level": 9}},
            {"name": "zstd", "configuration": {"level": 9, "checksum": False}},
            "zstd",
        ),
        (BITS, BITS, "blosc"),
        (
            "zstd:9",
            {"name": "zstd", "configuration": {"level": 9, "checksum": False}},
            "zstd",
        ),
        (
            "lz4:9",
            {"name": "blosc", "configuration": LZ4["configuration"] | {"clevel": 9}},
            "lz4",
        ),
        ("gzip:5", GZIP, "gzip"),
    ):
        spec = planned(Field((64, 64), "uint16", codec))["frames"]
        assert spec.codec == document
        assert spec.codec_name == name


def test_a_codec_outside_of_the_standard_set_is_refused():
    for codec in (
        "lz5",
        "",
        "zstd:",
        "zstd:23",
        "raw:1",
        "lz4:10",
        {"name": "lz4"},
        {"name": "blosc", "configuration": {"shuffle": "yes"}},
        {"name": "blosc", "configuration": {"typesize": 256}},
        {"name": "blosc", "configuration": {"blocksize": -1}},
        {"name": "blosc", "configuration": {"clevel": True}},
        {"name": "gzip", "configuration": {"level": 10}},
        {"name": "zstd", "configuration": {"level": 23}},
        {"name": "zstd", "configuration": {"checksum": 1}},
        {},
    ):
        with pytest.raises(SchemaError, match="frames"):
            planned(Field((64, 64), codec=codec))


def test_a_planned_layout_comes_back_from_the_attributes_of_a_store():
    schema = Schema.make(Field((64, 64), "uint16", BITS, 3, 12), ACTION, {"x": Field()})
    specs = plan.plan_lane(schema, None, None, in_group=True).rows
    again = json.loads(json.dumps(layout.layout_json(specs)))
    assert plan.plan_from_layout(schema, again, "here") == specs


def test_an_invalid_layout_is_refused():
    for change in (
        lambda layout: layout.pop("frames"),
        lambda layout: layout["frames"].pop("chunk"),
        lambda layout: layout["frames"].update(chunk=0),
        lambda layout: layout["frames"].update(chunk="8"),
        lambda layout: layout["frames"].update(chunk=10**12),
        lambda layout: layout["frames"].update(inner=5),
        lambda layout: layout["rewards"].update(chunk=16),
        lambda layout: layout["frames"].update(codec="lz4"),
        lambda layout: layout["frames"].update(codec={"name": "numcodecs.lz4"}),
        lambda layout: layout.update(resets=None),
        lambda layout: layout.update(resets=[]),
    ):
        schema = Schema.make(Field((64, 64), codec="lz4", chunk=4, shard=8), ACTION)
        given = layout.layout_json(plan.plan_lane(schema, None, None, in_group=True).rows)
        change(given)
        with pytest.raises(FormatError, match="here"):
            plan.plan_from_layout(schema, given, "here")


def test_a_chunk_of_final_observations_is_short_and_has_room_for_one_of_each_environment():
    for n in (None, 1, 3, 5_000, 65_536):
        for codec in ("raw", "lz4"):
            for shape in ((), (3,), (84, 84), (2048, 1024)):
                if (
                    n and n * int(np.prod(shape)) * 2 > 4 << 30
                ):  # a step of such frames does not fit either
                    continue
                finals = plan.plan_lane(
                    Schema.make(Field(shape, codec=codec), ACTION), n, None
                ).finals
                assert sorted(finals) == ["first", "frames", "id"]
                assert finals["id"].chunk_rows == finals["first"].chunk_rows == max(n or 1, 16_384)
                frames = finals["frames"]
                assert frames.is_raw is (codec == "raw")
                assert frames.width == 1
                assert frames.chunk_rows >= max(n or 1, 16)
                least = max((n or 1) * frames.row_bytes, 16 * frames.row_bytes, MIB)
                assert frames.chunk_bytes <= 2 * least
                assert frames.dims == (
                    "episode",
                    *(f"frames.{axis + 1}" for axis in range(len(shape))),
                )
