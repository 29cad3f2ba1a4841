"""The manifest of an archive: which objects are which files of a store.

Invariant: no name in a manifest that was read leads out of the store's directory, and none is
other than a store has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmreplay.archive.objects import SMALL_BYTES, Objects
from mmreplay.errors import FormatError, StoreNotFoundError
from mmreplay.format import compression, layout, parse

MANIFEST = "mmreplay.json"
_VERSION = 1
_MOST_REST_BYTES = 1 << 40
_LETTERS = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}"
_ARRAYS = "|".join(("frames", "extras", "id", "first", *layout.SCALARS))
_CHUNK = rf"(?:{layout.FINALS}/)?(?:{_ARRAYS})(?:/{_LETTERS})?/c(?:\.[0-9]{{1,15}}){{1,9}}"
_IS_CHUNK = re.compile(_CHUNK)
_IS_REST = re.compile(rf"(?:{_LETTERS}/){{0,4}}(?:zarr\.json|c(?:\.[0-9]{{1,15}}){{0,9}})")
_IS_OBJECT = re.compile(rf"(?:lane-[0-9]{{5}}/)?(?:rest|{_CHUNK})@[0-9a-f]{{8}}")
_IS_CRC = re.compile(r"[0-9a-f]{8}")


class Piece(NamedTuple):
    """A file of a lane that is an object of its own: its path below the lane, crc32c and bytes."""

    path: str
    crc: int
    size: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of an archive: its name, "" of the only one, and its objects.

    `state` identifies the lane, by its uuid, and the moment of the copy. `copy_uuid` is that of a
    store that is pulled: another one if the lane was live. `rest` is a zip of all files other than
    the chunk files.
    """

    name: str
    state: str
    copy_uuid: str
    rest: Piece
    chunks: list[Piece]

    @property
    def uuid(self) -> str:
        """The uuid of the lane that was pushed."""
        return self.state.partition(" ")[0]

    def key(self, piece: Piece) -> str:
        """The name of the object: never that of other bytes."""
        above = f"{self.name}/" if self.name else ""
        return f"{above}{piece.path}@{piece.crc:08x}"

    def objects(self) -> Iterator[tuple[str, Piece]]:
        """All objects, (key, piece)."""
        yield self.key(self.rest), self.rest
        for piece in self.chunks:
            yield self.key(piece), piece


@dataclass(slots=True)
class Manifest:
    """The lanes, the zarr.json of a store of lanes, and when objects went out of use, by key."""

    lanes: list[Lane] = field(default_factory=list)
    document: str | None = None
    gone: dict[str, float] = field(default_factory=dict)

    def objects(self) -> dict[str, Piece]:
        """What is in use, by key."""
        return {key: piece for lane in self.lanes for key, piece in lane.objects()}

    def digest(self) -> int:
        """The crc32c of what a pull makes of it."""
        return compression.crc32c(Manifest(self.lanes, self.document).to_json())

    def to_json(self) -> bytes:
        """As it is stored."""
        lanes = [
            {
                "name": lane.name,
                "state": lane.state,
                "copy": lane.copy_uuid,
                "rest": [f"{lane.rest.crc:08x}", lane.rest.size],
                "chunks": [[one.path, f"{one.crc:08x}", one.size] for one in lane.chunks],
            }
            for lane in self.lanes
        ]
        document = {"archive": _VERSION, "document": self.document, "lanes": lanes}
        return json.dumps(document | {"gone": self.gone}, separators=(",", ":")).encode()


def is_object(key: str) -> bool:
    """Whether an object may be one of an archive: others are left alone."""
    return bool(_IS_OBJECT.fullmatch(key))


def is_of_rest(path: str) -> bool:
    """Whether a file below a lane is one that an archive has."""
    return bool(_IS_REST.fullmatch(path))


def read_manifest(objects: Objects) -> tuple[Manifest, str | None] | None:
    """The manifest and its ETag; None without a manifest, FormatError if it is invalid."""
    found = objects.read(MANIFEST, SMALL_BYTES)
    if found is None:
        return None
    where = f"{objects.url}/{MANIFEST}"
    own = parse.parse_json(found[0], where)
    if own.get("archive") != _VERSION:
        raise FormatError(
            f"{where}: expected archive {_VERSION}, found {own.get('archive')!r:.80}; a newer "
            f"mmreplay may have written it"
        )
    try:
        lanes = [_lane(one) for one in own["lanes"]]
        document, gone = own["document"], own["gone"]
        if not (document is None or isinstance(document, str)) or not isinstance(gone, dict):
            raise ValueError("document or gone")
        times = {_matching(_IS_OBJECT, key): float(when) for key, when in gone.items()}
        names = [lane.name for lane in lanes]
        expected = [""] if document is None else layout.lane_names(set(names))
        if names != expected or not names:
            raise ValueError(f"lanes {names}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{where}: not the manifest of an archive, or a damaged one: {error!s:.300}"
        ) from error
    return Manifest(lanes, document, times), found[1]


def needed_manifest(objects: Objects) -> Manifest:
    """What an archive has; StoreNotFoundError if there is none."""
    found = read_manifest(objects)
    if found is None:
        raise StoreNotFoundError(
            f"{objects.url}: there is no archive here, no {MANIFEST}; check the URL, or push to it"
        )
    return found[0]


def _lane(own: Any) -> Lane:
    chunks = [
        Piece(_matching(_IS_CHUNK, path), _crc(crc), _size(size, 2 * layout.MAX_CHUNK_BYTES))
        for path, crc, size in own["chunks"]
    ]
    if len({one.path for one in chunks}) != len(chunks):
        raise ValueError("a chunk file twice")
    crc, size = own["rest"]
    rest = Piece("rest", _crc(crc), _size(size, _MOST_REST_BYTES))
    return Lane(str(own["name"]), str(own["state"]), str(own["copy"]), rest, chunks)


def _matching(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"the name {text!r:.200}")
    return text


def _crc(text: Any) -> int:
    return int(_matching(_IS_CRC, text), 16)


def _size(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"the size {value!r:.80}")
    return value
