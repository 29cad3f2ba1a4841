"""Stores for `repair`, made once, of which a test gets a copy."""

import shutil

import pytest

from mmreplay import Field
from mmreplay.reading import lane_reader

ACTION = Field((), "int64", chunk=8)
EXTRAS = {"log_prob": Field((2,), "float32", chunk=8)}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """A reader does not wait for a damaged file to become whole."""
    monkeypatch.setattr(lane_reader, "_PATIENCE_S", 0)


@pytest.fixture
def open_store(make, story, kinds):
    """The writer of a store of 80 steps a lane and round."""

    def create(kind="lz4", lanes=None, *, capacity=None, rounds=1):
        several = {} if lanes is None else {"n_lanes": lanes}
        writer = make(frame=kinds[kind], action=ACTION, extras=EXTRAS, capacity=capacity, **several)
        for _ in range(rounds):
            story.play(writer, 9, "terminated")
            story.play(writer, 14, "truncated")
            story.play(writer, 18, "terminated")
            story.play(writer, 22, "truncated")
            story.play(writer, 17)
        return writer

    return create


@pytest.fixture(scope="module")
def closed_stores():
    """The stores that `closed_store` has made, and their story, by its arguments."""
    return {}


@pytest.fixture
def closed_store(open_store, closed_stores, story, tmp_path, tmp_path_factory):
    """The path of such a store, closed; made once, then copied with its story."""

    def create(*arguments, name="store.zarr", **given):
        path, key = tmp_path / "store.zarr", (*arguments, *given.items())
        if key not in closed_stores:
            open_store(*arguments, **given).close()
            sound = path.rename(tmp_path_factory.mktemp("closed") / "store.zarr")
            rows = {lane.relative_to(path): rows for lane, rows in story.lanes.items()}
            closed_stores[key] = sound, rows
        sound, rows = closed_stores[key]
        target = tmp_path / name
        for lane in rows:
            story.lanes[target / lane] = [dict(row) for row in rows[lane]]
        return shutil.copytree(sound, target)

    return create


@pytest.fixture
def killed_store(open_store, kill):
    """The path of such a store as a kill left it, with all checksums of finished chunk files."""

    def create(*arguments, **given):
        writer = open_store(*arguments, **given)
        writer.flush()
        for one in getattr(writer, "writers", (writer,)):
            one._background.finish_tasks()
        kill(writer)
        return writer.path

    return create
