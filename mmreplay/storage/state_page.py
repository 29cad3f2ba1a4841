"""How many rows a live lane has: the state page, shared by writer and readers, and the checkpoint.

Invariant: the page is trusted only while the operating system that wrote it still runs. A slot of
the checkpoint is written only after what it speaks of is durable, and never over the best one.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import struct
import uuid
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.format.compression import crc32c
from mmreplay.ids import LANE_SHIFT
from mmreplay.system import checked_reads, durable_writes, memory_maps, platform
from mmreplay.system.disk_errors import writing
from mmreplay.system.held_directories import AnyPath

PAGE_BYTES = 4096

_RECORD = struct.Struct("<8s16s16sQQQQQ")
_CHECKPOINT_MAGIC = b"MMRCKPT1"
_MOST_CHECKPOINTS = 1 << 63  # in a page that is one, so that there is always a next one
_MAGIC = int.from_bytes(b"MMRSTATE", "little")

# Words of the state page, u64 little-endian.
SESSION, BASE, TAIL_START, COMMITTED = 1, 2, 3, 4
_DEVICE, _INODE, _BOOT = 5, 6, 7
_HOME_DEVICE, _HOME_INODE, _LEAST_BLOCKS = 9, 10, 11
EPISODES_BEFORE = 12

_BLOCK = 512  # of which st_blocks counts
_BEYOND = (PAGE_BYTES, 64 << 10, 1 << 20, 4 << 20)
"""Bytes to allocate past the end, tried in turn until `st_blocks` grows: some systems round."""


def check_rows(live: AnyPath, base: int, head: int, capacity: int | None) -> None:
    """Raise CorruptStoreError if a page or checkpoint names rows that cannot be of this lane."""
    if not may_be_rows(base, head):
        raise CorruptStoreError(
            f"{live}: expected a head < 2**{LANE_SHIFT}, and a base of at most that; found "
            f"{head:,} and {base:,}"
        )
    if base and capacity is None:
        raise CorruptStoreError(f"{live}: expected base 0 where no capacity is set, found {base:,}")


def may_be_rows(base: int, head: int) -> bool:
    """Whether they may be of one log."""
    return base <= head < 1 << LANE_SHIFT


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is durable: rows below `head`; those below `tail_start` in shards, the rest in the tail.

    `base` is the oldest row kept, `before` the number of episodes that began below it.
    """

    head: int
    tail_start: int
    base: int
    before: int
    generation: int
    boot: bytes


class CheckpointFile:
    """`.live/checkpoint`: two slots; the one that counts, `best`, is never overwritten."""

    def __init__(self, path: AnyPath, store: str) -> None:
        """Read both slots; raises CorruptStoreError if neither is a valid one of this store."""
        self._path = path
        self._store = uuid.UUID(store).bytes
        data = checked_reads.read_bytes(path, 2 * PAGE_BYTES)
        if len(data) != 2 * PAGE_BYTES:  # the newer slot may be what is missing
            raise CorruptStoreError(
                f"{path}: expected {2 * PAGE_BYTES:,} bytes, found {len(data):,}"
            )
        slots = [(self._parse(data[i : i + PAGE_BYTES]), i) for i in (0, PAGE_BYTES)]
        valid = [(slot, offset) for slot, offset in slots if slot is not None]
        if not valid:
            raise CorruptStoreError(
                f"{path}: expected a valid checkpoint in one of two slots, found none"
            )
        self.best, self._offset = max(valid, key=lambda pair: pair[0].generation)
        other = slots[not self._offset][0]
        self.is_newest = (
            other.generation == self.best.generation - 1
            if other is not None
            else self.best.generation == 1 and not any(data[PAGE_BYTES:])
        )

    @staticmethod
    def create(
        path: AnyPath, store: str, *, head: int, tail_start: int, base: int, before: int
    ) -> None:
        """Write a file with one valid slot; the caller makes it durable."""
        first = Checkpoint(head, tail_start, base, before, 1, platform.boot_id())
        data = _pack(first, uuid.UUID(store).bytes)
        durable_writes.write_file(
            path, data.ljust(2 * PAGE_BYTES, b"\0"), durable=False, overwritten=True
        )

    def _parse(self, slot: bytes) -> Checkpoint | None:
        record, stored = slot[: _RECORD.size], slot[_RECORD.size : _RECORD.size + 4]
        if len(stored) < 4 or crc32c(record) != int.from_bytes(stored, "little"):  # noqa: PLR2004
            return None
        magic, store, boot, generation, head, tail_start, base, before = _RECORD.unpack(record)
        if magic != _CHECKPOINT_MAGIC or store != self._store:
            return None
        if not may_be_rows(base, head) or generation >= _MOST_CHECKPOINTS:
            return None
        return Checkpoint(head, tail_start, base, before, generation, boot)

    def renew(self) -> None:
        """Make the best slot durable, also if the fsync after it was written has failed."""
        with writing("making it durable", self._path):
            durable_writes.make_own(self._path)
            memory_maps.dirty_again(self._path, self._offset, self._offset + _RECORD.size)
        durable_writes.sync_file(self._path)

    def write(self, **changes: int) -> None:
        """Write the other slot durably, what is not given copied; if it fails, the best stands."""
        generation, boot = self.best.generation + 1, platform.boot_id()
        new = dataclasses.replace(self.best, generation=generation, boot=boot, **changes)
        offset = PAGE_BYTES - self._offset
        durable_writes.write_at(
            self._path, offset, _pack(new, self._store).ljust(PAGE_BYTES, b"\0")
        )
        self.best, self._offset, self.is_newest = new, offset, True


def _pack(slot: Checkpoint, store: bytes) -> bytes:
    rows = slot.head, slot.tail_start, slot.base, slot.before
    record = _RECORD.pack(_CHECKPOINT_MAGIC, store, slot.boot, slot.generation, *rows)
    return record + crc32c(record).to_bytes(4, "little")


class State:
    """The mapped page `.live/state`, as u64 `words`; COMMITTED is set with one aligned store."""

    def __init__(self, path: AnyPath, *, writable: bool) -> None:
        """Map; raises CorruptStoreError for another size, or a first word not magic or 0."""
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
        """Messages if it cannot be: base or tail_start ahead of the checkpoint, written first."""
        slot, words = checkpoint.best, self.words
        pairs = {"base": (words[BASE], slot.base)}
        pairs["tail_start"] = (words[TAIL_START], slot.tail_start)
        out = [
            f"{name}: expected at most that of the checkpoint, {known:,}, found {found:,}"
            for name, (found, known) in pairs.items()
            if found > known and checkpoint.is_newest
        ]
        if not may_be_rows(words[BASE], words[COMMITTED]):
            out.append(f"committed: expected base to 2**{LANE_SHIFT}, found {words[COMMITTED]:,}")
        return out

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
