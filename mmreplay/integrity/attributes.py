"""attributes.mmreplay of a damaged store: what their own crc32c still proves of them.

Invariant: attributes are sure only if they match their crc32c, which is of all that they say, or if
they never had one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmreplay import format, parsing, reading
from mmreplay.errors import FormatError, MmreplayError

__all__ = ["Attributes", "read_attributes", "refuse_newer"]

# The time to try every bit of a document grows with the square of its length, and with its depth.
_MOST_BYTES = 2048
_MOST_BRACKETS = 100


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is left of the attributes of a store or lane.

    Attributes:
        own: attributes.mmreplay, without their crc32c; None if nothing of them can be read.
        sure: whether they are what was written.
        mended: whether that is so once one bit of the file is put right.
    """

    own: dict[str, Any] | None = None
    sure: bool = False
    mended: bool = False


def read_attributes(path: Path, kind: str) -> Attributes:
    """The attributes of the store or lane at `path`, which must be of this kind.

    Where they do not match their crc32c, each bit of the file is tried: if it was one that
    flipped, they match again once it is put right.
    """
    where = path / "zarr.json"
    try:
        data = reading.read_bytes(where, format.MAX_METADATA_BYTES)
    except (MmreplayError, OSError):
        return Attributes()
    found = _parsed(data, kind)
    if found is not None and _matches(data) is not False:
        return Attributes(found, sure=True)
    for one in _with_a_bit_flipped(data):
        if _matches(one):
            mended = _parsed(one, kind)
            if mended is not None:
                return Attributes(mended, sure=True, mended=True)
    return Attributes(found)


def refuse_newer(path: Path) -> None:
    """Make sure that a store or lane is not damaged only because this version does not read it.

    Raises:
        FormatError: its zarr.json is of another format.
    """
    where = path / "zarr.json"
    try:
        data = reading.read_bytes(where, format.MAX_METADATA_BYTES)
    except (MmreplayError, OSError):
        return
    found = (_stored(data) or {}).get("format", format.FORMAT)
    # Attributes of any format have a crc32c: if it does not fit, the number may be the damage.
    if found != format.FORMAT and _matches(data) is not False:
        raise FormatError(
            f"{where}: expected format {format.FORMAT}, found {found!r:.80}; a newer mmreplay "
            f"may read it; this one does not repair it"
        )


def _with_a_bit_flipped(data: bytes) -> Iterator[bytes]:
    if len(data) > _MOST_BYTES or data.count(b"[") + data.count(b"{") > _MOST_BRACKETS:
        return
    one = bytearray(data)
    for place in range(len(one)):
        for bit in range(8):
            one[place] ^= 1 << bit
            yield bytes(one)
            one[place] ^= 1 << bit


def _stored(data: bytes) -> dict[str, Any] | None:
    """attributes.mmreplay as they stand there."""
    with contextlib.suppress(MmreplayError, KeyError, TypeError):
        own = parsing.parse(data, "")["attributes"][format.ATTRIBUTE]
        if isinstance(own, dict):
            return own
    return None


def _matches(data: bytes) -> bool | None:
    """Whether attributes match their crc32c; None if they cannot be read, or have none."""
    own = _stored(data)
    if own is None or format.DIGEST not in own:
        return None
    return bool(own[format.DIGEST] == format.digest(own))


def _parsed(data: bytes, kind: str) -> dict[str, Any] | None:
    with contextlib.suppress(MmreplayError):
        own = parsing.parse_root(data, "")
        if own["kind"] == kind:
            return own
    return None
