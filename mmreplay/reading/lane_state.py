"""Whether a lane is live, crashed or closed."""

from __future__ import annotations

from collections.abc import Iterable

from mmreplay.system import locks
from mmreplay.system.held_directories import AnyPath


def lane_state(path: AnyPath, *, closed: bool) -> str:
    """``live`` while a writer is at work; else what zarr.json says: ``closed``, or ``crashed``."""
    if locks.is_locked(path):
        return "live"
    return "closed" if closed else "crashed"


def store_state(states: Iterable[str]) -> str:
    """The first of live, crashed and closed that any lane is in, else ``unknown``."""
    present = set(states)
    return next((state for state in ("live", "crashed", "closed") if state in present), "unknown")
