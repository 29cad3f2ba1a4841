"""What others do to the stores of a history meanwhile: they move, copy and restore them.

Invariant: what they do is done at once, and durable; no file is restored while a writer maps it. A
copy that is restored holds what its source held at one moment or at two, between which no
checkpoint was written: what is promised of it is then what is promised after a power cut.
"""

import dataclasses
import os
import random
from pathlib import Path
from typing import NamedTuple

from tests.support.power_cut.contents import Contents

_AT_WORK = 0.4  # of histories
_CHANCES = 0.003, 0.02  # at a call of an opening, and of an open writer
_MOST_STORES = 3

Files = dict[str, bytes]


class _Copied(NamedTuple):
    """A copy of a store, made file by file, and what has to be in it."""

    files: Files
    contents: Contents
    flushed: int


@dataclasses.dataclass(slots=True, eq=False)
class KnownStore:
    """A store of a history, and what has to be found in it."""

    path: Path  # where it is now
    contents: Contents  # every row that may be in it
    number: int = 0  # of the stores of a history: what is written to another one differs
    flushed: int = 0  # rows, or ticks, that a power cut may not take
    returned: int = 0  # those that a kill may not take: what `step` or `reset` returned from
    # since the last opening that went through; else flushed rows are what counts
    powered: bool = True
    is_closed: bool = False  # what the life before left
    # whether a copy was written over it since the last opening that went through
    is_restored: bool = False
    copied: _Copied | None = None  # what somebody copied of it, file by file
    # whether that was since the last power cut: it may be mistaken for the original
    is_copy_new: bool = False
    # what somebody has copied of it so far, and of which checkpoint
    begun: tuple[Files, Files] | None = None

    @property
    def least(self):
        """As many rows have to be in it."""
        return self.returned if self.powered else self.flushed


