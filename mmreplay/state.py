"""How far a live lane has come: the volatile state page and the durable checkpoint.

Invariant: the state page is trusted only while the operating system that wrote it still runs; a
checkpoint slot is written only after what it speaks of is durable, and never over the best one.
"""

from __future__ import annotations

import secrets
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmreplay import files, maps, reading, system
from mmreplay.codecs import crc32c
from mmreplay.errors import CorruptStoreError
from mmreplay.format import CONTEXT_ROWS, LANE_SHIFT

__all__ = [
    "BASE",
    "COMMITTED",
    "SESSION",
    "TAIL_START",
    "Checkpoint",
    "CheckpointFile",
    "State",
    "check_rows",
]

PAGE_BYTES = 4096
_MAGIC = int.from_bytes(b"MMRSTATE", "little")

# Words of the state page, u64 little-endian.
SESSION, BASE, TAIL_START, COMMITTED = 1, 2, 3, 4
_DEVICE, _INODE, _BOOT = 5, 6, 7

_RECORD = struct.Struct("<8s16s16sQQQQ")
_CHECKPOINT_MAGIC = b"MMRCKPT1"
_MOST_CHECKPOINTS = 1 << 63  # in a page that is one, so that there is always a next one


class State:
    """The mapped page `.live/state`.

    Attributes:
        words: the page as u64 words; the writer stores COMMITTED with one aligned store.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Map the page.

        Raises:
            FileNotFoundError: there is none.
            CorruptStoreError: another size, or not the page of any session.
        """
        self.path = path
        about = path.lstat()  # of no file that a link leads to: that is not mapped either
        self._identity = (about.st_dev, about.st_ino)
        self._page: npt.NDArray[np.uint8] = maps.map_file(path, PAGE_BYTES, writable=writable)
        self.words: memoryview[int] = self._page.view("<u8").data
        if self.words[0] not in (0, _MAGIC):  # of 0 is a page on which none has begun yet
            raise CorruptStoreError(
                f"{path}: expected a page that begins with MMRSTATE, or with zeros, found "
                f"{bytes(self._page[:8])!r}; run `mmreplay repair`, which keeps the rows of the "
                f"last flush"
            )

    @staticmethod
    def create(path: Path) -> State:
        """A fresh, untrusted page, until `start` has stored its boot id and its session."""
        files.write_file(path, bytes(PAGE_BYTES), overwritten=True)
        return State(path, writable=True)

    def start(self, *, base: int, tail_start: int, committed: int) -> None:
        """Begin a session on an untrusted page: the boot id comes after what it vouches for."""
        words = self.words
        # No session while the page is half written: whoever reads it now looks again later.
        words[SESSION] = words[_BOOT] = words[_BOOT + 1] = 0
        if system.barrier is not None:
            system.barrier()
        words[BASE], words[TAIL_START], words[COMMITTED] = base, tail_start, committed
        words[_DEVICE], words[_INODE] = self._identity
        words[0] = _MAGIC
        words[_BOOT], words[_BOOT + 1] = struct.unpack("<QQ", system.boot_id())
        if system.barrier is not None:
            system.barrier()
        # Random, so that no reader takes this session for the one it knew.
        words[SESSION] = secrets.randbits(63) | 1

    def resume(self, *, base: int, tail_start: int) -> None:
        """Begin a session on a trusted page: a kill at any point leaves it trusted, and right."""
        self.words[SESSION] = secrets.randbits(63) | 1
        self.words[BASE], self.words[TAIL_START] = base, tail_start

    def is_in_place(self) -> bool:
        """Whether the file at the path is still the one that is mapped."""
        try:
            about = self.path.lstat()
        except OSError:
            return False
        return (about.st_dev, about.st_ino) == self._identity

    def distrust(self) -> None:
        """Let whoever opens the lane next go back to the checkpoint, as after a power cut.

        After an fsync of rows that failed, the kernel may take pages for clean that never reached
        the disk, and drop them at any time: nobody knows which of these rows are still right.
        """
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

    def rows_beyond(self, head: int) -> int:
        """How many rows past `head` the page speaks of, trusted or not."""
        return max(self.words[COMMITTED] - head, 0) if self.is_written() else 0

    def is_written(self) -> bool:
        """Whether a session ever began on the page, and its beginning can be read."""
        return self.words[0] == _MAGIC

    def is_of_this_boot(self) -> bool:
        """Whether the page was written since this boot, here."""
        words = self.words
        return (
            words[0] == _MAGIC
            and self.boot == system.boot_id()
            and (words[_DEVICE], words[_INODE]) == self._identity
        )


