"""Maps whose every store is a call that matters: a process may die between two of them."""

from typing import Any, Protocol

import numpy as np


class Counting(Protocol):
    def begin(self, name):
        """A call of this name is about to be made."""


class CountedStores(np.ndarray[Any, Any]):
    """A map whose every store is a call that matters; so are those of every view of it."""

    _disk = None

    def __array_finalize__(self, parent):
        self._disk = getattr(parent, "_disk", None)

    def __setitem__(self, key, value):
        if self._disk is not None:
            self._disk.begin("store")
        super().__setitem__(key, value)

    @property
    def data(self):
        """As of any array, but for the stores."""
        return _CountedCells(np.ndarray.data.__get__(self), self._disk)


class _CountedCells:
    """What `CountedStores` is for arrays, for the memoryview of one."""

    __slots__ = ("_cells", "_disk")

    def __init__(self, cells, disk):
        self._cells, self._disk = cells, disk

    def __getitem__(self, key):
        return self._cells[key]

    def __setitem__(self, key, value):
        if self._disk is not None:
            self._disk.begin("store")
        self._cells[key] = value
