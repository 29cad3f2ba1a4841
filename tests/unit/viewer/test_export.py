"""A copy of the page for static hosts: its files are the answers of the server."""

import errno
import json

import numpy as np
import pytest

import mmreplay
from mmreplay import DiskFullError, FailedStoreError, Field, SchemaError, StoreExistsError
from mmreplay.viewer import export
from mmreplay.viewer.answers import Answers
from mmreplay.viewer.page import page_files
from tests.support.disks.faults import ALLOCATING, faulty_disk
from tests.support.disks.trees import names
from tests.support.packed import unpack
from tests.support.viewed import FRAME, frame_of, play, record_pictures


@pytest.fixture
def recorded(tmp_path, quick_disk):
    record_pictures(tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def test_everything_that_the_page_asks_for_is_a_file(recorded, tmp_path):
    made = mmreplay.export_view(recorded, tmp_path / "out")
    files = {
        one.relative_to(tmp_path / "out").as_posix(): one.read_bytes()
        for one in (tmp_path / "out").rglob("*")
        if one.is_file()
    }
    assert (made.files, made.n_bytes) == (len(files), sum(map(len, files.values())))
    assert (made.episodes, made.exported_episodes) == (3, 3)
    assert files["index.html"] == page_files()["index.html"].body
    assert files["static/app.js"] == page_files()["app.js"].body
    about = json.loads(files["data/stores.json"])
    assert about["is_static"] is True
    assert about["stores"][0]["exported"] == ["0", "9", "30"]
    version = about["stores"][0]["head"]["version"]
    with mmreplay.open(recorded) as store:
        frames = files[f"data/0/{version}/episode/9/rows/0/0-22.bin"]
        assert np.array_equal(unpack(frames)[0]["rows"], store.trajectory(1).observation)
    answers = Answers([recorded], is_static=True)
    try:
        assert files["data/0/episodes.bin"] == answers.episodes(0).body
        assert files["data/distributions.json"] == answers.distributions().body
    finally:
        answers.close()
    assert f"data/0/{version}/episode/9/transitions/4/1/0.99/reset/0-21.bin" in files


def test_frames_are_bounded_and_one_episode_may_be_asked_for(recorded, tmp_path):
    made = mmreplay.export_view(recorded, tmp_path / "a", frames=10)
    assert (made.episodes, made.exported_episodes) == (3, 0)
    made = mmreplay.export_view(recorded, tmp_path / "b", frames=32)
    assert made.exported_episodes == 2
    made = mmreplay.export_view(recorded, tmp_path / "c", frames=1, episode=-1)
    about = json.loads((tmp_path / "c" / "data" / "stores.json").read_bytes())
    assert about["stores"][0]["exported"] == ["30"]
    assert about["start"] == {"store": 0, "episode": "30"}
    with pytest.raises(SchemaError, match="there are 3 whole episodes"):
        mmreplay.export_view(recorded, tmp_path / "d", episode=3)


def while_chosen(monkeypatch, call):
    """Let something happen to the store after the export has looked at its episodes."""
    choose = export.evenly_chosen
    monkeypatch.setattr(export, "evenly_chosen", lambda *given: (call(), choose(*given))[1])


def test_a_store_that_is_written_meanwhile_is_shown_as_it_was(tmp_path, quick_disk, monkeypatch):
    writer = record_pictures(tmp_path / "s.zarr", episodes=[(70, "")], close=False)
    while_chosen(monkeypatch, lambda: writer.step(0, 0.0, frame_of(FRAME, 5)))
    mmreplay.export_view(tmp_path / "s.zarr", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "data" / "stores.json").read_bytes())["stores"][0]
    assert about["head"]["state"] == "copied while it was written"
    table, _ = unpack((tmp_path / "out" / "data" / "0" / "episodes.bin").read_bytes())
    assert table["length"].tolist() == [70]
    rows = tmp_path / "out" / "data" / "0" / about["head"]["version"] / "episode" / "0" / "rows"
    assert {one.name for one in (rows / "0").iterdir()} == {"0-64.bin", "64-71.bin"}
    assert [one.name for one in (rows / "1").iterdir()] == ["0-70.bin"]
    writer.close()


def test_what_is_evicted_meanwhile_is_left_out(tmp_path, quick_disk, monkeypatch):
    frame = Field((2, 2), "uint8", "raw", chunk=8)
    episodes = [(6, "terminated")] * 40
    writer = record_pictures(
        tmp_path / "s.zarr", frame=frame, episodes=episodes, capacity=20, close=False
    )
    with mmreplay.open(tmp_path / "s.zarr") as store:
        before = store.episodes["id"].tolist()
    while_chosen(monkeypatch, lambda: play(writer, frame, 6, "terminated"))
    made = mmreplay.export_view(tmp_path / "s.zarr", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "data" / "stores.json").read_bytes())["stores"][0]
    left = [int(one) for one in about["exported"]]
    assert 0 < len(left) < len(before) == made.episodes - 1  # two steps are left of another one
    assert left == before[-len(left) :]
    assert made.exported_episodes == len(left)
    files = [one for one in (tmp_path / "out").rglob("*") if one.is_file()]
    assert (made.files, made.n_bytes) == (len(files), sum(one.stat().st_size for one in files))
    writer.close()


def test_a_folder_that_exists_is_left_alone(recorded, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreExistsError, match="already exists; choose another path"):
        mmreplay.export_view(recorded, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_is_told_of_the_folder_and_leaves_nothing(recorded, tmp_path):
    for number, kind, text in [
        (errno.ENOSPC, DiskFullError, "no room on the disk .*; nothing is left behind"),
        (errno.EFBIG, FailedStoreError, "writing .* failed: .*; nothing is left behind"),
    ]:
        with faulty_disk() as disk, pytest.raises(kind, match=f"/out: {text}"):
            disk.fail(ALLOCATING, number, at=20, forever=True)
            mmreplay.export_view(recorded, tmp_path / "out")
        assert names(tmp_path) == ["s.zarr"]


def test_an_interrupt_leaves_nothing(recorded, tmp_path, monkeypatch):
    def interrupt():
        assert len(names(tmp_path)) == 2
        raise KeyboardInterrupt

    while_chosen(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        mmreplay.export_view(recorded, tmp_path / "out")
    assert names(tmp_path) == ["s.zarr"]


def test_a_store_is_no_place_for_it(recorded):
    with pytest.raises(SchemaError, match="lies within the store"):
        mmreplay.export_view(recorded, recorded / "page")
    assert mmreplay.verify(recorded).sound
