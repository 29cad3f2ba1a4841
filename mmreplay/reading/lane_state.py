"""Whether a lane is live, crashed or closed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mmreplay.system import locks

__all__ = ["lane_state", "store_state"]


def lane_state(path: Path, *, closed: bool) -> str:
    """``live``, ``crashed`` or ``closed``: whether a writer is at work on a lane now.

    Args:
        path: the lane's directory.
        closed: what its zarr.json says.
    """
    if locks.is_locked(path):
        return "live"
    return "closed" if closed else "crashed"


def store_state(states: Iterable[str]) -> str:
    """Of a store of many lanes the first of live, crashed and closed that any of them is in.

    Args:
        states: of its lanes.

    Returns:
        That, or ``unknown`` if none is in any of these.
    """
    present = set(states)
    return next((state for state in ("live", "crashed", "closed") if state in present), "unknown")
