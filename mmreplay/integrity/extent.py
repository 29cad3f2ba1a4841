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
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay import checksums, columns, reading, shards
from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format import CONTEXT_ROWS, ArraySpec
from mmreplay.integrity.attributes import Attributes
from mmreplay.integrity.layouts import Documents, Specs, kept_files
from mmreplay.state import (
    BASE,
    COMMITTED,
    PAGE_BYTES,
    TAIL_START,
    CheckpointFile,
    State,
    check_rows,
)

__all__ = [
    "Extent",
    "checkpoint_problem",
    "durable_head",
    "find_extent",
    "find_uuid",
    "newest_problem",
    "page_problems",
]

_PIECE_BYTES = 1 << 20


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


def find_uuid(lane: Path, own: Mapping[str, Any] | None) -> str:
    """The lane's uuid: from its attributes, or from its checkpoint, or else a new one."""
    if own is not None:
        return str(own["uuid"])
    path = lane / ".live" / "checkpoint"
    with contextlib.suppress(MmreplayError, OSError):
        reading.check_directories(lane, ".live")
        for store in CheckpointFile.stored_uuids(path):
            with contextlib.suppress(CorruptStoreError):
                CheckpointFile(path, store)
                return store
    return uuid.uuid4().hex


def durable_head(lane: Path, store: str) -> int:
    """The head to which a writer of the lane may go back."""
    best = _checkpoint(lane, store)
    return best.best.head if best is not None else 0


def find_extent(
    lane: Path, found: Attributes, documents: Documents, specs: Specs, store: str
) -> Extent:
    """How far the lane at `lane` was written.

    Args:
        lane: its directory.
        found: its attributes.
        documents: of its arrays.
        specs: how they are laid out.
        store: its uuid.

    Raises:
        CorruptStoreError: nobody knows any more.
    """
    own = found.own
    said = collections.Counter(rows for path, (_, rows) in documents.items() if path in specs)
    if own is not None:
        said[own["rows"]] += 1
    rows = said.most_common(1)[0][0] if said else 0
    live = _live(lane, found, specs, store)
    if live is not None and not live.known:
        with contextlib.suppress(CorruptStoreError):
            live = max(live, _proven(lane, found, specs, rows), key=lambda one: one.head)
    if live is not None and (own is None or not own["closed"]):
        return live
    if own is not None and own["closed"] and (found.sure or live is None or live.head <= rows):
        return Extent(closed=True, head=rows)
    return live if live is not None else _proven(lane, found, specs, rows)


# ---------------------------------------------------------------- what .live says


def _live(lane: Path, found: Attributes, specs: Specs, store: str) -> Extent | None:
    """By the state page and the checkpoint; None if neither can be read."""
    try:
        reading.check_directories(lane, ".live")
    except CorruptStoreError:
        return None
    best = _checkpoint(lane, store)
    state: State | None = None
    with contextlib.suppress(OSError, CorruptStoreError):
        state = State(lane / ".live" / "state", writable=False)
    words = None if state is None or not state.is_of_this_boot() else state.words
    out = None
    if words is not None and (best is None or words[COMMITTED] >= best.best.head):
        out = _by_page(lane, found, specs, words, best)
    if out is None and best is not None:
        slot = best.best
        beyond = state.rows_beyond(slot.head) if state is not None and words is None else 0
        out = Extent(
            closed=False,
            head=slot.head,
            tail_start=slot.tail_start,
            base=slot.base,
            untrusted=beyond,
            known=words is None and state is not None and state.is_written(),
        )
    if out is None:
        return None
    if all(spec.is_raw or _has_tail(lane, spec) for spec in specs.values()):
        return out
    head = min(out.head, out.tail_start)
    return replace(out, head=head, lost=out.head - head)


