"""The checkpoint: how many rows of a live lane are durable.

Invariant: a slot is written only after what it speaks of is durable, and never over the best one.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from dataclasses import dataclass

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
    ) -> CheckpointFile:
        """A file with one valid slot; the caller makes it durable."""
        first = Checkpoint(head, tail_start, base, before, 1, platform.boot_id())
        data = _pack(first, uuid.UUID(store).bytes)
        durable_writes.write_file(
            path, data.ljust(2 * PAGE_BYTES, b"\0"), durable=False, overwritten=True
        )
        return CheckpointFile(path, store)

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
