"""How packed frames are laid out: as asked for, and else as they were."""

import pytest

from mmreplay import Field, SchemaError
from mmreplay.maintenance.packed_layout import FrameLayout
from mmreplay.reading.joined_lanes import open_lane

LZ4 = Field((3,), "uint8", "lz4", chunk=4, shard=8)
LEVELS = {"name": "blosc", "configuration": {"clevel": 9, "cname": "lz4hc"}}


@pytest.fixture
def reader(make):
    """Of a lane of one environment, or with `lanes` of as many."""

    def of(**changes):
        writer = make(f"{sorted(changes)}.zarr", **({"frame": LZ4} | changes))
        writer.close()
        return open_lane(writer.path, 0)

    return of


def frames(logs):
    return {name: specs["frames"] for name, specs in logs.items()}


def test_what_nobody_asks_for_stays(reader):
    for one in (reader(), reader(lanes=3)):
        for wanted in (FrameLayout.of(None, None, None), FrameLayout.of("lz4", None, None)):
            logs = wanted.same_kind(one)
            expected = [one.specs] if one.width == 1 else [one.starts.specs, one.ticks.specs]
            assert list(logs.values()) == expected


@pytest.mark.parametrize(
    ("asked", "name", "rows"),
    [
        (("zstd:7", None, None), "zstd", (4, 8)),
        (("lz4:9", 2, None), "lz4", (2, 8)),
        ((None, 8, 64), "lz4", (8, 64)),
        ((None, None, 12), "lz4", (4, 12)),
        (("gzip:1", None, None), "gzip", (4, 8)),
        ((LEVELS, None, None), "lz4", (4, 8)),
    ],
    ids=str,
)
def test_codec_and_lengths(reader, asked, name, rows):
    (spec,) = frames(FrameLayout.of(*asked).same_kind(reader())).values()
    assert (spec.codec_name, (spec.inner_rows, spec.chunk_rows)) == (name, rows)
    logs = FrameLayout.of(*asked).same_kind(reader(lanes=3))
    assert {spec.codec_name for spec in frames(logs).values()} == {name}
    ticks = logs["ticks"]["frames"]
    assert (ticks.inner_rows, ticks.chunk_rows, ticks.width) == (*rows, 3)


def test_levels_are_kept(reader):
    lane = reader()
    for asked, key in (("zstd:7", "level"), ("lz4:7", "clevel"), ("gzip:7", "level")):
        (spec,) = frames(FrameLayout.of(asked, None, None).same_kind(lane)).values()
        assert spec.codec["configuration"][key] == 7


def test_raw_frames_and_back(reader):
    (spec,) = frames(FrameLayout.of("raw", 16, None).same_kind(reader())).values()
    assert (spec.is_raw, spec.chunk_rows) == (True, 16)
    raw = reader(frame=Field((3,), "uint8", "raw", chunk=8))
    (spec,) = frames(FrameLayout.of("raw", None, 99).same_kind(raw)).values()
    assert spec == raw.specs["frames"]
    (spec,) = frames(FrameLayout.of("lz4", None, None).same_kind(raw)).values()
    assert (spec.codec_name, spec.inner_rows) == ("lz4", 16)


def test_rows_of_many_environments_have_their_codec(reader):
    specs = FrameLayout.of(None, None, None).of_rows(reader(lanes=3), None)
    assert (specs["frames"].codec_name, specs["frames"].width) == ("lz4", 1)
    assert "resets" in specs


def test_codecs_of_another(reader):
    wanted = FrameLayout.of(None, None, None).with_codecs_of(reader())
    other = reader(frame=Field((3,), "uint8", "zstd", chunk=4, shard=8), lanes=2)
    assert {spec.codec_name for spec in frames(wanted.same_kind(other)).values()} == {"lz4"}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (("png", None, None), "found 'png'"),
        (("zstd:much", None, None), "with a level, as 'zstd:9', .* found 'zstd:much'"),
        (("raw:3", None, None), "found 'raw:3'"),
        (("zstd:99", None, None), "level"),
        (("lz4:10", None, None), "level"),
        (({"name": "png"}, None, None), "codec of the standard set"),
        ((7, None, None), "codec: expected"),
        ((None, 0, None), "chunk_frames"),
        ((None, 3, 8), "multiple of the 3 rows"),
        ((None, None, 1.5), "shard_frames"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(reader, asked, text):
    with pytest.raises(SchemaError, match=text):
        FrameLayout.of(*asked).same_kind(reader())
