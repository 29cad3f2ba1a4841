"""A writer of a store, and what must be in it: one of two whose stores have to do with each other.

Invariant: the frames of each party are of values that no other has, so that a row in the wrong
store is noticed; the model moves only with calls that return.
"""

import numpy as np

from mmreplay.reading.store import Store
from mmreplay.schema import Field
from mmreplay.writing.create import create
from tests.support.disks import faults
from tests.support.oracle import checks, disk
from tests.support.oracle.pair import Pair

_VALUES = 4
CODECS = ("lz4", "raw")


def frame_of(codec, environments):
    """A field of frames; raw ones of many environments lie environment by environment."""
    if codec == "raw":
        return Field((3, 4) if environments is None else (64, 64), "uint8", "raw", 8)
    return Field((3, 4), "uint8", codec, 4, 8)


class _Marked(Pair):
    """Frames of few values from `mark` on."""

    mark = 0

    def frame(self):
        one = self.schema.frames["frame"]
        return self.random.integers(self.mark, self.mark + _VALUES, one.shape).astype(one.dtype)


class Party:
    def __init__(self, layout, mark, luck):
        self.layout, self.luck, self.mark = layout, luck, mark
        self.model = layout.model()
        self.writer = None
        self.killed = False
        self._pair = None

    @property
    def lanes(self):
        """The writers of its lanes."""
        return faults.writers_of(self.writer)

    # ------------------------------------------------------------ opening and ending

    def make(self, path):
        self._take(self.layout.create(path))

    def open(self, path):
        """Go on with its store."""
        self._take(create(path, append=True, flush_s=0))

    def _take(self, writer):
        self.writer = writer
        self.model.end_session()
        random = np.random.default_rng(self.luck.randrange(1 << 32))
        self._pair = _Marked(writer, self.model, random)
        self._pair.mark = self.mark

    def close(self):
        self.writer.close()
        self.writer, self.killed = None, False
        self.model.end_session()

    def kill(self):
        faults.kill(self.writer)
        self.writer = None
        self.killed = True  # whoever opens the store next ends the episodes that ran

    def end(self, path):
        """Close, or die and be recovered and closed where the store is then."""
        if self.luck.random() < 0.6:
            self.close()
            return
        self.kill()
        self.open(path())
        self.act()
        self.close()

    # ------------------------------------------------------------ what it does

    def step(self, n_steps):
        """Steps of all environments, some of which may wait before their next episode begins."""
        self._pair.play(n_steps, 0.08, "any")

    def act(self):
        """Some steps, or a flush."""
        if self.luck.random() < 0.3:
            self.writer.flush()
        else:
            self.step(self.luck.randint(1, 9))

    def check(self, path):
        """The store is sound, closed, and has exactly the rows that it must have."""
        self.model.end_session()
        checks.check_verified(path)
        disk.check_closed(path, self.model)
        with Store([path]) as store:
            checks.check_store(store, self.model, most=12)
