"""The state page and checkpoint of a lane that is not closed: do they contradict each other?

Invariant: the lane is only read.
"""

from __future__ import annotations

import contextlib

from mmreplay.errors import CorruptStoreError
from mmreplay.storage.state_page import COMMITTED, PAGE_BYTES, CheckpointFile, State
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath


def read_checkpoint(lane: AnyPath, store: str) -> CheckpointFile | None:
    """The lane's checkpoint; None if it cannot be read, or is of another uuid than `store`."""
    with contextlib.suppress(OSError, CorruptStoreError):
        checked_reads.check_directories(lane, ".live")
        return CheckpointFile(lane / ".live" / "checkpoint", store)
    return None


def read_state(lane: AnyPath) -> State | None:
    """The lane's state page; None if it cannot be read."""
    with contextlib.suppress(OSError, CorruptStoreError):
        checked_reads.check_directories(lane, ".live")
        return State(lane / ".live" / "state", writable=False)
    return None


def page_problems(lane: AnyPath, store: str) -> list[str]:
    """How a trusted state page contradicts its checkpoint."""
    checkpoint, page = read_checkpoint(lane, store), read_state(lane)
    if checkpoint is None or page is None:
        return []  # has a finding already
    if not page.is_of_this_boot() or page.boot != checkpoint.best.boot:
        return []
    head, committed, problems = checkpoint.best.head, page.words[COMMITTED], list[str]()
    if committed < head:
        text = f"committed: expected at least the head of the checkpoint, {head:,}"
        problems.append(f"{text}, found {committed:,}")
    return problems + page.ahead_of(checkpoint)


def checkpoint_problem(lane: AnyPath, store: str) -> str:
    """Whether a readable checkpoint was cut: the missing half may have been newer."""
    expected = 2 * PAGE_BYTES
    with contextlib.suppress(OSError, CorruptStoreError):
        size = checked_reads.regular_size(lane / ".live" / "checkpoint", expected)
        if size != expected and read_checkpoint(lane, store) is not None:
            return f"expected {expected:,} bytes, found {size:,}"
    return ""  # or it has a finding already
