"""New lanes: the directory of one that is empty, and the attributes of any."""

import json
import shutil

import pytest
import zarr

import mmreplay
from mmreplay import Field
from mmreplay.errors import FormatError
from mmreplay.format import plan
from mmreplay.schema import Schema
from mmreplay.storage.state_page import CheckpointFile
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane
from mmreplay.writing.create import open_writer
from tests.support.documents import attributes

pytestmark = pytest.mark.usefixtures("quick_disk")


def open_lane(path):
    return open_writer(path, {"capacity": 1000}, 0.0)


def respell(path, change):
    """Change the attributes in a zarr.json, and write other letters than ASCII in few bytes."""
    document = json.loads((path / "zarr.json").read_bytes())
    own = document["attributes"]["mmreplay"]
    change(own)
    own.pop("crc32c")
    (path / "zarr.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def test_attributes_that_nobody_could_read_again_are_not_written(make, story):
    writer = make()
    story.play(writer, 13, "truncated")
    writer.close()
    respell(writer.path, lambda own: own.update(env={"x": "\u00e9" * 400_000}))
    before = (writer.path / "zarr.json").read_bytes()
    for _ in range(2):
        with pytest.raises(FormatError, match=r"expected attributes of at most 1,048,576 bytes"):
            make(append=True)
        assert (writer.path / "zarr.json").read_bytes() == before
        with mmreplay.open(writer.path) as store:
            story.check(store)


def test_a_random_state_that_makes_them_too_long_is_left_out(make, story):
    writer = make()
    story.play(writer, 13, "truncated")
    writer.files.on_flush = lambda: "\u00e9" * 400_000
    writer.close()
    assert "generator" not in attributes(writer.path)
    with mmreplay.open(writer.path) as store:
        story.check(store)
    make(append=True).close()


@pytest.mark.parametrize(
    "since", ["nothing", "a session", "a recovery", "a restart", "a copy", "a restored copy"]
)
def test_only_a_new_lane_that_nobody_has_opened_is_taken_for_durable(
    tmp_path, kill, power_cut, monkeypatch, since
):
    path, copy = tmp_path / "s.zarr", tmp_path / "copy.zarr"
    schema = Schema.make(Field((3,), "uint8", "lz4", 2, 4), Field((), "int64"))
    own = {"capacity": None, "padding": "reset", "env": {}, "versions": {}}
    build_lane.build_lane(path, schema, plan.plan_lane(schema, None, None), None, own)
    if since == "a session":
        kill(open_lane(path))
    elif since == "a recovery":
        CheckpointFile(path / ".live" / "checkpoint", attributes(path)["uuid"]).write(head=0)
    elif since == "a restart":
        power_cut()
    elif since.endswith("copy"):
        shutil.copytree(path, copy)
        if since == "a restored copy":
            shutil.copytree(copy, path, dirs_exist_ok=True)
        else:
            path = copy
    synced, real = [], durable_writes.sync_file
    monkeypatch.setattr(
        durable_writes, "sync_file", lambda one, **how: (synced.append(one.name), real(one, **how))
    )
    one = open_lane(path)
    assert synced == [] if since == "nothing" else "zarr.json" in synced
    assert attributes(path)["capacity"] == 1000
    one.reset([1, 2, 3])
    one.step(0, 0.0, [4, 5, 6])
    kill(one)
    again = open_lane(path)
    assert again.rows == 1
    again.close()
    assert zarr.open_group(path, mode="r")["finals/frames"][:].tolist() == [[4, 5, 6]]
