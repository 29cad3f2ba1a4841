"""attributes.mmreplay of a damaged store, and whether their crc32c proves them.

Invariant: attributes are sure only if they match their crc32c, which is of all that they say, or if
they never had one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from mmreplay.errors import FormatError, MmreplayError
from mmreplay.format import layout, parse
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is left of the attributes of a lane, or of a log of a lane of many environments.

    Attributes:
        own: attributes.mmreplay, without their crc32c; None if nothing of them can be read.
        sure: whether they are what was written.
    """

    own: dict[str, Any] | None = None
    sure: bool = False


def read_attributes(path: AnyPath, kind: str = "lane") -> Attributes:
    """The attributes of what is of this kind at `path`."""
    try:
        data = checked_reads.read_bytes(path / "zarr.json", layout.MAX_METADATA_BYTES)
    except (MmreplayError, OSError):
        return Attributes()
    return parse_attributes(data, kind)


def parse_attributes(data: bytes, kind: str) -> Attributes:
    """The same of the bytes of a zarr.json."""
    try:
        own = parse.parse_root(data, "")
    except MmreplayError:
        return Attributes()
    return Attributes(own, _matches(data) is not False) if own["kind"] == kind else Attributes()


def refuse_newer(path: AnyPath) -> None:
    """Raise FormatError if a store or lane is not damaged, but of a format that we do not read."""
    document = path / "zarr.json"
    try:
        data = checked_reads.read_bytes(document, layout.MAX_METADATA_BYTES)
    except (MmreplayError, OSError):
        return
    number = (_stored(data) or {}).get("format", layout.FORMAT)
    # Attributes of any format have a crc32c: if it does not fit, the number may be the damage.
    if number != layout.FORMAT and _matches(data) is not False:
        raise FormatError(
            f"{document}: expected format {layout.FORMAT}, found {number!r:.80}; a newer mmreplay "
            f"may read it; this one does not repair it"
        )


def _stored(data: bytes) -> dict[str, Any] | None:
    """attributes.mmreplay as they stand there."""
    with contextlib.suppress(MmreplayError, KeyError, TypeError):
        own = parse.parse_json(data, "")["attributes"][layout.ATTRIBUTE]
        if isinstance(own, dict):
            return own
    return None


def _matches(data: bytes) -> bool | None:
    """Whether attributes match their crc32c; None if they cannot be read, or have none."""
    own = _stored(data)
    if own is None or layout.DIGEST not in own:
        return None
    return bool(own[layout.DIGEST] == layout.digest(own))
