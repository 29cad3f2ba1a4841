"""What the tests of datasets share."""

import threading

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.reading.lookup import Lookup
from tests.support.numbered_steps import ACTION, CODECS, play


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A closed store of 30 transitions in 5 episodes, to be loaded with settings."""
    frame = np.zeros(3, np.uint8)
    path = tmp_path_factory.mktemp("shared") / "store.zarr"
    fields = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}
    with mmreplay.create(path, **fields, flush_s=0) as writer:
        for row in range(0, 35, 7):
            writer.reset(frame + row)
            for step in range(1, 7):
                writer.step(row, row / 4 + step, frame + row + step, terminated=step == 6)
    return lambda **settings: mmreplay.load(path, **settings)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """The path of a closed store, by codec and kind of lanes."""
    folder, known = tmp_path_factory.mktemp("closed"), {}

    def path(codec, lanes):
        name = folder / f"{codec} {lanes}.zarr"
        if name not in known:
            known[name] = True
            given = {"frame": CODECS[codec], "action": ACTION, "flush_s": 0}
            more = {"vector": [{"lanes": 3}], "named lanes": [{"lane": "a"}, {"lane": "b"}]}
            for number, extra in enumerate(more.get(lanes, [{}])):
                with mmreplay.create(name, **given, **extra) as writer:
                    play(writer, 40 - 9 * number, extra.get("lanes"))
        return name

    return path


@pytest.fixture
def readers(monkeypatch):
    """The names of the threads that read what was drawn ahead."""
    names, fetch = [], Lookup.fetch

    def noted(located, out=None):
        names.append(threading.current_thread().name)
        return fetch(located, out)

    monkeypatch.setattr(Lookup, "fetch", noted)
    return names
