"""A disk that loses power: of what was not synced, any mixture of versions survives.

Invariant: after a cut every file and directory holds what was synced last, and, one without regard
to another: of each 512 bytes written since any version they had since then, of the length any
length, of the changes of names any selection, but those of one move together. What was being
overwritten by `write` at that moment may be garbage. The files themselves are real ones; this
remembers what of them was synced.
"""

import contextlib
import errno
import os
import random
import shutil
import stat
import threading
from typing import NamedTuple, TypeVar
from unittest import mock

from mmreplay.system import durable_writes, memory_maps, platform
from mmreplay.system.held_directories import at
from tests.support.power_cut.counted_stores import CountedStores

_SECTOR_BYTES, _PAGE_BYTES = 512, 4096

Version = TypeVar("Version")

_fallocate = platform.fallocate


class _File:
    """Every version of a file since it was synced."""

    __slots__ = ("beyond", "dropped", "lengths", "map", "newest", "sectors", "torn")

    def __init__(self, durable, beyond=0):
        self.newest = durable
        self.beyond = [beyond]  # bytes allocated past the end, the synced ones first
        self.lengths = [len(durable)]
        self.sectors = {}  # of those that changed, the synced one first
        self.dropped = {}  # changed, but clean, as a sync of them failed
        self.torn = None  # [start, stop) overwritten by `write` since
        self.map = None  # through which it may change without a call

    def observe(self, data):
        """It reads like this now."""
        old, self.newest = self.newest, data
        if len(data) != len(old):
            self.lengths.append(len(data))
        for start in range(0, max(len(data), len(old)), _SECTOR_BYTES):
            before = old[start : start + _SECTOR_BYTES]
            after = data[start : start + _SECTOR_BYTES]
            if before != after:
                self.touch(start, start + 1)
                self.sectors.setdefault(start, [before]).append(after)

    def overwrite(self, data):
        """`write` has stored so much of what it was to store, from where it was to begin."""
        start = self.torn[0] if self.torn is not None else 0
        self.touch(start, start + len(data))
        old = self.newest.ljust(start, b"\0")
        self.observe(old[:start] + data + old[start + len(data) :])

    def sync(self):
        """What it reads like now is durable."""
        self.lengths = [len(self.newest)]
        self.beyond = self.beyond[-1:]
        self.sectors.clear()
        if not self.dropped:
            self.torn = None

    def drop(self):
        """A sync failed: the kernel takes all pages for clean, whatever of them is durable."""
        for start, versions in self.sectors.items():
            self.dropped.setdefault(start, versions[:1]).extend(versions[1:])
        self.sectors.clear()

    def touch(self, start, stop):
        """The pages of these bytes are written to: the next sync is of all that is in them."""
        first, last = start // _PAGE_BYTES, (stop - 1) // _PAGE_BYTES
        for one in [one for one in self.dropped if first <= one // _PAGE_BYTES <= last]:
            self.sectors[one] = self.dropped.pop(one)

    @property
    def now(self):
        return self.newest, self.beyond[-1]

    def survivor(self, luck):
        """What a cut leaves of it."""
        beyond = self.beyond[0] if len(self.beyond) == 1 else luck.version(self.beyond)
        changed = self.sectors | self.dropped
        if not changed and len(self.lengths) == 1 and self.torn is None:
            return self.newest, beyond
        length = luck.version(self.lengths)
        out = bytearray(self.newest[:length].ljust(length, b"\0"))
        for start, versions in changed.items():
            if start < length:
                room = min(_SECTOR_BYTES, length - start)
                out[start : start + room] = luck.version(versions)[:room].ljust(room, b"\0")
        if self.torn is not None and luck.tears():
            start, stop = self.torn
            out[start:stop] = luck.garbage(len(out[start:stop]))
        return bytes(out), beyond


class _Luck:
    """What survives a cut: the oldest, the newest, or any version of everything."""

    def __init__(self, luck):
        self._luck = luck or random.Random()
        self._mood = 0 if luck is None else luck.randrange(4)

    def version(self, versions):
        if self._mood < 2:
            return versions[-self._mood]
        return self._luck.choice(versions)

    def happened(self):
        return self.version([False, True])

    def tears(self):
        return self._mood > 1 and self._luck.random() < 0.5

    def garbage(self, length):
        return self._luck.randbytes(length)


class _Entry(NamedTuple):
    """A name in a directory: what it stands for from a call on; None if nothing."""

    directory: int
    name: str
    uid: int | None
    path: str


class PowerDisk:
    """Stands in for the module `os` within `mmreplay.files`, and remembers what was synced."""

    def __init__(self, root, before_call):
        self._root = str(root)
        self._before_call = before_call
        self._lock = threading.RLock()
        self.calls = []
        self.syncs_until_failure = 0
        self._opened = {}  # paths by descriptor
        # Files and directories get a number when they are first seen: inodes are used again.
        self._next = 0
        self._inodes = {}  # of files that were there before, which may be linked
        self._places = {self._root: 0}  # by path, of those that were looked up
        self._files = {}
        self._synced = {}  # of each directory, its durable names
        self._newest = {}  # and those that it has now
        self._pending = []  # calls whose names are not durable yet, in order
        self._mapped = []

    def __getattr__(self, name):
        found = self.__dict__[name] = getattr(os, name)  # asked for thousands of times a second
        return found

    def begin(self, name):
        """A call that matters is about to be made: the power may go now."""
        self._observe_maps()
        self.calls.append(name)
        self._before_call(len(self.calls))

    # ------------------------------------------------------------ what is where

    def _exists(self, path):
        return path in self._places or os.path.lexists(path)

    def _uid(self, path):
        uid = self._places.get(path)
        if uid is None:
            folder, name = os.path.split(path)
            above = self._directory(folder)
            uid = self._newest[above].get(name)
            if uid is None:  # made by nobody who is watched: it is durable
                uid = self._seen(os.lstat(path).st_ino)
                self._newest[above][name] = self._synced[above][name] = uid
            self._places[path] = uid
        return uid

    def _new_uid(self):
        self._next += 1
        return self._next

    def _seen(self, inode):
        """The number of what was there before it was known."""
        return self._inodes.setdefault(inode, self._new_uid())

    def _directory(self, path):
        """Know a directory and those above it; what was not known yet is durable."""
        uid = self._uid(path)
        if uid not in self._newest:
            with os.scandir(path) as found:
                names = {one.name: self._seen(one.inode()) for one in found}
            self._synced[uid], self._newest[uid] = names, dict(names)
        return uid

    def _file(self, path):
        """Know a file and the directories above it; what was not known yet is durable."""
        uid = self._uid(path)
        file = self._files.get(uid)
        if file is None:
            file = self._files[uid] = _File(_read(path))
        return file

    def _know(self, path):
        """Know whatever stands at a path, and all below it: its place is about to change."""
        uid = self._uid(path)
        if self._is_directory(path):
            for name in self._newest[self._directory(path)]:
                self._know(f"{path}/{name}")
        else:
            self._file(path)
        return uid

    def _is_directory(self, path):
        uid = self._uid(path)
        if uid in self._newest or uid in self._files:
            return uid in self._newest
        return stat.S_ISDIR(os.lstat(path).st_mode)

    # ------------------------------------------------------------ the calls of os

    def open(self, path, flags, *mode, dir_fd=None):
        """A call that matters if it may make a file."""
        if not flags & os.O_CREAT:
            descriptor = os.open(path, flags, *mode, dir_fd=dir_fd)
            self._opened[descriptor] = _where(path, dir_fd)
            return descriptor
        with self._lock:
            self.begin("open")
            where = _where(path, dir_fd)  # not before: others may just have moved it
            is_new = not self._exists(where)
            if is_new:
                self._directory(os.path.dirname(where))  # as it is before it has the name
            else:
                self._file(where)
            descriptor = os.open(path, flags, *mode, dir_fd=dir_fd)
            self._opened[descriptor] = where
            if is_new:
                self._move([self._made(where, _File(b""))])
            elif flags & os.O_TRUNC:
                self._file(where).observe(b"")
            return descriptor

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        """A directory gets its name."""
        with self._lock:
            self.begin("mkdir")
            where = _where(path, dir_fd)
            if not self._exists(where) and self._exists(os.path.dirname(where)):
                self._directory(os.path.dirname(where))  # as it is before it has the name
            os.mkdir(path, mode, dir_fd=dir_fd)
            self._move([self._made(where, None)])

    def write(self, descriptor, data):
        """What is overwritten may be torn until it is synced."""
        with self._lock:
            self.begin("write")
            file = self._file(self._opened[descriptor])
            start = os.lseek(descriptor, 0, os.SEEK_CUR)
            file.torn = (start, start + len(data))
            written = os.write(descriptor, data)
            file.overwrite(bytes(data[:written]))
            return written

    def posix_fallocate(self, descriptor, offset, length):
        """Zeros at the end of a file."""
        with self._lock:
            self.begin("posix_fallocate")
            file = self._file(self._opened[descriptor])
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, offset, length)
            else:  # macOS has none
                os.truncate(descriptor, max(offset + length, len(file.newest)))
            file.observe(file.newest.ljust(offset + length, b"\0"))

    def fsync(self, descriptor):
        """What a file holds, or the names of a directory, are durable: on this disk only."""
        with self._lock:
            self.begin("fsync")
            self._sync(self._opened[descriptor])

    def fdatasync(self, descriptor):
        with self._lock:
            self.begin("fdatasync")
            self._sync(self._opened[descriptor])

    def unlink(self, path, *, dir_fd=None):
        self._remove("unlink", path, dir_fd)

    def rmdir(self, path, *, dir_fd=None):
        self._remove("rmdir", path, dir_fd)

    def _remove(self, name, path, dir_fd):
        with self._lock:
            self.begin(name)
            where = _where(path, dir_fd)
            entries = []
            if self._exists(where):  # or the call will say so
                self._know(where)
                entries = [self._entry(where, None)]
            getattr(os, name)(path, dir_fd=dir_fd)
            self._move(entries)

    def rename(self, source, target, **folders):
        """A name goes and another comes, in one entry of the journal."""
        self._give("rename", source, target, **folders)

    def replace(self, source, target, **folders):
        self._give("replace", source, target, **folders)

    def link(self, source, target, **more):
        self._give("link", source, target, **more)

    def _give(self, name, source, target, *, src_dir_fd=None, dst_dir_fd=None, **more):
        with self._lock:
            self.begin(name)
            old, new = _where(source, src_dir_fd), _where(target, dst_dir_fd)
            uid = self._know(old)
            if self._exists(new):
                self._know(new)
            gone = [] if name == "link" else [self._entry(old, None)]
            entries = [*gone, self._entry(new, uid)]
            call = getattr(os, name)
            call(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)
            self._move(entries)

    # ------------------------------------------------------------ what they change

    def _entry(self, path, uid):
        folder, name = os.path.split(path)
        return _Entry(self._directory(folder), name, uid, path)

    def _made(self, path, file):
        """The entry of a new file, or of a directory if None."""
        uid = self._new_uid()
        if file is not None:
            self._files[uid] = file
        else:
            self._synced[uid], self._newest[uid] = {}, {}
        return self._entry(path, uid)

    def _move(self, entries):
        """These names have changed, all in one call."""
        for one in entries:
            names = self._newest[one.directory]
            names.pop(one.name, None)
            self._places.pop(one.path, None)
            if one.uid is not None:
                names[one.name] = self._places[one.path] = one.uid
        if entries:
            self._pending.append(entries)
        if len(entries) > 1 and any(one.uid in self._newest for one in entries):
            self._places = {self._root: 0}  # what is below a directory has moved with it

    def _sync(self, path):
        if not path.startswith(self._root) or not self._exists(path):  # it went since it was opened
            return
        if not self._is_directory(path):
            self.syncs_until_failure -= 1
            if self.syncs_until_failure == 0:
                self._file(path).drop()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._file(path).sync()
            return
        self._harden(self._directory(path))

    def _harden(self, uid):
        """The names in a directory are durable."""
        # What moves from one directory to another is in one entry of any journal.
        durable = [
            entries for entries in self._pending if any(one.directory == uid for one in entries)
        ]
        for entries in durable:
            self._apply(entries, self._synced)
            self._pending.remove(entries)
        self._synced[uid] = dict(self._newest[uid])

    @staticmethod
    def _apply(entries, names):
        for one in entries:
            names[one.directory].pop(one.name, None)
            if one.uid is not None:
                names[one.directory][one.name] = one.uid

    # ------------------------------------------------------------ what does not go through os

    def mapped(self, path, data):
        """A file may change through this map from now on."""
        with self._lock:
            file = self._file(_where(*at(path)))
            if file.map is None:  # any map of it shows the same
                file.map = data
                self._mapped.append((file, data.tobytes))

    def dirtied(self, path, start, stop, call):
        """Pages of a file are written with what they hold."""
        with self._lock:
            self.begin("dirty again")
            call()
            self._file(_where(*at(path))).touch(start, stop)

    def _observe_maps(self):
        for file, look in self._mapped:
            if (data := look()) != file.newest:
                file.observe(data)

    def exchange(self, one, other, call):
        """Two names change places in one call."""
        with self._lock:
            self.begin("exchange")
            places = _where(*at(one)), _where(*at(other))
            uids = self._know(places[0]), self._know(places[1])
            done = call(one, other)
            if done:
                entries = zip(places, reversed(uids), strict=True)
                self._move([self._entry(path, uid) for path, uid in entries])
            return done

    def punch_hole(self, descriptor, call):
        """Part of a file becomes zeros."""
        with self._lock:
            self.begin("punch hole")
            path = self._opened[descriptor]
            file = self._file(path)
            done = call()
            file.observe(_read(path))
            return done

    def reserve(self, descriptor, length, call):
        """Blocks past the end of a file."""
        with self._lock:
            self.begin("fallocate")
            file = self._file(self._opened[descriptor])
            done = call()
            if done:
                file.beyond.append(length)
            return done

    # ------------------------------------------------------------ what others do, durably, at once

    def others_sync_names(self):
        """Every change of names so far becomes durable, as when a journal is committed."""
        with self._lock:
            for uid in list(self._newest):
                self._harden(uid)

    def others_make(self, path):
        with self._lock:
            above = self._directory(os.path.dirname(path))
            os.mkdir(path)
            self._put(path, self._made(path, None).uid, above)

    def others_move(self, path, target):
        """Somebody gives a directory another name; no call of the code under test is in it."""
        with self._lock:
            uid = self._know(path)
            above, new = (self._directory(os.path.dirname(one)) for one in (path, target))
            os.rename(path, target)
            self._put(target, uid, new)
            self._put(path, None, above)
            self._places = {self._root: 0}
            for descriptor, one in self._opened.items():
                if one == path or one.startswith(f"{path}/"):
                    self._opened[descriptor] = target + one[len(path) :]

    def others_link(self, path, target):
        """Somebody copies a directory, and gives the files in it second names there: `cp -al`."""
        with self._lock:
            self._know(path)
            self.others_make(target)
            above = self._directory(target)
            for name, uid in self._newest[self._directory(path)].items():
                if uid in self._newest:
                    self.others_link(f"{path}/{name}", f"{target}/{name}")
                else:
                    os.link(f"{path}/{name}", f"{target}/{name}")
                    self._put(f"{target}/{name}", uid, above)

    def others_write(self, path, data):
        """Somebody truncates a file and writes another's bytes into it, as `cp` does."""
        with self._lock:
            if not self._exists(path):
                uid = self._made(path, _File(b"")).uid
                self._put(path, uid, self._directory(os.path.dirname(path)))
            if self._file(path).map is not None:
                raise RuntimeError(f"{path}: mapped for writing")
            self._files[self._uid(path)] = _File(data)
            _write(path, data, 0)

    def others_remove(self, path):
        """Somebody removes a directory and all in it."""
        with self._lock:
            self._know(path)
            shutil.rmtree(path)
            self._put(path, None, self._directory(os.path.dirname(path)))
            self._places = {self._root: 0}

    def _put(self, path, uid, above):
        """A name in a directory, durably; None for none."""
        self._harden(above)
        name = os.path.basename(path)
        for names in (self._newest[above], self._synced[above]):
            names.pop(name, None)
            if uid is not None:
                names[name] = uid
        self._places.pop(path, None)

    # ------------------------------------------------------------ after the cut

    def image(self, target, luck=None):
        """What would be on the disk if the power went now."""
        with self._lock:
            self._observe_maps()
            shutil.copytree(self._root, target, symlinks=True)
            self._settle(os.fspath(target), _Luck(luck))

    def cut(self, luck=None):
        """The power goes and comes back: `root` itself becomes what is on the disk.

        Whoever wrote before must not go on: his maps may be of files that are elsewhere now.
        """
        with self._lock:
            self._observe_maps()
            names, content = self._settle(self._root, _Luck(luck))
            # What is left is all that there is, and it is durable.
            left = _below(0, names)
            self._newest = {uid: found for uid, found in names.items() if uid in left}
            self._synced = {uid: dict(found) for uid, found in self._newest.items()}
            self._files = {uid: _File(*kept) for uid, kept in content.items() if uid in left}
            self._places = {self._root: 0}
            self._pending.clear()
            self._mapped.clear()

    def let_go(self):
        """It is over: maps, which no garbage collector looks through, lead here and to no history."""
        self._before_call = lambda _: None
        self._mapped.clear()
        self._files.clear()

    def die(self):
        """The process goes, and all that it wrote stays: its maps change no more."""
        with self._lock:
            self._observe_maps()
            for file, _ in self._mapped:
                file.map = None
            self._mapped.clear()

    def _settle(self, place, luck):
        """Make a copy of `root` what is on the disk; returns its names and what they stand for."""
        names = {uid: dict(names) for uid, names in self._synced.items()}
        for entries in self._pending:
            if luck.happened():
                self._apply(entries, names)
        content = {uid: file.survivor(luck) for uid, file in self._files.items()}
        if 0 in names:
            self._settle_directory(0, place, names, content)
            _link_again(0, place, names, {})
        return names, content

    def _settle_directory(self, uid, place, names, content):
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
            elif one in content and content[one] != self._files[one].now:
                _write(path, *content[one])

    def _restore(self, uid, path, names, content):
        """What a name stood for once, and stands for again."""
        if uid in content:
            _write(path, *content[uid])
            return
        os.mkdir(path)
        for name, one in names[uid].items():
            self._restore(one, f"{path}/{name}", names, content)


