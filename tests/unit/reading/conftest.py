"""Vector lanes written by hand, and openings in which something happens."""

import dataclasses
import threading

import pytest

import mmreplay
from mmreplay import Field
from mmreplay.format import plan
from mmreplay.schema import Schema
from mmreplay.system import checked_reads, memory_maps
from tests.support.oracle.handmade_vectors import HandmadeVector

VECTOR_FIELDS = {
    "raw": Field((3,), "uint8", "raw", chunk=8),
    "lz4": Field((3,), "uint8", "lz4", chunk=4, shard=8),
    "dict": {
        "pixels": Field((2, 3), "uint8", "lz4", chunk=4, shard=8),
        "speed": Field((2,), "float32", "raw", chunk=8),
    },
}


def vector_schema(kind):
    return Schema.make(
        VECTOR_FIELDS[kind],
        Field((), "int64", chunk=8),
        {"x": Field((2,), "float32", chunk=8)},
    )


@pytest.fixture
def vector(tmp_path, quick_disk):
    """Make a vector lane in the test's folder: `vector(kind, width, n_ticks, **settings)`.

    It is live, its ticks and its starts committed; chunk files are short.
    """

    def make(kind="raw", width=3, n_ticks=60, name="run.zarr", seed=0, **settings):
        schema = vector_schema(kind)
        lane = HandmadeVector(
            tmp_path / name,
            schema,
            width,
            seed=seed,
            **({"specs": short(schema, width)} | settings),
        )
        lane.play(n_ticks)
        lane.commit()
        return lane

    return make


def short(schema, width):
    """Arrays in chunk files of 8 ticks; of those that are not the user's, too."""
    ticks = plan.plan_ticks(schema, width, None)
    starts = plan.plan_starts(schema)
    for path in ("ends", "episode", "count"):
        ticks[path] = dataclasses.replace(ticks[path], chunk_rows=16)
    for path, spec in starts.items():
        length = 8 if spec.is_raw else spec.inner_rows * 2
        starts[path] = dataclasses.replace(spec, chunk_rows=length)
    return {"ticks": ticks, "starts": starts}


@pytest.fixture
def between_reads(monkeypatch):
    """Open a store; just before the `at`-th read of its files, something happens."""

    def open_store(path, at, happens):
        count, mine = [0], threading.current_thread()

        def watch(real):

            def call(*args, **kwargs):
                if threading.current_thread() is mine:
                    count[0] += 1
                    if count[0] == at:
                        happens()
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(checked_reads, "read_bytes", watch(checked_reads.read_bytes))
            patch.setattr(memory_maps, "map_file", watch(memory_maps.map_file))
            store = mmreplay.open(path)
        assert count[0] >= at
        return store

    return open_store
