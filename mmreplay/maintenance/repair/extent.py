"""How far a damaged lane was written, from whatever still tells.

Invariant: no row is spoken for of which nothing shows that it was committed.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format.layout import CONTEXT_ROWS, ArraySpec
from mmreplay.maintenance.commit_records import newest_problem, read_checkpoint, read_state
from mmreplay.maintenance.repair.attributes import Attributes
from mmreplay.maintenance.repair.layouts import Documents, Specs, kept_files
from mmreplay.storage import checksums, tail_file
from mmreplay.storage.checkpoint import CheckpointFile, check_rows
from mmreplay.storage.state_page import BASE, COMMITTED, TAIL_START
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath


@dataclass(frozen=True, slots=True)
class Extent:
    """Which rows there are.

    Attributes:
        closed: whether the lane was; else the rest is what a checkpoint says.
        head: rows.
        tail_start: rows below it are in shards.
        base: the oldest row kept, of a lane that was not closed.
        lost: rows past the head that were committed, and are gone.
        untrusted: rows past the head that a state page speaks of which is not trusted.
        known: whether there were no more rows than these.
    """

    closed: bool
    head: int
    tail_start: int = 0
    base: int = 0
    lost: int = 0
    untrusted: int = 0
    known: bool = True


def find_uuid(lane: AnyPath, own: Mapping[str, Any] | None) -> str:
    """The lane's uuid: from its attributes, or from its checkpoint, or else a new one."""
    if own is not None:
        return str(own["uuid"])
    path = lane / ".live" / "checkpoint"
    with contextlib.suppress(MmreplayError, OSError):
        checked_reads.check_directories(lane, ".live")
        for store in CheckpointFile.stored_uuids(path):
            with contextlib.suppress(CorruptStoreError):
                CheckpointFile(path, store)
                return store
    return uuid.uuid4().hex


def durable_head(lane: AnyPath, store: str) -> int:
    """The head to which a writer of the lane may go back."""
    checkpoint = read_checkpoint(lane, store)
    return checkpoint.best.head if checkpoint is not None else 0


def find_extent(
    lane: AnyPath,
    attributes: Attributes,
    documents: Documents,
    specs: Specs,
    store: str,
    *,
    trust: bool = True,
) -> Extent:
    """How far a lane, or a log, was written; raises CorruptStoreError if nothing tells any more.

    Without `trust` its state page does not count.
    """
    own = attributes.own
    counts = collections.Counter(rows for path, (_, rows) in documents.items() if path in specs)
    if own is not None:
        counts[own["rows"]] += 1
    rows = counts.most_common(1)[0][0] if counts else 0
    live = _from_live(lane, attributes, specs, store, trust=trust)
    says_closed = own is not None and own["closed"]
    if says_closed and (attributes.sure or live is None or live.head <= rows):
        return Extent(closed=True, head=rows)
    return live if live is not None else _from_last_close(lane, attributes, specs, rows)


def _from_live(
    lane: AnyPath, attributes: Attributes, specs: Specs, store: str, *, trust: bool
) -> Extent | None:
    """By the state page and the checkpoint; None if neither can be read."""
    try:
        checked_reads.check_directories(lane, ".live")
    except CorruptStoreError:
        return None
    checkpoint, state = read_checkpoint(lane, store), read_state(lane)
    words = state.words if trust and state is not None and state.is_of_this_boot() else None
    extent = None
    if words is not None and (checkpoint is None or words[COMMITTED] >= checkpoint.best.head):
        extent = _from_state_page(lane, attributes, specs, words, checkpoint)
    if extent is None and checkpoint is not None:
        slot = checkpoint.best
        beyond = state.rows_beyond(slot.head) if state is not None and words is None else 0
        extent = Extent(
            closed=False,
            head=slot.head,
            tail_start=slot.tail_start,
            base=slot.base,
            untrusted=beyond,
            known=words is None and state is not None and state.is_written(),
        )
    if extent is None or all(spec.is_raw or has_tail(lane, spec) for spec in specs.values()):
        return extent
    head = min(extent.head, extent.tail_start)
    return replace(extent, head=head, lost=extent.head - head)