def _below(uid, names):
    """A file, or a directory and all that is in it."""
    return {uid}.union(*(_below(one, names) for one in names.get(uid, {}).values()))


def _where(path, folder):
    """The absolute path of what a call of `os` looks up, from a directory if one is given."""
    if folder is None:
        return os.path.abspath(path)
    return os.path.normpath(f"{os.readlink(f'/proc/self/fd/{folder}')}/{path}")


def _read(path):
    with open(path, "rb") as file:
        return file.read()


def _write(path, data, beyond):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        if beyond:
            _fallocate(file.fileno(), platform.KEEP_SIZE, len(data), beyond)


def _link_again(uid, place, names, files):
    """Make names of one file that are now of several, as they were restored, names of one again."""
    for name, one in names[uid].items():
        path = f"{place}/{name}"
        if one in names:
            _link_again(one, path, names, files)
        elif (first := files.setdefault(one, path)) is not path and not os.path.samefile(
            first, path
        ):
            os.unlink(path)
            os.link(first, path)


def _remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


@contextlib.contextmanager
def power_disk(root, before_call, *, stores=False):
    """Put a `PowerDisk` between the package and the operating system."""
    disk = PowerDisk(root, before_call)
    real_map, real_exchange, real_punch = (
        memory_maps.map_file,
        durable_writes.exchange,
        platform.punch_hole,
    )
    real_put, real_dirty = memory_maps.Reservation.put, memory_maps.dirty_again

    def map_file(path, size=None, *, writable=False):
        data = real_map(path, size, writable=writable)
        if not writable:
            return data
        disk.mapped(path, data)
        if not stores:
            return data
        watched = data.view(CountedStores)
        watched._disk = disk
        return watched

    def put(self, offset, path, size):
        real_put(self, offset, path, size)
        if self.array.flags.writeable:
            disk.mapped(path, self.array[offset : offset + size])

    def punch_hole(descriptor, offset, length):
        return disk.punch_hole(descriptor, lambda: real_punch(descriptor, offset, length))

    def call_fallocate(descriptor, mode, offset, length):
        def call():
            return _fallocate(descriptor, mode, offset, length)

        if mode != platform.KEEP_SIZE:  # part of a call that is known already
            return call()
        return disk.reserve(descriptor, length, call)

    def dirty_again(path, start, stop):
        disk.dirtied(path, start, stop, lambda: real_dirty(path, start, stop))

    def in_turn(calls):
        for call in calls:
            call()
        return []

    changed = {
        (durable_writes, "os"): disk,
        (durable_writes, "run_all"): in_turn,
        (memory_maps, "dirty_again"): dirty_again,
        (memory_maps, "map_file"): map_file,
        (durable_writes, "exchange"): lambda one, other: disk.exchange(one, other, real_exchange),
        (platform, "punch_hole"): punch_hole,
        (platform, "fallocate"): call_fallocate,
        (memory_maps.Reservation, "put"): put,
    }
    with contextlib.ExitStack() as stack:
        for (owner, name), value in changed.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        try:
            yield disk
        finally:
            disk.let_go()