class Others:
    """Whoever else has to do with the stores of a history."""

    def __init__(self, root, seed, store, *, at_work=None):
        # Their own, so that histories without them are as they were.
        self._luck = random.Random(f"others of {seed}")
        by_chance = self._luck.random() < _AT_WORK
        self.at_work = by_chance if at_work is None else at_work
        self.stores = [store]
        self.moves = self.links = self.restores = 0
        self._n_stores = 1
        self._due = 0  # calls until the second half of a copy is made
        self._strangers = {}  # at paths that stores had once
        self._places = [store.path.with_name(name) for name in ("s.zarr", "t.zarr", "u.zarr")]
        if self.at_work:
            (root / "d").mkdir()
            self._places += [root.joinpath("d", name) for name in ("s.zarr", "t.zarr")]

    def meanwhile(self, store, look, *, opened):
        """At a call of the code under test, which writes to a store: maybe something."""
        luck = self._luck.random()
        if self._due and store.begun is not None:
            self._due -= 1
            if not self._due:
                self._copy(store)
        if luck > _CHANCES[opened] or not store.path.exists():
            return
        pick = self._luck.random()
        if pick < 0.25:
            self._move(store)
        elif pick < 0.4:
            self._link(store)
        elif pick < 0.8:
            if store.begun is None:
                self._copy(store)
        else:
            self._meddle(store, look)

    def between_lives(self, store, look):
        """While nobody writes, after a crash; returns the store that is written next."""
        self.check_strangers()
        if not store.path.exists():  # lost with the power, before it was durable
            return store
        if store.copied is not None and self._luck.random() < (0.7 if store.is_copy_new else 0.1):
            self._restore(store)
        elif self._luck.random() < 0.1:
            self._luck.choice((self._move, self._link, self._copy))(store)
        elif self._luck.random() < 0.1:
            self._meddle(store, look)
        following = self._luck.choice(self.stores) if self._luck.random() < 0.4 else store
        if following is not store:
            # Killed before a copy's own file had its name for good, and with the power the shared
            # one comes back, which the next store has written in place by then. In a journal the
            # first fsync of the next opening makes all earlier names durable, and so does this.
            self.disk.others_sync_names()
        return following

    def lose_power(self):
        """It went: only what was flushed counts."""
        for store in self.stores:
            store.powered = False
            store.begun, store.is_copy_new = None, False

    def check_strangers(self):
        """What stands where a store once was has not changed."""
        for path, files in self._strangers.items():
            if _read(path) != files:
                raise AssertionError(f"{path}: another store was changed")

    # ------------------------------------------------------------ what they do

    def _move(self, store):
        """Rename it; often another store gets its old path then."""
        free = self._free()
        if not free:
            return
        old, store.path = store.path, self._luck.choice(free)
        self.disk.others_move(os.fspath(old), os.fspath(store.path))
        self.moves += 1
        if self._luck.random() < 0.6:
            # Of the same files, so that whoever looks one up by name finds it.
            self._strangers[old] = _read(store.path)
            self._write(old, self._strangers[old])

    def _link(self, store):
        """``cp -al``."""
        free = self._free()
        if not free or len(self.stores) == _MOST_STORES:
            return
        path = self._luck.choice(free)
        self.disk.others_link(os.fspath(store.path), os.fspath(path))
        copy = KnownStore(path, store.contents.copy(), self._n_stores, store.flushed, store.flushed)
        copy.powered, copy.is_closed = False, store.is_closed
        self.stores.append(copy)
        self._n_stores += 1
        self.links += 1

    def _copy(self, store):
        """``cp -r``, some of the files now, and the others somewhat later."""
        files = _read(store.path)
        stamp = {name: data for name, data in files.items() if name in _STAMP}
        if store.begun is not None and store.begun[0] == stamp:
            files |= store.begun[1]
            store.copied = _Copied(files, store.contents.copy(), store.flushed)
            store.begun, store.is_copy_new = None, True
        else:
            first = 0.5 if self._luck.random() < 0.3 else 0.9  # most before the state page
            part = {
                name: data
                for name, data in files.items()
                if self._luck.random() < (1 - first if name.endswith(".live/state") else first)
            }
            store.begun = stamp, part
            self._due = self._luck.randrange(1, 150)

    def _restore(self, store):
        """``cp -r copy/. store/``: it is written over what is there, which stays if it is more."""
        if store.copied is None:
            return
        for other in [one for one in self.stores if one is not store]:
            self._remove(other)  # its files would be overwritten, too
        self._write(store.path, store.copied.files)
        self.disk.others_sync_names()  # of those, too, that were there already
        store.contents, store.flushed = store.copied.contents.copy(), store.copied.flushed
        store.powered = store.is_closed = False
        store.is_restored, store.is_copy_new, store.begun = True, False, None
        self.restores += 1

    def _meddle(self, store, look):
        """Read, move, copy or remove another store, or whatever stands at an old path."""
        if self._strangers and self._luck.random() < 0.5:
            self.check_strangers()
            path = self._luck.choice(sorted(self._strangers))
            del self._strangers[path]
            self.disk.others_remove(os.fspath(path))
            return
        rest = [one for one in self.stores if one is not store and one.path.exists()]
        if rest:
            self._luck.choice((look, look, self._move, self._link, self._remove))(
                self._luck.choice(rest)
            )

    def _remove(self, store):
        self.disk.others_remove(os.fspath(store.path))
        self.stores.remove(store)

    def _free(self):
        return [path for path in self._places if not path.exists()]

    def _write(self, path, files):
        """Files in a directory, over those that are there."""
        for name, data in files.items():
            where = path / name
            missing = [one for one in where.parents if not one.exists()]
            for folder in reversed(missing):
                self.disk.others_make(os.fspath(folder))
            self.disk.others_write(os.fspath(where), data)


_STAMP = {log + name for log in ("", "finals/") for name in ("zarr.json", ".live/checkpoint")}
"""What changes with all that is not only added to."""


def _read(path):
    """Every file in a directory and below, by its path there."""
    out = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                out[os.path.relpath(file.name, path)] = file.read()
    return out