def _by_page(
    lane: Path,
    found: Attributes,
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
    capacity = found.own["capacity"] if found.own is not None and found.sure else 1
    bases = [0] if capacity is None else [*bases, _oldest(lane, specs)]
    if newest_problem(lane, specs, head):
        return None
    for base, tail_start in itertools.product(bases, tails):
        with contextlib.suppress(CorruptStoreError):
            check_rows(lane, base, head, capacity)
            if not shards.tail_problem(specs, head, tail_start):
                return Extent(closed=False, head=head, tail_start=tail_start, base=base)
    return None


def newest_problem(lane: Path, specs: Specs, head: int) -> str:
    """Why there cannot be as many rows as `head`; empty if there can be.

    A row is committed once it has a place in a chunk file of each raw column. One may be lost, but
    where there is none the head is wrong.
    """
    raw = [spec for spec in specs.values() if spec.is_raw]
    newest = ((spec, max(head - 1, 0) // spec.chunk_rows) for spec in raw)
    if not head or any(columns.chunk_path(lane, spec, chunk).exists() for spec, chunk in newest):
        return ""
    return f"committed: expected a chunk file of the newest row, {head - 1:,}, found none"


def page_problems(lane: Path, store: str) -> list[str]:
    """What a state page of this boot cannot say beside the checkpoint; empty if nobody trusts it.

    Rows are committed before they are flushed; base and tail_start stand in the checkpoint first.
    """
    checkpoint = _checkpoint(lane, store)
    try:
        page = State(lane / ".live" / "state", writable=False)
    except (OSError, CorruptStoreError):
        return []  # a finding of its own
    if checkpoint is None or not page.is_of_this_boot() or page.boot != checkpoint.best.boot:
        return []
    out, least, found = list[str](), checkpoint.best.head, page.words[COMMITTED]
    if found < least:
        out.append(
            f"committed: expected at least the head of the checkpoint, {least:,}, found {found:,}"
        )
    return out + page.ahead_of(checkpoint)


def checkpoint_problem(lane: Path, store: str) -> str:
    """Whether a checkpoint that can be read was cut: the half that is gone may have said more."""
    expected = 2 * PAGE_BYTES
    with contextlib.suppress(OSError, CorruptStoreError):
        size = reading.regular_size(lane / ".live" / "checkpoint", expected)
        if size != expected and _checkpoint(lane, store) is not None:
            return f"expected {expected:,} bytes, found {size:,}"
    return ""  # or it is a finding of its own


def _checkpoint(lane: Path, store: str) -> CheckpointFile | None:
    with contextlib.suppress(OSError, CorruptStoreError):
        reading.check_directories(lane, ".live")
        return CheckpointFile(lane / ".live" / "checkpoint", store)
    return None


def _has_tail(lane: Path, spec: ArraySpec) -> bool:
    with contextlib.suppress(OSError, CorruptStoreError):
        path, size = shards.tail_path(lane, spec), 2 * spec.chunk_bytes
        return reading.regular_size(path, size) == size
    return False


# ---------------------------------------------------------------- what the chunk files say


def _proven(lane: Path, found: Attributes, specs: Specs, rows: int) -> Extent:
    """By the chunk files and their checksums, where nothing else tells.

    Args:
        lane: its directory.
        found: its attributes.
        specs: how its arrays are laid out.
        rows: at its last close: these were durable before the arrays said so.
    """
    base = 0
    if found.own is None or found.own["capacity"] is not None:
        base = _oldest(lane, specs)
    stop = min(_summed_up(lane, spec, base) for spec in specs.values())
    head = _written(lane, specs, base, stop)
    if rows >= max(head, 1):
        ends = [_checksum(lane, spec, (rows - 1) // spec.chunk_rows) for spec in specs.values()]
        # A writer that opens a lane takes these away before it changes anything.
        if not found.sure and 2 * sum(map(bool, ends)) > len(ends):
            return Extent(closed=True, head=rows)
        head = rows
    if head <= base or (base and head < base + CONTEXT_ROWS):
        reading.check_directories(lane, ".live")  # a link there is why nothing of it was read
        raise CorruptStoreError(
            f"{lane}: neither closed, nor can the checkpoint or the state page be read, so nobody "
            f"knows how far this lane was written"
        )
    half = next((spec.chunk_rows for spec in specs.values() if not spec.is_raw), 1)
    tail_start = -(-head // half) * half
    return Extent(closed=False, head=head, tail_start=tail_start, base=base, known=False)


def _oldest(lane: Path, specs: Specs) -> int:
    """The oldest row of which all columns that have chunk files have one."""
    oldest = [(spec, kept_files(lane, spec)[:1]) for spec in specs.values()]
    return max((one[0] * spec.chunk_rows for spec, one in oldest if one), default=0)


def _checksum(lane: Path, spec: ArraySpec, chunk: int) -> int:
    with contextlib.suppress(OSError, CorruptStoreError):
        return checksums.stored_checksum(lane, spec, chunk)
    return 0


def _summed_up(lane: Path, spec: ArraySpec, base: int) -> int:
    """Rows from `base` up to this one lie in chunk files that match their checksums."""
    chunk = base // spec.chunk_rows
    while expected := _checksum(lane, spec, chunk):
        path = columns.chunk_path(lane, spec, chunk)
        with contextlib.suppress(OSError, CorruptStoreError):
            size = spec.chunk_bytes if spec.is_raw else shards.file_size(path, spec)
            if checksums.crc32c_of_file(path, size) == expected:
                chunk += 1
                continue
        break
    return chunk * spec.chunk_rows


def _written(lane: Path, specs: Specs, base: int, stop: int) -> int:
    """The end of the rows below `stop` that were written at all.

    The last chunk files of a lane may be padded with zeros, by a close that was cut off. But of
    rows that were written, no three in a row have neither a reset nor a flag that is not 0.
    """
    out = base
    for name in ("resets", "non_terminals"):
        spec = specs[name]
        piece = max(_PIECE_BYTES // spec.row_bytes, 1) * spec.row_bytes
        for chunk in range((stop - 1) // spec.chunk_rows, out // spec.chunk_rows - 1, -1):
            last = -1
            for offset, data in reading.read_filled(
                columns.chunk_path(lane, spec, chunk), spec.chunk_bytes, piece
            ):
                there = np.flatnonzero(np.frombuffer(data, spec.dtype))
                if there.size:
                    last = offset // spec.row_bytes + int(there[-1])
            if last >= 0:
                out = max(out, min(chunk * spec.chunk_rows + last + 1, stop))
                break
    return out
