"""What a notebook shows of a store, whatever state it is in."""

import html
import re
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.reading import store_cell
from mmreplay.storage.shard_column import ShardColumn


def rows_of(text):
    rows = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", text)
    return {name: html.unescape(value) for name, value in rows}


def captions(text):
    return re.findall(r"<figcaption[^>]*>(.*?)</figcaption>", text)


@pytest.fixture
def pictures(make, story):
    """37 rows, three episodes, the last one runs: frames of 9 x 9, four of them a chunk."""
    writer = make(frame=Field((9, 9), "uint8", "lz4", chunk=4, shard=8), metadata={"id": "<Env>"})
    story.play_every_end(writer)
    return writer


def test_a_live_store(pictures):
    with mmreplay.open(pictures.path) as store:
        text = store._repr_html_()
        assert rows_of(text) == {
            "environment": "<Env>",
            "state": "live",
            "lanes": "1",
            "environments": "1",
            "transitions": "33",
            "frames": "uint8 [9, 9], lz4",
            "actions": "int64, raw",
            "rewards": "float32, raw",
        }
        assert "<Env>" not in text
        assert (captions(text)[0], captions(text)[-1], len(captions(text))) == (
            "row 0",
            "row 35",
            8,
        )
        assert store._repr_png_().startswith(b"\x89PNG")


def test_closed_crashed_and_empty_stores(pictures, kill, make):
    pictures.close()
    with mmreplay.open(pictures.path) as store:
        assert rows_of(store._repr_html_())["state"] == "closed"
    empty = make("empty.zarr")
    with mmreplay.open(empty.path) as store:
        assert rows_of(store._repr_html_())["transitions"] == "0"
        assert store._repr_png_() is None
    kill(empty)
    with mmreplay.open(empty.path) as store:
        assert rows_of(store._repr_html_())["state"] == "crashed"


def test_several_lanes_and_many_environments(make, story):
    writer = make("lanes.zarr", n_lanes=2, frame=Field((9, 9)))
    story.play(writer, 5, "terminated")
    with mmreplay.open(writer.path) as store:
        assert captions(store._repr_html_())[0] == "lane 0, row 0"
    with make("many.zarr", frame=Field((9, 9)), lanes=3) as writer:
        writer.reset(np.zeros((3, 9, 9), np.uint8))
        writer.step([0] * 3, [0] * 3, np.ones((3, 9, 9), np.uint8), [1] * 3, [0] * 3)
    with mmreplay.open(writer.path) as store:
        assert captions(store._repr_html_()) == [f"tick 0, env {number}" for number in range(3)]
    with mmreplay.load([writer.path, writer.path.with_name("lanes.zarr")]) as data:
        assert "2 stores, " in data.store._repr_html_()


def test_evicted_rows_are_not_asked_for(make, story):
    writer = make(frame=Field((9, 9)), capacity=20)
    for _ in range(10):
        story.play(writer, 9, "terminated")
    with mmreplay.open(writer.path) as store:
        assert len(captions(store._repr_html_())) == 8
        assert captions(store._repr_html_())[0] == f"row {store.ids[0]}"


def test_a_damaged_chunk_is_told_in_the_table(pictures, tmp_path):
    pictures.close()
    for shard in (pictures.path / "frames").glob("c.*"):
        shard.write_bytes(bytes(len(shard.read_bytes())))
    with mmreplay.open(pictures.path) as store:
        text = store._repr_html_()
        assert rows_of(text)["transitions"] == "33"
        assert rows_of(text)["frames"].startswith(("uint8", "cannot be shown"))
        assert "cannot be shown: " in text
        assert "c.0" in text
        assert store._repr_png_() is None


def test_a_store_that_was_closed_or_removed(pictures):
    store = mmreplay.open(pictures.path)
    store.close()
    assert "this store was closed" in rows_of(store._repr_html_())["rows"]
    assert store._repr_png_() is None
    pictures.close()
    with mmreplay.open(pictures.path) as store:
        shutil.rmtree(pictures.path)
        assert "Store" in store._repr_html_()


def test_vectors_are_not_read_at_all(make, story, monkeypatch):
    writer = make()
    story.play(writer, 9)
    with mmreplay.open(writer.path) as store:
        monkeypatch.setattr(store.live, "gather", None)
        assert rows_of(store._repr_html_())["frames"] == "uint8 [3], raw"


def test_of_large_chunks_only_two_are_decoded(pictures, monkeypatch):
    read = []
    take = ShardColumn.take
    monkeypatch.setattr(store_cell, "_DECODED_BYTES", 100)
    monkeypatch.setattr(
        ShardColumn, "take", lambda self, ids, *rest: (read.append(ids), take(self, ids, *rest))[1]
    )
    with mmreplay.open(pictures.path) as store:
        assert captions(store._repr_html_()) == ["row 0", "row 35"]
    assert sum(map(len, read)) <= 4
