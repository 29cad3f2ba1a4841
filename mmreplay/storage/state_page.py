"""The state page: how many rows a live lane has, in memory shared by writer and readers.

Invariant: the page is trusted only while the operating system that wrote it still runs.
"""

from __future__ import annotations

import functools
import os
import secrets
import struct

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.storage.checkpoint import PAGE_BYTES, Checkpoint, CheckpointFile
from mmreplay.system import checked_reads, durable_writes, memory_maps, platform
from mmreplay.system.held_directories import AnyPath

_MAGIC = int.from_bytes(b"MMRSTATE", "little")

# Words of the state page, u64 little-endian.
SESSION, BASE, TAIL_START, COMMITTED = 1, 2, 3, 4
_DEVICE, _INODE, _BOOT = 5, 6, 7
_HOME_DEVICE, _HOME_INODE, _LEAST_BLOCKS = 9, 10, 11
EPISODES_BEFORE = 12

_BLOCK = 512  # of which st_blocks counts
_BEYOND = (PAGE_BYTES, 64 << 10, 1 << 20, 4 << 20)
"""Bytes past the end of the page, until they show: some file systems hand out larger pieces."""


class State:
    """The mapped page `.live/state`, as u64 `words`; COMMITTED is set with one aligned store."""

    def __init__(self, path: AnyPath, *, writable: bool) -> None:
        """Map; raises CorruptStoreError if it has another size, or is not of any session."""
        self.path = path
        about = path.lstat()  # of no file that a link leads to: that is not mapped either
        home = path.parent.parent.stat()
        self._identity = (about.st_dev, about.st_ino)
        self._home = (home.st_dev, home.st_ino)
        self._blocks = _blocks(about)
        self._page: npt.NDArray[np.uint8] = memory_maps.map_file(
            path, PAGE_BYTES, writable=writable
        )
        self.words: memoryview[int] = self._page.view("<u8").data
        if self.words[0] not in (0, _MAGIC):  # of 0 is a page on which none has begun yet
            raise CorruptStoreError(
                f"{path}: expected a page that begins with MMRSTATE, or with zeros, found "
                f"{bytes(self._page[:8])!r}; run `mmreplay repair`, which keeps the rows of the "
                f"last flush"
            )

    @staticmethod
    def create(path: AnyPath) -> State:
        """A fresh page, untrusted until `start`; the caller makes it durable."""
        durable_writes.write_file(path, bytes(PAGE_BYTES), durable=False, overwritten=True)
        least = _allocate_beyond(path, durable=False)
        state = State(path, writable=True)
        state.words[_LEAST_BLOCKS] = least
        return state

    @staticmethod
    def make_own(path: AnyPath) -> None:
        """As `durable_writes.make_own`; a page that was trusted stays so."""
        durable_writes.make_own(path, functools.partial(_take_over, path, durable=True))

    @staticmethod
    def copy(path: AnyPath, target: AnyPath) -> None:
        """Copy a page beside shared files of its log; one that is trusted stays so."""
        durable_writes.copy_file(path, target)
        _take_over(path, target, durable=False)

    def start(self, *, base: int, tail_start: int, committed: int, before: int) -> None:
        """Begin a session on an untrusted page: the boot id comes after what it vouches for."""
        words = self.words
        # No session while the page is half written: a reader looks again later.
        words[SESSION] = words[_BOOT] = words[_BOOT + 1] = 0
        if not 0 < words[_LEAST_BLOCKS] <= self._blocks:
            # A copy was restored over it, or this is one: the next one must show, too.
            words[_LEAST_BLOCKS] = _allocate_beyond(self.path)
            self._blocks = _blocks(self.path.lstat())
        if platform.barrier is not None:
            platform.barrier()
        words[BASE], words[TAIL_START], words[COMMITTED] = base, tail_start, committed
        words[EPISODES_BEFORE] = before
        self.name_files()
        words[0] = _MAGIC
        words[_BOOT], words[_BOOT + 1] = struct.unpack("<QQ", platform.boot_id())
        if platform.barrier is not None:
            platform.barrier()
        # Random, so that no reader takes this session for the one it knew.
        words[SESSION] = secrets.randbits(63) | 1

    def name_files(self) -> None:
        """Say which file and which directory the page is of."""
        words = self.words
        words[_DEVICE], words[_INODE] = self._identity
        words[_HOME_DEVICE], words[_HOME_INODE] = self._home

    def renew(self) -> None:
        """Let readers open all files of the session again."""
        self.words[SESSION] = secrets.randbits(63) | 1

    def resume(self, *, base: int, tail_start: int, before: int) -> None:
        """Begin a session on a trusted page: a kill at any point leaves it trusted, and right."""
        self.renew()
        self.words[BASE], self.words[TAIL_START] = base, tail_start
        self.words[EPISODES_BEFORE] = before

    def is_in_place(self) -> bool:
        """Whether the file at the path is still the one that is mapped."""
        try:
            about = self.path.lstat()
        except OSError:
            return False
        return (about.st_dev, about.st_ino) == self._identity

    def has_session_of_path(self) -> bool:
        """Whether the file at the path has the session that is mapped.

        On an overlay file system a file keeps its inode when a writer gets a copy of its own.
        """
        try:
            there = checked_reads.read_at(self.path, 8 * SESSION, 8, PAGE_BYTES)
        except (OSError, CorruptStoreError):
            return False
        return int.from_bytes(there, "little") == self.words[SESSION]

    def distrust(self) -> None:
        """The next opening goes back to the checkpoint, as after a power cut."""
        self.words[_BOOT] = self.words[_BOOT + 1] = 0

    def end(self) -> None:
        """Tell readers that still map the page to look at zarr.json again."""
        self.words[SESSION] = 0

    @property
    def boot(self) -> bytes:
        """The boot id that stands in the page."""
        return struct.pack("<QQ", self.words[_BOOT], self.words[_BOOT + 1])

    def trusted(self, best: Checkpoint) -> bool:
        """Whether the page was written since this boot, here, after `best`."""
        return (
            self.is_of_this_boot() and self.boot == best.boot and self.words[COMMITTED] >= best.head
        )

    def ahead_of(self, checkpoint: CheckpointFile) -> list[str]:
        """What the page says of base and tail_start that stood in no checkpoint before it did."""
        slot = checkpoint.best
        pairs = {"base": (self.words[BASE], slot.base)}
        pairs["tail_start"] = (self.words[TAIL_START], slot.tail_start)
        return [
            f"{name}: expected at most that of the checkpoint, {known:,}, found {found:,}"
            for name, (found, known) in pairs.items()
            if found > known and checkpoint.is_newest
        ]

    def is_as_made(self) -> bool:
        """Whether no session has begun on the page of a new log, and it is not a copy."""
        return not (self.words[0] or self.words[SESSION] or any(self.boot)) and self._names_files()

    def rows_beyond(self, head: int) -> int:
        """How many rows past `head` the page speaks of, trusted or not."""
        return max(self.words[COMMITTED] - head, 0) if self.words[0] == _MAGIC else 0

    def is_of_this_boot(self) -> bool:
        """Whether it was written since this boot, and is not a copy."""
        of_this_boot = self.words[0] == _MAGIC and self.boot == platform.boot_id()
        return of_this_boot and self._names_files()

    def _names_files(self) -> bool:
        words = self.words
        return (
            (words[_DEVICE], words[_INODE]) == self._identity
            and (words[_HOME_DEVICE], words[_HOME_INODE]) == self._home
            and self._blocks >= words[_LEAST_BLOCKS]
        )


def _take_over(path: AnyPath, copy: AnyPath, *, durable: bool) -> None:
    """Give a copy of a page blocks beyond its end, and let it be trusted if the page is."""
    least = _allocate_beyond(copy, durable=durable)
    if State(path, writable=False).is_of_this_boot():
        own = State(copy, writable=True)
        own.name_files()
        own.words[_LEAST_BLOCKS] = least
        if durable:
            durable_writes.sync_file(copy)


def _blocks(about: os.stat_result) -> int:
    return getattr(about, "st_blocks", 0)


def _allocate_beyond(path: AnyPath, *, durable: bool = True) -> int:
    """Give a page blocks beyond its end, lost when a copy is restored over it.

    Returns how many blocks the file has at least from then on, or 0 if that failed.
    """
    least = max(_blocks(path.lstat()), PAGE_BYTES // _BLOCK) + 1
    for n_bytes in _BEYOND:
        durable_writes.allocate_beyond(path, n_bytes, durable=durable)
        if _blocks(path.lstat()) >= least:
            return least
    return 0
