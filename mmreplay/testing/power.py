"""A disk that loses power: of what was not synced, nothing survives, or any part of it.

Invariant: an image holds every byte and every name that was synced, and of each other 512 bytes,
length and name either the synced state or the newest one, one without regard to another. What was
being overwritten by `write` at that moment may be garbage.

Only for Linux, where a descriptor tells its path.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmreplay import files

__all__ = ["PowerDisk", "power_disk"]

_SECTOR_BYTES = 512
_WATCHED = {
    "fsync",
    "fdatasync",
    "open",
    "makedirs",
    "replace",
    "rename",
    "unlink",
    "write",
    "rmdir",
}


class PowerDisk:
    """Stands in for the module `os` within `mmreplay.files`, and remembers what was synced.

    Args:
        root: everything below it is watched; it is durable itself, and empty.
        before_call: called with the number of each call that matters, before it is made.

    Attributes:
        calls: names of the calls that mattered, in order; the first is number 1.
    """

    def __init__(self, root: Path, before_call: Callable[[int], None]) -> None:
        self._root = root
        self._before_call = before_call
        self._lock = threading.RLock()
        self.calls: list[str] = []
        self._next = 0
        self._uids: dict[int, int] = {}  # of an inode, as long as it is in use
        self._bytes: dict[int, bytes] = {}  # of a file, as synced
        self._torn: dict[int, tuple[int, int]] = {}  # [start, stop) overwritten since
        self._names: dict[int, dict[str, int]] = {}  # of a directory, as synced
        self._kinds: dict[int, bool] = {}  # whether it is a directory
        self._adopt(root)

    def _adopt(self, root: Path) -> None:
        """What is there at the beginning is durable."""
        for folder, _, names in os.walk(root):
            self._sync_directory(Path(folder))
            for name in names:
                self._sync_file(Path(folder, name))

    def __getattr__(self, name: str) -> Any:
        """What `os` has; calls that matter are watched."""
        found = getattr(os, name)
        if name not in _WATCHED:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return found(*args, **kwargs)
            with self._lock:
                self.calls.append(name)
                self._before_call(len(self.calls))
                fresh = self._missing(Path(args[0])) if name in {"open", "makedirs"} else []
                if name == "write":
                    self._overwrite(*args)
                out = found(*args, **kwargs)
                for path in fresh:
                    self._uids.pop(os.stat(path).st_ino, None)
                    self._uid(path)
                if name in {"fsync", "fdatasync"}:
                    self._sync(args[0])
                return out

        return call

    def _overwrite(self, descriptor: int, data: bytes) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        self._torn[self._uid(path)] = (start, start + len(data))

    @staticmethod
    def _missing(path: Path) -> list[Path]:
        return [one for one in (path, *path.parents) if not one.exists()]

    def _uid(self, path: Path) -> int:
        about = os.lstat(path)
        if about.st_ino not in self._uids:
            self._next += 1
            self._uids[about.st_ino] = self._next
        uid = self._uids[about.st_ino]
        self._kinds[uid] = stat.S_ISDIR(about.st_mode)
        return uid

    def _sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self._sync_directory(path)
        else:
            self._sync_file(path)

    def _sync_directory(self, path: Path) -> None:
        self._names[self._uid(path)] = self._entries(path)

    def _entries(self, path: Path) -> dict[str, int]:
        return {name: self._uid(path / name) for name in os.listdir(path)}

    def _sync_file(self, path: Path) -> None:
        uid = self._uid(path)
        self._bytes[uid] = path.read_bytes()
        self._torn.pop(uid, None)

    # ------------------------------------------------------------ after the cut

    def image(self, target: Path, luck: random.Random | None = None) -> None:
        """What is on the disk when the power comes back.

        Args:
            target: a new directory, which stands for `root`.
            luck: decides what else than the synced survives; None for nothing.
        """
        with self._lock:
            self._copy_directory(self._uid(self._root), self._root, target, luck)

    def _copy_directory(
        self, uid: int, now: Path | None, target: Path, luck: random.Random | None
    ) -> None:
        target.mkdir()
        synced = self._names.get(uid, {})
        newest = {} if now is None else self._entries(now)
        for name in sorted(synced.keys() | newest.keys()):
            choice = synced if luck is None or luck.random() < 0.5 else newest  # noqa: PLR2004
            one = choice.get(name)
            if one is None:
                continue
            there = now / name if now is not None and newest.get(name) == one else None
            if self._kinds[one]:
                self._copy_directory(one, there, target / name, luck)
            else:
                (target / name).write_bytes(self._content(one, there, luck))

    def _content(self, uid: int, now: Path | None, luck: random.Random | None) -> bytes:
        synced = self._bytes.get(uid, b"")
        if luck is None or now is None:
            return synced
        newest = now.read_bytes()
        size = luck.choice([len(synced), len(newest)])
        share = luck.choice([0.0, 0.5, 1.0, 0.9])
        out = bytearray()
        while len(out) < size:
            start, stop = len(out), min(len(out) + _SECTOR_BYTES, size)
            source = newest if luck.random() < share else synced
            out += source[start:stop].ljust(stop - start, b"\0")
        if uid in self._torn and luck.random() < 0.5:  # noqa: PLR2004
            start, stop = self._torn[uid]
            out[start:stop] = luck.randbytes(len(out[start:stop]))
        return bytes(out)


@contextlib.contextmanager
def power_disk(root: Path, before_call: Callable[[int], None]) -> Iterator[PowerDisk]:
    """Put a `PowerDisk` between the package and the operating system."""
    disk = PowerDisk(root, before_call)
    real = files.os
    files.os = disk  # type: ignore[assignment]
    try:
        yield disk
    finally:
        files.os = real
