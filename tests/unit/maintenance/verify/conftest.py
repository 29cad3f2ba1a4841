"""Closed stores for `verify`, made once, of which a test gets a copy."""

import shutil

import pytest

from mmreplay import Field

ACTION = Field((), "uint8", chunk=8)
LOG_PROB = {"log_prob": Field((), "float32", chunk=8)}


@pytest.fixture(scope="module")
def made_once():
    """Closed stores that a test may copy, by a name."""
    return {}


@pytest.fixture
def copy_of(made_once, tmp_path, tmp_path_factory):
    """A copy, in the test's folder, of a store that is made once: `copy_of(name, make_it)`."""

    def copy(name, make_it):
        if name not in made_once:
            path = make_it()
            made_once[name] = path.rename(tmp_path_factory.mktemp("once") / path.name)
        return shutil.copytree(made_once[name], tmp_path / made_once[name].name)

    return copy


@pytest.fixture
def closed_store(copy_of, make, story, kinds):
    """A closed store of 33 rows: `closed_store(kind)`."""

    def create(kind):
        def make_it():
            writer = make(frame=kinds[kind], action=ACTION, extras=LOG_PROB)
            story.play_every_end(writer)
            writer.close()
            return writer.path

        return copy_of(kind, make_it)

    return create


@pytest.fixture
def closed(kind, closed_store):
    """A closed store of 33 rows, of each kind of frames."""
    return closed_store(kind)


@pytest.fixture
def lz4_store(closed_store):
    return closed_store("lz4")


@pytest.fixture
def evicted(copy_of, make, story, kinds):
    """A closed store whose oldest rows are gone."""

    def make_it():
        writer = make(frame=kinds["lz4"], action=ACTION, capacity=20)
        for _ in range(20):
            story.play(writer, 9, "terminated")
        writer.close()
        return writer.path

    return copy_of("evicted", make_it)