def _from_state_page(
    lane: AnyPath,
    attributes: Attributes,
    specs: Specs,
    words: memoryview[int],
    checkpoint: CheckpointFile | None,
) -> Extent | None:
    """By a state page of this boot, which has no checksum; None if nothing fits its head.

    What it says of base and tail_start stood in the checkpoint before. So that is believed first,
    unless the slot in which it stood may be damaged.
    """
    head, tails, bases = words[COMMITTED], [words[TAIL_START]], [words[BASE]]
    if checkpoint is not None:
        slot, first = checkpoint.best, 0 if checkpoint.is_newest else 1
        tails = [max(words[TAIL_START], slot.tail_start)]
        bases = [max(words[BASE], slot.base)]
        tails.insert(first, slot.tail_start)
        bases.insert(first, slot.base)
    # Without a capacity the base is 0; which one it is says nothing of the base.
    own = attributes.own
    capacity = own["capacity"] if own is not None and attributes.sure else 1
    bases = [0] if capacity is None else [*bases, oldest_row(lane, specs)]
    if newest_problem(lane, specs, head):
        return None
    for base, tail_start in itertools.product(bases, tails):
        with contextlib.suppress(CorruptStoreError):
            check_rows(lane, base, head, capacity)
            if not tail_file.tail_problem(specs, head, tail_start):
                return Extent(closed=False, head=head, tail_start=tail_start, base=base)
    return None


def has_tail(lane: AnyPath, spec: ArraySpec) -> bool:
    """Whether an array's tail can be read."""
    with contextlib.suppress(OSError, CorruptStoreError):
        path, size = tail_file.tail_path(lane, spec), 2 * spec.chunk_bytes
        return checked_reads.regular_size(path, size) == size
    return False


def _from_last_close(lane: AnyPath, attributes: Attributes, specs: Specs, rows: int) -> Extent:
    """By the shapes of the arrays: rows that were durable before these were written.

    `rows` is how many there were at the last close; 0 if it never was closed.
    """
    if rows and not attributes.sure:
        as_closed = sum(_ends_as_closed(lane, spec, rows) for spec in specs.values())
        if 2 * as_closed > len(specs):
            return Extent(closed=True, head=rows)
    base = 0
    if attributes.own is None or attributes.own["capacity"] is not None:
        base = oldest_row(lane, specs)
    if rows <= base or (base and rows < base + CONTEXT_ROWS):
        checked_reads.check_directories(lane, ".live")  # a link there is why nothing of it was read
        raise CorruptStoreError(
            f"{lane}: neither closed, nor can the checkpoint or the state page be read, so nobody "
            f"knows how far this lane was written; if a backup or another copy of it has a .live "
            f"directory, put that back and repair again"
        )
    half = next((spec.chunk_rows for spec in specs.values() if not spec.is_raw), 1)
    tail_start = -(-rows // half) * half
    return Extent(closed=False, head=rows, tail_start=tail_start, base=base, known=False)


def _ends_as_closed(lane: AnyPath, spec: ArraySpec, rows: int) -> bool:
    """Whether the chunk file of the last row is an array's last one, and has a checksum.

    A writer that opens a lane takes that checksum away before it changes anything.
    """
    chunk = (rows - 1) // spec.chunk_rows
    with contextlib.suppress(OSError, CorruptStoreError):
        is_last = kept_files(lane, spec)[-1:] == [chunk]
        return is_last and checksums.stored_checksum(lane, spec, chunk) > 0
    return False


def oldest_row(lane: AnyPath, specs: Specs) -> int:
    """The oldest row of which all columns that have chunk files have one."""
    oldest = [(spec, kept_files(lane, spec)[:1]) for spec in specs.values()]
    return max((chunks[0] * spec.chunk_rows for spec, chunks in oldest if chunks), default=0)