def check_rows(live: Path, base: int, head: int, capacity: int | None) -> None:
    """Make sure that what a state page or a checkpoint says may be rows of this lane at all.

    Raises:
        CorruptStoreError: it may not.
    """
    if not _may_be(base, head):
        raise CorruptStoreError(
            f"{live}: expected a head < 2**{LANE_SHIFT}, and a base of 0 or at least "
            f"{CONTEXT_ROWS} rows before it; found {head:,} and {base:,}"
        )
    if base and capacity is None:
        raise CorruptStoreError(f"{live}: expected base 0 where no capacity is set, found {base:,}")


def _may_be(base: int, head: int) -> bool:
    """Whether they may be of one lane: rows are evicted below the context of one that is kept."""
    return head < 1 << LANE_SHIFT and (base == 0 or base + CONTEXT_ROWS <= head)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is durable: rows below `head`; those below `tail_start` in shards, the rest in the tail.

    Attributes:
        head: rows.
        tail_start: first row held by the tail.
        base: oldest row kept. Without it a power cut would leave nobody who knows which chunk
            files may be missing.
        generation: counts the checkpoints of a session.
        boot: boot id of the system that wrote it.
    """

    head: int
    tail_start: int
    base: int
    generation: int
    boot: bytes


class CheckpointFile:
    """`.live/checkpoint`: two slots, the better one is never overwritten.

    Attributes:
        best: the slot that counts.
        is_newest: whether it is the last that was written: the other one is that before it.
    """

    def __init__(self, path: Path, store: str) -> None:
        """Read both slots of the checkpoint of the store with this uuid.

        Raises:
            FileNotFoundError: there is none.
            CorruptStoreError: neither slot is valid.
        """
        self._path = path
        self._store = uuid.UUID(store).bytes
        data = reading.read_bytes(path, 2 * PAGE_BYTES)
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
    def create(path: Path, store: str, *, head: int, tail_start: int, base: int) -> CheckpointFile:
        """A file with one valid slot."""
        first = Checkpoint(head, tail_start, base, 1, system.boot_id())
        data = _pack(first, uuid.UUID(store).bytes)
        files.write_file(path, data.ljust(2 * PAGE_BYTES, b"\0"), overwritten=True)
        return CheckpointFile(path, store)

    @staticmethod
    def stored_uuids(path: Path) -> list[str]:
        """Of which lane each slot of a checkpoint says that it is; whether it is one is not asked.

        Raises:
            FileNotFoundError: there is none.
            CorruptStoreError: it has another size, or is no regular file.
        """
        data = reading.read_at(path, 0, 2 * PAGE_BYTES, 2 * PAGE_BYTES)
        begin = len(_CHECKPOINT_MAGIC)
        return [data[i + begin : i + begin + 16].hex() for i in (0, PAGE_BYTES)]

    def _parse(self, slot: bytes) -> Checkpoint | None:
        record, stored = slot[: _RECORD.size], slot[_RECORD.size : _RECORD.size + 4]
        if len(stored) < 4 or crc32c(record) != int.from_bytes(stored, "little"):  # noqa: PLR2004
            return None
        magic, store, boot, generation, head, tail_start, base = _RECORD.unpack(record)
        if magic != _CHECKPOINT_MAGIC or store != self._store:
            return None
        if not _may_be(base, head) or generation >= _MOST_CHECKPOINTS:
            return None
        return Checkpoint(head, tail_start, base, generation, boot)

    def renew(self) -> None:
        """Make the best slot durable, also if the fsync after it was written has failed.

        Raises:
            FailedStoreError: the fsync failed.
        """
        maps.dirty_again(self._path, self._offset, self._offset + _RECORD.size)
        files.sync_file(self._path)

    def write(
        self, *, head: int | None = None, tail_start: int | None = None, base: int | None = None
    ) -> None:
        """Write the other slot and make it durable; what is not given is copied.

        Raises:
            DiskFullError, FailedStoreError: the write or fsync failed; the best slot still stands.
        """
        old = self.best
        new = Checkpoint(
            old.head if head is None else head,
            old.tail_start if tail_start is None else tail_start,
            old.base if base is None else base,
            old.generation + 1,
            system.boot_id(),
        )
        offset = PAGE_BYTES - self._offset
        files.write_at(self._path, offset, _pack(new, self._store).ljust(PAGE_BYTES, b"\0"))
        self.best, self._offset, self.is_newest = new, offset, True


def _pack(slot: Checkpoint, store: bytes) -> bytes:
    record = _RECORD.pack(
        _CHECKPOINT_MAGIC, store, slot.boot, slot.generation, slot.head, slot.tail_start, slot.base
    )
    return record + crc32c(record).to_bytes(4, "little")
