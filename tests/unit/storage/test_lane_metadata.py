"""The zarr.json files of a store as they are read: attributes, arrays, lanes; and what is refused."""

import json
import os
import shutil

import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import CorruptStoreError, FormatError, StoreNotFoundError
from mmreplay.storage.lane_metadata import (
    kind_and_name,
    lane_paths,
    read_holder,
    read_lane,
    read_metadata,
)
from mmreplay.system import checked_reads
from tests.support.documents import drop_copy, edit

pytestmark = pytest.mark.usefixtures("quick_disk")

FIELDS = {"frame": Field((3,)), "action": Field((), "int64")}


def test_where_there_is_nothing_there_is_no_store(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("none", "none/below", "dangling"):
        with pytest.raises(StoreNotFoundError, match="there is no store here; check the path"):
            read_metadata(tmp_path / name)


def test_each_kind_of_path_that_is_no_store_has_its_own_error(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "zarr.json").write_bytes(b" " * ((1 << 20) + 1))
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "zarr.json").symlink_to(tmp_path / "foreign" / "zarr.json")
    for name, error, match in (
        ("file", FormatError, "expected a directory, found a file: not a store"),
        ("directory", FormatError, "no zarr.json in it: not a store"),
        ("foreign", FormatError, "no mmreplay store"),
        ("large", CorruptStoreError, "at most 1,048,576 bytes"),
        ("link", CorruptStoreError, "expected a regular file"),
    ):
        with pytest.raises(error, match=match):
            read_metadata(tmp_path / name)


def test_a_store_that_comes_while_it_is_looked_for_is_found(tmp_path, monkeypatch):
    path, read = tmp_path / "s.zarr", checked_reads.read_bytes

    def come(where, limit):
        monkeypatch.setattr(checked_reads, "read_bytes", read)
        try:
            return read(where, limit)
        finally:
            mmreplay.create(path, Field((2,)), Field(())).close()

    monkeypatch.setattr(checked_reads, "read_bytes", come)
    assert read_metadata(path)["kind"] == "lane"


@pytest.mark.parametrize("state", ["new", "closed", "killed"])
@pytest.mark.parametrize(
    "open_it",
    [
        mmreplay.open,
        lambda path: mmreplay.create(path, append=True, flush_s=0, **FIELDS),
        lambda path: mmreplay.ReplayBuffer(path, 99, None, flush_s=0, **FIELDS),
    ],
    ids=["open", "create", "buffer"],
)
def test_an_opening_reads_each_document_once(tmp_path, kill, monkeypatch, open_it, state):
    path, read, seen = tmp_path / "s.zarr", checked_reads.read_bytes, []
    if state != "new" or open_it is mmreplay.open:
        writer = mmreplay.create(path, capacity=99, flush_s=0, **FIELDS)
        kill(writer) if state == "killed" else writer.close()
    monkeypatch.setattr(
        checked_reads, "read_bytes", lambda path, limit: seen.append(path) or read(path, limit)
    )
    opened = open_it(path)
    documents = [str(one) for one in seen if one.name == "zarr.json"]
    assert len(documents) == len(set(documents)) > 0
    opened.close()


def test_what_may_not_be_read_is_no_bare_permission_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "zarr.json").write_bytes(b"{}")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreNotFoundError, match="may not be read: Permission denied"):
        read_metadata(tmp_path)


def test_every_array_is_checked_against_the_schema(closed_lane):
    for own_documents in (False, True):
        found = read_lane(closed_lane.path, own_documents=own_documents)
        assert found.lengths == (19, 2)
        assert (found.environments, found.n) == (None, 1)
        assert found.rows == closed_lane.specs
        assert sorted(found.finals) == ["first", "frames", "id"]
        assert found.data == (closed_lane.path / "zarr.json").read_bytes()
    (closed_lane.path / "actions" / "zarr.json").unlink()
    assert read_lane(closed_lane.path).rows == closed_lane.specs  # by the copy, and no other file


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("actions", lambda d: d.update(data_type="int32"), r"expected rows of \(\) int64, .*int32"),
        ("rewards", lambda d: d.update(data_type="float64"), "expected rows of"),
        ("resets", lambda d: d.update(data_type="bool"), r"expected rows of \(\) uint8"),
        ("frames", lambda d: d["shape"].__setitem__(1, 4), "whole rows"),
        ("extras/x", lambda d: d.update(zarr_format=2), "zarr_format"),
        ("non_terminals", lambda d: d.clear(), "zarr_format"),
        ("ends", lambda d: d.update(data_type="int8"), r"expected rows of \(\) uint8"),
        ("finals/first", lambda d: d.update(data_type="int32"), r"expected rows of \(\) int64"),
    ],
)
def test_an_array_of_other_rows_is_refused(closed_lane, name, change, match):
    edit(closed_lane.path / name / "zarr.json", change)
    with pytest.raises(FormatError, match=match) as caught:
        mmreplay.open(closed_lane.path)
    assert f"zarr.json: consolidated_metadata: {name}: " in str(caught.value)
    drop_copy(closed_lane.path)
    with pytest.raises(FormatError, match=match) as caught:
        mmreplay.open(closed_lane.path)
    assert f"{name}/zarr.json" in str(caught.value)


