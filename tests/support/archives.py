"""Stores to push, what is in them, and storage that fails at a request."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from tests.support.numbered_steps import ACTION, CODECS, play
from tests.support.writers import make_lanes

KINDS = [f"{frames}, {lanes}" for frames in CODECS for lanes in ("one", "vector", "named")]
_COLUMNS = (
    "observation next_observation action reward discount non_terminal id terminated truncated"
)


def begin(path, kind, n_steps=100, **more):
    """A writer of a store of this kind that has written some steps."""
    writer: Any
    frames, lanes = kind.split(", ")
    common = {"frame": CODECS[frames], "action": ACTION} | more
    if lanes == "named":
        writer, width = make_lanes(Path(path), n_lanes=2, **common), 2
    else:
        width = 3 if lanes == "vector" else None
        writer = mmreplay.create(path, lanes=width, flush_s=0, **common)
    play(writer, n_steps, width)
    return writer, width


def write(path, kind="lz4, one", n_steps=100, **more):
    """A closed store of this kind."""
    writer, _ = begin(path, kind, n_steps, **more)
    writer.close()


def contents(path):
    """Every transition of a store, and its episodes: what an archive has to carry."""
    with mmreplay.load(path, stack=2, n_step=3) as data:
        batch = data.transitions(data.ids)
        return [np.array(getattr(batch, name)) for name in _COLUMNS.split()], data.episodes.tolist()


def assert_same(path, other):
    """Two stores have the same transitions, and the second is sound."""
    (columns, episodes), (found, others) = contents(path), contents(other)
    for name, one, two in zip(_COLUMNS.split(), columns, found, strict=True):
        np.testing.assert_array_equal(one, two, err_msg=name)
    assert others == episodes
    assert mmreplay.verify(other).findings == []


class Requests:
    """Counts the requests of obstore; with `most` those after it fail, as if the line were cut."""

    def __init__(self, monkeypatch):
        import obstore

        self.names, self.most, self.refused = [], None, None
        self._lock = threading.Lock()
        for name in ("get", "put", "list", "delete", "head"):
            monkeypatch.setattr(obstore, name, self._counted(name, getattr(obstore, name)))

    def _counted(self, name, call):
        from obstore.exceptions import GenericError

        def counted(store, *arguments, **more):
            with self._lock:
                if self.most is not None and len(self.names) >= self.most:
                    raise GenericError("cut off")
                self.names.append(name)
            return call(store, *arguments, **more)

        return counted

    @contextlib.contextmanager
    def cut_after(self, most):
        """Let so many requests through; yields nothing."""
        self.names, self.most = [], most
        try:
            yield
        finally:
            self.most = None
