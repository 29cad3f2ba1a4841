"""Stores for `repair`, made once, of which a test gets a copy."""

import shutil

import pytest

from mmreplay import Field
from mmreplay.reading import lane_reader

ACTION = Field((), "int64", chunk=8)
EXTRAS = {"log_prob": Field((2,), "float32", chunk=8)}
FRAMES = {
    "raw": Field((3,), "uint8", "raw", chunk=8),
    "lz4": Field((3,), "uint8", "lz4", chunk=4, shard=8),
    "dict": {
        "pixels": Field((2, 3), "uint8", "zstd", chunk=4, shard=16),
        "speed": Field((2,), "float32", "raw", chunk=16),
    },
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """A reader does not wait for a damaged file to become whole."""
    monkeypatch.setattr(lane_reader, "_PATIENCE_S", 0)


@pytest.fixture
def open_store(make, story, kinds):
    """The writer of a store of 85 rows a lane and round."""

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


@pytest.fixture
def half_flushed_writer(make, story):
    """The writer of a store of 85 rows a lane, of which the first 66 are flushed."""

    def create(kind="lz4", **given):
        writer = make(
            frame=FRAMES[kind],
            action=Field((), "int64", chunk=8),
            extras={"log_prob": Field((2,), "float32", chunk=8)},
            padding="zero",
            metadata={"id": "Uncertain-v0"},
            **given,
        )
        for n_steps, end in ((9, "terminated"), (14, "truncated"), (18, "terminated"), (21, "")):
            story.play(writer, n_steps, end)
        writer.flush()
        story.play(writer, 18, reset=True)
        return writer

    return create


@pytest.fixture(scope="module")
def half_flushed_stores():
    """What `closed_half_flushed` has made before, by its arguments."""
    return {}


@pytest.fixture
def closed_half_flushed(half_flushed_writer, half_flushed_stores, tmp_path, tmp_path_factory):
    """The path of such a store, closed; made once, then copied."""

    def create(kind="lz4", **given):
        path, key = tmp_path / "store.zarr", (kind, *given.items())
        if key not in half_flushed_stores:
            half_flushed_writer(kind, **given).close()
            half_flushed_stores[key] = path.rename(tmp_path_factory.mktemp("closed") / "store.zarr")
        return shutil.copytree(half_flushed_stores[key], path)

    return create


@pytest.fixture
def killed_half_flushed(half_flushed_writer, kill):
    """The path of such a store as a kill left it, with all checksums of finished chunk files."""

    def create(kind="lz4", **given):
        writer = half_flushed_writer(kind, **given)
        writer._background.finish_tasks()
        kill(writer)
        return writer.path

    return create


@pytest.fixture
def closed_vector(vector):
    """The model of a closed lane of 5 environments and 70 ticks, with short chunk files."""
    model = vector(frame=Field((3,), "float32", "lz4", chunk=2, shard=8))
    model.play(70)
    model.writer.close()
    return model