@pytest.mark.parametrize("name", ["frames", "resets", "extras/x", "finals/id"])
def test_an_array_that_is_missing_is_named(closed_lane, name):
    drop_copy(closed_lane.path)
    shutil.rmtree(closed_lane.path / name)
    with pytest.raises(FormatError, match=f"{name}/zarr.json: missing; every column"):
        mmreplay.open(closed_lane.path)


def test_a_compressed_scalar_is_refused(closed_lane):
    sharding = json.loads((closed_lane.path / "frames" / "zarr.json").read_bytes())["codecs"]
    sharding[0]["configuration"]["chunk_shape"] = [4]
    edit(closed_lane.path / "resets" / "zarr.json", lambda d: d.update(codecs=sharding))
    with pytest.raises(FormatError, match="resets: expected raw chunks, found lz4"):
        mmreplay.open(closed_lane.path)


def test_two_shard_lengths_are_refused(make, story):
    frame = {name: Field((3,), "uint8", "lz4", chunk=4, shard=8) for name in "ab"}
    writer = make(frame=frame)
    story.play(writer, 3)
    writer.close()
    edit(
        writer.path / "frames" / "b" / "zarr.json",
        lambda d: d["chunk_grid"]["configuration"]["chunk_shape"].__setitem__(0, 16),
    )
    with pytest.raises(FormatError, match="frames/b: all shards: expected one length, 8 "):
        mmreplay.open(writer.path)


@pytest.mark.parametrize("name", ["actions", "rewards", "ends", "step"])
def test_a_chunk_length_of_its_own_is_refused(closed_lane, name):
    edit(
        closed_lane.path / name / "zarr.json",
        lambda d: d["chunk_grid"]["configuration"]["chunk_shape"].__setitem__(0, 5),
    )
    with pytest.raises(FormatError, match=rf"{name}: .*expected one length, .* found 5"):
        mmreplay.open(closed_lane.path)
    assert f"{name}/zarr.json" in {one.file for one in mmreplay.verify(closed_lane.path).findings}


def test_arrays_shorter_than_the_root_says_are_refused(closed_lane):
    edit(closed_lane.path / "rewards" / "zarr.json", lambda d: d["shape"].__setitem__(0, 18))
    with pytest.raises(FormatError, match="the root says 19 rows, the arrays 18"):
        mmreplay.open(closed_lane.path)


@pytest.mark.parametrize("name", ["frames", "extras", "finals", "checksums", "resets"])
def test_a_directory_that_is_a_link_is_not_followed(closed_lane, tmp_path, name):
    (closed_lane.path / name).rename(tmp_path / "outside")
    (closed_lane.path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptStoreError, match="found a link"):
        mmreplay.open(closed_lane.path)


def test_no_word_of_a_writer_is_read_behind_a_link(tmp_path):
    about, live = {"pid": 1, "host": "h", "since": "now"}, tmp_path / "lane" / ".live"
    live.mkdir(parents=True)
    (live / "writer").write_text(json.dumps(about))
    assert read_holder(tmp_path / "lane") == about
    live.rename(tmp_path / "outside")
    live.symlink_to(tmp_path / "outside")
    assert read_holder(tmp_path / "lane") is None


def test_frames_and_final_frames_are_both_raw_or_both_compressed(closed_lane):
    sharded = json.loads((closed_lane.path / "frames" / "zarr.json").read_bytes())
    change = {"codecs": [{"name": "bytes"}], "chunk_grid": sharded["chunk_grid"]}
    edit(closed_lane.path / "finals" / "frames" / "zarr.json", lambda d: d.update(change))
    with pytest.raises(FormatError, match="both raw, or both compressed; found lz4 and raw"):
        mmreplay.open(closed_lane.path)


def test_the_lanes_of_a_store_come_in_the_order_of_their_numbers(make):
    one, many = make("one.zarr"), make("many.zarr", n_lanes=3)
    assert lane_paths(one.path) == [one.path]
    expected = [many.path / f"lane-0000{n}" for n in range(3)]
    assert lane_paths(many.path) == expected
    (many.path / "lane-notes").mkdir()
    (many.path / ".lane-00003.tmp").mkdir()
    assert lane_paths(many.path) == expected


def test_the_name_of_a_lane_is_that_which_it_has_now(make):
    path = make("named.zarr", lane="a").path
    assert [kind_and_name(path)[1], kind_and_name(path)[1]] == ["a", "a"]
    edit(path / "zarr.json", lambda root: root["attributes"]["mmreplay"].update(name="b"))
    assert kind_and_name(path)[1] == "b"
    assert kind_and_name(make("one.zarr").path)[1] is None
    assert [kind_and_name(one)[0] for one in (path, path.parent)] == ["lane", "lanes"]
    edit(path / "zarr.json", lambda root: root["attributes"]["mmreplay"].update(format=2))
    with pytest.raises(FormatError, match="expected format 1"):
        kind_and_name(path)[1]


def test_a_lane_that_is_a_link_is_refused(make, tmp_path):
    many = make("many.zarr", n_lanes=2)
    (many.path / "lane-00001").rename(tmp_path / "outside")
    (many.path / "lane-00001").symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptStoreError, match="found a link"):
        lane_paths(many.path)


def test_a_store_with_no_lane_yet_says_so(make):
    many = make("many.zarr", n_lanes=1)
    many.close()
    shutil.rmtree(many.path / "lane-00000")
    with pytest.raises(FormatError, match="no process has written to this store yet"):
        lane_paths(many.path)
