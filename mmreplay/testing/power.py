"""A disk that loses power: of what was not synced, any mixture of versions survives.

Invariant: after a cut every file and directory holds what was synced last, and, one without regard
to another: of each 512 bytes written since any version they had since then, of the length any
length, of the changes of names any selection, but those of one move together. What was being
overwritten by `write` at that moment may be garbage. The files themselves are real ones; this
remembers what of them was synced.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import numpy as np
import numpy.typing as npt

from mmreplay import files, maps

__all__ = ["PowerDisk", "power_disk"]

_SECTOR_BYTES = 512
_CHANGES = {"replace", "rename", "unlink", "rmdir", "link"}
_SYNCS = {"fsync", "fdatasync"}
_WATCHED = _CHANGES | _SYNCS | {"open", "makedirs", "write", "posix_fallocate"}

Bytes = npt.NDArray[np.uint8]
Version = TypeVar("Version")


class _File:
    """Every version of a file since it was synced."""

    __slots__ = ("lengths", "maps", "newest", "sectors", "torn")

    def __init__(self, durable: bytes) -> None:
        self.newest = durable
        self.lengths = [len(durable)]
        self.sectors: dict[int, list[bytes]] = {}  # of those that changed, the synced one first
        self.torn: tuple[int, int] | None = None  # [start, stop) overwritten by `write` since
        self.maps: list[Bytes] = []  # through which it may change without a call

    def observe(self, data: bytes) -> None:
        """It reads like this now."""
        old, self.newest = self.newest, data
        if len(data) != len(old):
            self.lengths.append(len(data))
        for start in range(0, max(len(data), len(old)), _SECTOR_BYTES):
            before = old[start : start + _SECTOR_BYTES]
            after = data[start : start + _SECTOR_BYTES]
            if before != after:
                self.sectors.setdefault(start, [before]).append(after)

    def overwrite(self, data: bytes) -> None:
        """`write` has stored so much of what it was to store, from where it was to begin."""
        start = self.torn[0] if self.torn is not None else 0
        old = self.newest.ljust(start, b"\0")
        self.observe(old[:start] + data + old[start + len(data) :])

    def sync(self) -> None:
        """What it reads like now is durable."""
        self.lengths = [len(self.newest)]
        self.sectors.clear()
        self.torn = None

    def survivor(self, luck: _Luck) -> bytes:
        """What a cut leaves of it."""
        length = luck.version(self.lengths)
        out = bytearray(self.newest[:length].ljust(length, b"\0"))
        for start, versions in self.sectors.items():
            if start < length:
                room = min(_SECTOR_BYTES, length - start)
                out[start : start + room] = luck.version(versions)[:room].ljust(room, b"\0")
        if self.torn is not None and luck.tears():
            start, stop = self.torn
            out[start:stop] = luck.garbage(len(out[start:stop]))
        return bytes(out)


class _Luck:
    """What survives a cut: the oldest, the newest, or any version of everything."""

    def __init__(self, luck: random.Random | None) -> None:
        self._luck = luck or random.Random()
        self._mood = 0 if luck is None else luck.randrange(4)

    def version(self, versions: list[Version]) -> Version:
        if self._mood < 2:  # noqa: PLR2004 (0 all old, 1 all new, else any)
            return versions[-self._mood]
        return self._luck.choice(versions)

    def happened(self) -> bool:
        return self.version([False, True])

    def tears(self) -> bool:
        return self._mood > 1 and self._luck.random() < 0.5  # noqa: PLR2004

    def garbage(self, length: int) -> bytes:
        return self._luck.randbytes(length)


class _Entry(NamedTuple):
    """A name in a directory: what it stands for from a call on; None if nothing."""

    directory: int
    name: str
    uid: int | None


class PowerDisk:
    """Stands in for the module `os` within `mmreplay.files`, and remembers what was synced.

    Args:
        root: everything below it is watched; what is there is durable.
        before_call: called with the number of each call that matters, before it is made.

    Attributes:
        calls: names of the calls that mattered, in order; the first is number 1.
    """

    def __init__(self, root: Path, before_call: Callable[[int], None]) -> None:
        self._root = str(root)
        self._before_call = before_call
        self._lock = threading.RLock()
        self.calls: list[str] = []
        self._next = 0
        self._opened: dict[int, str] = {}  # paths by descriptor
        self._forget()

    def _forget(self) -> None:
        """All that is there is durable."""
        # Files and directories get a number when they are first touched: inodes are used again.
        self._uids: dict[int, int] = {}  # by inode
        self._places: dict[str, int] = {}  # by path, of those that were looked up
        self._files: dict[int, _File] = {}
        self._synced: dict[int, dict[str, int]] = {}  # of each directory, its durable names
        self._newest: dict[int, dict[str, int]] = {}  # and those that it has now
        self._pending: list[list[_Entry]] = []  # calls whose names are not durable yet, in order
        self._mapped: list[_File] = []

    def __getattr__(self, name: str) -> Any:
        """What `os` has; calls that matter are watched."""
        found = getattr(os, name)
        if name not in _WATCHED:
            self.__dict__[name] = found  # asked for thousands of times a second
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                descriptor = found(*args, **kwargs)
                self._opened[descriptor] = os.fspath(args[0])
                return descriptor
            with self._lock:
                self.begin(name)
                entries = self._entries(name, args)
                if name == "write":
                    self._overwrite(*args)
                out = found(*args, **kwargs)
                self._finish(name, args, out, entries)
                return out

        self.__dict__[name] = call
        return call

    def begin(self, name: str) -> None:
        """A call that matters is about to be made: the power may go now."""
        self._observe_maps()
        self.calls.append(name)
        self._before_call(len(self.calls))

    # ------------------------------------------------------------ what is where

    def _inside(self, path: str) -> bool:
        return path.startswith(self._root)

    def _uid(self, path: str) -> int:
        uid = self._places.get(path)
        if uid is None:
            inode = os.lstat(path).st_ino
            uid = self._uids.get(inode)
            uid = self._places[path] = self._new_uid(inode) if uid is None else uid
        return uid

    def _new_uid(self, inode: int) -> int:
        self._next += 1
        self._uids[inode] = self._next
        return self._next

    def _directory(self, path: str) -> int:
        """Know a directory and those above it; what was not known yet is durable."""
        uid = self._uid(path)
        if uid not in self._newest:
            if path != self._root:
                self._directory(os.path.dirname(path))
            names = {name: self._uid(f"{path}/{name}") for name in os.listdir(path)}
            self._synced[uid], self._newest[uid] = names, dict(names)
        return uid

    def _file(self, path: str) -> _File:
        """Know a file and the directories above it; what was not known yet is durable."""
        uid = self._uid(path)
        if uid not in self._files:
            self._directory(os.path.dirname(path))
            self._files[uid] = _File(_read(path))
        return self._files[uid]

    def _know(self, path: str) -> int:
        """Know whatever stands at a path, and all below it: its place is about to change."""
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            self._file(path)
            return self._uid(path)
        uid = self._directory(path)
        for name in self._newest[uid]:
            self._know(f"{path}/{name}")
        return uid

    # ------------------------------------------------------------ what calls change

    def _entries(self, name: str, args: tuple[Any, ...]) -> list[_Entry]:
        """The names that a call will change, as far as they are there before it."""
        if name in {"open", "makedirs"}:
            path, fresh = os.fspath(args[0]), []
            while not os.path.lexists(path):
                fresh.append(path)
                path = os.path.dirname(path)
            if name == "makedirs" or fresh:
                self._directory(path)
            else:
                self._file(path)
            # Their numbers follow once they are there.
            return [_Entry(0, one, None) for one in reversed(fresh)]
        if name in {"unlink", "rmdir"}:
            path = os.fspath(args[0])
            if not os.path.lexists(path):
                return []  # the call will say so
            self._know(path)
            return [self._entry(path, None)]
        if name in {"replace", "rename", "link"}:
            source, target = map(os.fspath, args)
            uid = self._know(source)
            if os.path.lexists(target):
                self._know(target)
            gone = [] if name == "link" else [self._entry(source, None)]
            return [*gone, self._entry(target, uid)]
        return []

    def _entry(self, path: str, uid: int | None) -> _Entry:
        folder, name = os.path.split(path)
        return _Entry(self._directory(folder), name, uid)

    def _overwrite(self, descriptor: int, data: bytes) -> None:
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        self._file(self._opened[descriptor]).torn = (start, start + len(data))

    def _finish(self, name: str, args: tuple[Any, ...], out: Any, entries: list[_Entry]) -> None:
        if name in {"open", "makedirs"}:
            entries = [self._made(one.name, is_file=name == "open") for one in entries]
        if name == "open":
            path = self._opened[out] = os.fspath(args[0])
            if args[1] & os.O_TRUNC:
                self._file(path).observe(b"")
        elif name == "write":
            self._file(self._opened[args[0]]).overwrite(bytes(args[1][:out]))
        elif name == "posix_fallocate":
            file = self._file(self._opened[args[0]])
            file.observe(file.newest.ljust(args[1] + args[2], b"\0"))
        elif name in _SYNCS:
            self._sync(self._opened[args[0]])
        for one in [[entry] for entry in entries] if name == "makedirs" else [entries]:
            self._rename(one)

    def _made(self, path: str, *, is_file: bool) -> _Entry:
        uid = self._new_uid(os.lstat(path).st_ino)
        if is_file:
            self._files[uid] = _File(b"")
        else:
            self._synced[uid], self._newest[uid] = {}, {}
        return self._entry(path, uid)

    def _rename(self, entries: list[_Entry]) -> None:
        for one in entries:
            names = self._newest[one.directory]
            names.pop(one.name, None)
            if one.uid is not None:
                names[one.name] = one.uid
        if entries:
            self._pending.append(entries)
            self._places.clear()

    def _sync(self, path: str) -> None:
        if not self._inside(path):
            return
        if os.path.isdir(path):
            uid = self._directory(path)
            for entries in self._pending:
                # What moves from one directory to another is in one entry of any journal.
                if any(one.directory == uid for one in entries):
                    self._apply(entries, self._synced)
            self._synced[uid] = dict(self._newest[uid])
            self._pending = [
                entries
                for entries in self._pending
                if not any(one.directory == uid for one in entries)
            ]
        else:
            self._file(path).sync()

    @staticmethod
    def _apply(entries: list[_Entry], names: dict[int, dict[str, int]]) -> None:
        for one in entries:
            names[one.directory].pop(one.name, None)
            if one.uid is not None:
                names[one.directory][one.name] = one.uid

    # ------------------------------------------------------------ what does not go through os

    def mapped(self, path: Path, data: Bytes) -> None:
        """A file may change through this map from now on."""
        with self._lock:
            file = self._file(os.fspath(path))
            file.maps.append(data)
            if file not in self._mapped:
                self._mapped.append(file)

    def _observe_maps(self) -> None:
        for file in self._mapped:
            data = file.maps[0].tobytes()
            if data != file.newest:
                file.observe(data)

    def exchange(self, one: Path, other: Path, call: Callable[[Path, Path], bool]) -> bool:
        """Two names change places in one call."""
        with self._lock:
            self.begin("exchange")
            uids = self._know(os.fspath(one)), self._know(os.fspath(other))
            done = call(one, other)
            if done:
                entries = zip((one, other), reversed(uids), strict=True)
                self._rename([self._entry(os.fspath(path), uid) for path, uid in entries])
            return done

    def punch_hole(self, descriptor: int, call: Callable[[], bool]) -> bool:
        """Part of a file becomes zeros."""
        with self._lock:
            self.begin("punch hole")
            path = self._opened[descriptor]
            file = self._file(path)
            done = call()
            file.observe(_read(path))
            return done

    # ------------------------------------------------------------ after the cut

    def image(self, target: Path, luck: random.Random | None = None) -> None:
        """What would be on the disk if the power went now.

        Args:
            target: a new directory, which stands for `root`.
            luck: decides what else than the synced survives; None for nothing.
        """
        with self._lock:
            self._observe_maps()
            shutil.copytree(self._root, target, symlinks=True)
            self._settle(os.fspath(target), _Luck(luck))

    def cut(self, luck: random.Random | None = None) -> None:
        """The power goes and comes back: `root` itself becomes what is on the disk.

        Whoever wrote before must not go on: his maps may be of files that are elsewhere now.
        """
        with self._lock:
            self._observe_maps()
            self._settle(self._root, _Luck(luck))
            self._forget()

    def die(self) -> None:
        """The process goes, and all that it wrote stays: its maps change no more."""
        with self._lock:
            self._observe_maps()
            for file in self._mapped:
                file.maps.clear()
            self._mapped.clear()

    def _settle(self, place: str, luck: _Luck) -> None:
        names = {uid: dict(names) for uid, names in self._synced.items()}
        for entries in self._pending:
            if luck.happened():
                self._apply(entries, names)
        content = {uid: file.survivor(luck) for uid, file in self._files.items()}
        root = self._uid(self._root)
        if root in names:
            self._settle_directory(root, place, names, content)

    def _settle_directory(
        self, uid: int, place: str, names: dict[int, dict[str, int]], content: dict[int, bytes]
    ) -> None:
        newest = self._newest[uid]
        for name in newest.keys() - names[uid].keys():
            _remove(f"{place}/{name}")
        for name, one in names[uid].items():
            path = f"{place}/{name}"
            if newest.get(name) != one:
                if name in newest:
                    _remove(path)
                self._restore(one, path, names, content)
            elif one in names:
                self._settle_directory(one, path, names, content)
            elif one in content and content[one] != self._files[one].newest:
                _write(path, content[one])

    def _restore(
        self, uid: int, path: str, names: dict[int, dict[str, int]], content: dict[int, bytes]
    ) -> None:
        """What a name stood for once, and stands for again."""
        if uid in content:
            _write(path, content[uid])
            return
        os.mkdir(path)
        for name, one in names[uid].items():
            self._restore(one, f"{path}/{name}", names, content)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


class _Stores(np.ndarray[Any, Any]):
    """A map whose every store is a call that matters; so are those of every view of it."""

    _disk: PowerDisk | None = None

    def __array_finalize__(self, parent: Any) -> None:
        self._disk = getattr(parent, "_disk", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._disk is not None:
            self._disk.begin("store")
        super().__setitem__(key, value)

    @property
    def data(self) -> Any:
        """As of any array, but for the stores."""
        return _Cells(np.ndarray.data.__get__(self), self._disk)


class _Cells:
    """What `_Stores` is for arrays, for the memoryview of one."""

    __slots__ = ("_cells", "_disk")

    def __init__(self, cells: memoryview, disk: PowerDisk | None) -> None:
        self._cells, self._disk = cells, disk

    def __getitem__(self, key: int) -> Any:
        return self._cells[key]

    def __setitem__(self, key: int, value: Any) -> None:
        if self._disk is not None:
            self._disk.begin("store")
        self._cells[key] = value


@contextlib.contextmanager
def power_disk(
    root: Path, before_call: Callable[[int], None], *, stores: bool = False
) -> Iterator[PowerDisk]:
    """Put a `PowerDisk` between the package and the operating system.

    Args:
        root: as of `PowerDisk`.
        before_call: as of `PowerDisk`.
        stores: whether each store into a map is a call that matters, too.
    """
    disk = PowerDisk(root, before_call)
    real_map, real_exchange, real_punch = maps.map_file, files.exchange, files._punch_hole  # noqa: SLF001
    real_put = maps.Reservation.put

    def map_file(path: Path, size: int | None = None, *, writable: bool = False) -> Bytes:
        data = real_map(path, size, writable=writable)
        if not writable:
            return data
        disk.mapped(path, data)
        if not stores:
            return data
        watched = data.view(_Stores)
        watched._disk = disk  # noqa: SLF001
        return watched

    def put(self: maps.Reservation, offset: int, path: Path, size: int) -> None:
        real_put(self, offset, path, size)
        if self.array.flags.writeable:
            disk.mapped(path, self.array[offset : offset + size])

    def punch_hole(descriptor: int, offset: int, length: int) -> bool:
        return disk.punch_hole(descriptor, lambda: real_punch(descriptor, offset, length))

    changed = {
        (files, "os"): disk,
        (maps, "map_file"): map_file,
        (files, "exchange"): lambda one, other: disk.exchange(one, other, real_exchange),
        (files, "_punch_hole"): punch_hole,
        (maps.Reservation, "put"): put,
    }
    with contextlib.ExitStack() as stack:
        for (owner, name), value in changed.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        yield disk
