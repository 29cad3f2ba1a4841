"""Lane identity: refuse a lane that is given twice, and notice that a path holds another lane.

Invariant: ids of one store are never taken for those of another that stands at its path by now.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mmreplay.errors import SchemaError
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.system.held_directories import AnyPath

__all__ = ["check_distinct", "check_same", "tell_of_exchange"]

_LOG = logging.getLogger("mmreplay")


def check_distinct(lanes: Sequence[AnyPath]) -> None:
    """Refuse a lane that comes twice: its rows would be drawn twice as often, without a word."""
    seen: dict[tuple[int, int], AnyPath] = {}
    for lane in lanes:
        try:
            about = lane.stat()  # links followed: one lane has many paths
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed a moment ago, as its opening will say
        real = about.st_dev, about.st_ino
        if real in seen:
            raise SchemaError(
                f"{lane}: loaded already as {seen[real]}; name each store once, and not one of "
                f"its lanes beside it"
            )
        seen[real] = lane


def check_same(
    path: AnyPath, now: tuple[str, ...], uuids: tuple[str, ...], whose: str, then: str
) -> None:
    """Raise SchemaError unless lanes `now` begin with those of `uuids`; see `LiveLanes`."""
    if uuids is now or uuids == now[: len(uuids)]:  # new lanes come last
        return
    raise SchemaError(
        f"{path}: expected the store {whose}, found another at this path, as after a repair or a "
        f"pack: ids may mean other transitions there; {then}"
    )


def tell_of_exchange(before: Sequence[LaneReader], now: Sequence[LaneReader]) -> None:
    """Say which store is followed where another has the path by now.

    Raises SchemaError if its rows are others.
    """
    for old, new in zip(before, now, strict=False):  # new lanes come last
        if old.metadata["uuid"] == new.metadata["uuid"]:
            continue
        if not new.schema.same_data(old.schema):
            raise SchemaError(
                f"{new.path}: another store, of other rows, stands at this path by now; the "
                f"one that was open here was moved or removed: open it where it is now"
            )
        _LOG.warning(
            "%s: another store stands at this path by now, as after a repair, or once a store "
            "was moved and another made; this reader goes on with that one (uuid %s; before %s)",
            new.path,
            new.metadata["uuid"],
            old.metadata["uuid"],
        )
