"""The zarr.json files of a store, read and checked: attributes, arrays, lanes."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmreplay.errors import (
    CorruptStoreError,
    FormatError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec, Documents
from mmreplay.format.plan import episode_specs, final_columns, row_columns
from mmreplay.schema import Schema
from mmreplay.system import checked_reads, user_paths
from mmreplay.system.held_directories import AnyPath, HeldDirectory

_MOST_LETTERS = 255


def store_around(path: Path) -> Path | None:
    """The store, or lane, that contains a path, or None."""
    for above in path.resolve().parents:
        with contextlib.suppress(MmreplayError, OSError):
            if (above / "zarr.json").is_file():
                read_metadata(above)
                return above
    return None


def path_of_new_store(target: Any, argument: str = "target") -> Path:
    """The path of a new store, as given; raises if nothing can be made there."""
    where = user_paths.as_path(target, argument)
    user_paths.path_to_create(target, argument)
    if os.path.lexists(where):
        raise StoreExistsError(f"{where}: already exists; choose another path")
    check_surroundings(where)
    return where


def check_surroundings(where: Path) -> None:
    """Raise unless the directory above a new store exists, and is not within another store."""
    user_paths.check_parent(where)
    if (store := store_around(where)) is not None:
        raise SchemaError(f"{where}: lies within the store {store}; choose another path")


def hold_store(path: Path) -> HeldDirectory:
    """Hold a store's directory open; raises as `read_metadata` if there is none."""
    try:
        return HeldDirectory(path)
    except (OSError, ValueError, CorruptStoreError):
        read_metadata(path)
        raise


def read_metadata(path: AnyPath) -> dict[str, Any]:
    """attributes.mmreplay of a store or lane, checked; StoreNotFoundError if there is nothing."""
    return parse.parse_root(read_document(path), str(path / "zarr.json"))


def declared_extras(path: AnyPath) -> Collection[str]:
    """The names of the extra columns that a store or lane declares."""
    schema = parse.schema_from_json(read_metadata(path).get("schema"), str(path / "zarr.json"))
    return schema.extra_fields


def kept_extras(paths: Sequence[AnyPath], leave_out: Collection[str]) -> list[str] | None:
    """The names of extra columns that some stores have, but for these; None: all of them."""
    if not leave_out:
        return None
    if isinstance(leave_out, str):
        raise SchemaError(f"leave_out: expected a list of names, found {leave_out!r:.80}")
    known = dict.fromkeys(name for path in paths for name in declared_extras(path))
    if unknown := sorted({*leave_out} - known.keys()):
        raise SchemaError(
            f"leave_out: expected extra columns, of {sorted(known) or 'none'}; found "
            f"{unknown!r:.200}"
        )
    return [name for name in known if name not in leave_out]


@dataclass(frozen=True, slots=True)
class LaneDocument:
    """What the zarr.json files of a lane say, read and checked once."""

    path: AnyPath
    data: bytes
    metadata: dict[str, Any]
    schema: Schema
    rows: dict[str, ArraySpec]
    finals: dict[str, ArraySpec]
    episodes: dict[str, ArraySpec]
    lengths: tuple[int, int]

    @property
    def environments(self) -> int | None:
        """How many step together; None where arrays have no axis for them, as there is one."""
        environments: int | None = self.metadata["environments"]
        return environments

    @property
    def n(self) -> int:
        """Environments."""
        return self.environments or 1


Given = LaneDocument | None  # if it was read already


def read_lane(
    path: AnyPath, *, own_documents: bool = False, extras: Collection[str] | None = None
) -> LaneDocument:
    """A lane's documents; `own_documents` ignores the copy that a closed lane has of them.

    Extra columns that have none of the names in `extras` are left out; None leaves out none.
    """
    where = str(path / "zarr.json")
    data = read_document(path)
    document = parse.parse_json(data, where)
    metadata = parse.root_attributes(document, where)
    if metadata["kind"] != "lane":
        raise FormatError(f"{path}: expected a lane, found a store of lanes")
    schema = parse.schema_from_json(metadata.get("schema"), where).only(extras)
    copy = None
    if metadata["closed"] and not own_documents:
        copy = parse.find_copy(document, where)
    columns = row_columns(schema, metadata["environments"])
    finals = final_columns(schema)
    episodes = episode_specs(schema.episode)
    checked_reads.check_directories(path, ".live", f"{layout.FINALS}/.live", *episodes)
    rows, n_rows = _read_specs(path, columns, copy)
    ends, n_ends = _read_specs(path, finals, copy, layout.FINALS)
    for name, spec in ends.items():
        if name in rows and rows[name].is_raw != spec.is_raw:
            raise FormatError(
                f"{path}: {name}: expected frames and final frames both raw, or both compressed; "
                f"found {rows[name].codec_name} and {spec.codec_name}"
            )
    return LaneDocument(path, data, metadata, schema, rows, ends, episodes, (n_rows, n_ends))


def kind_and_name(path: AnyPath) -> tuple[str, str | None]:
    """The kind of a store or lane, and its name, if any; raises as `read_metadata`."""
    return _kind_and_name(read_document(path), str(path / "zarr.json"))


@functools.lru_cache(maxsize=512)  # to add a lane, the documents of all others are read
def _kind_and_name(data: bytes, where: str) -> tuple[str, str | None]:
    own = parse.parse_root(data, where)
    return own["kind"], own.get("name")


def read_document(path: AnyPath) -> bytes:
    """The zarr.json of a store, lane or log; raises as `read_metadata`, if it cannot be read."""
    where = path / "zarr.json"
    without: tuple[int, int] | None = None
    while True:
        try:
            return checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES)
        except FileNotFoundError as error:
            found = _directory(path)
            if found is None:
                advice = "check the path, or record one first"
                if glob.has_magic(str(path)):
                    advice = "a pattern stands for several stores, and one is expected; name it"
                raise StoreNotFoundError(f"{path}: there is no store here; {advice}") from error
            if found == without:
                raise FormatError(
                    f"{path}: no zarr.json in it: not a store; check the path, or, if it was one, "
                    f"put its zarr.json files back from a copy"
                ) from error
            without = found  # a store may have come here since: look once more
        except NotADirectoryError as error:
            raise FormatError(f"{path}: expected a directory, found a file: not a store") from error
        except CorruptStoreError as error:
            if isinstance(error.__cause__, PermissionError):
                raise StoreNotFoundError(str(error)) from error
            raise
        except (OSError, ValueError) as error:
            if problem := checked_reads.name_problem(where):
                raise StoreNotFoundError(
                    f"{str(path)!r:.300}: there is no store here: {problem}; check the path"
                ) from error
            raise


def _directory(path: AnyPath) -> tuple[int, int] | None:
    """Device and inode of what a path leads to; None if that is nothing."""
    try:
        about = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about.st_dev, about.st_ino


def _read_specs(
    path: AnyPath, columns: Mapping[str, ArraySpec], copy: Documents | None, log: str = ""
) -> tuple[dict[str, ArraySpec], int]:
    """The arrays of one of a lane's logs, by path below it, and their number of rows; checked."""
    below = f"{log}/" if log else ""
    folders = "", "checksums/"
    checked_reads.check_directories(path, *(below + f + name for f in folders for name in columns))
    specs: dict[str, ArraySpec] = {}
    rows: int | None = None
    for name, one in columns.items():
        (spec, found), where = read_array(path, below + name, name, copy)
        if (spec.row_shape, spec.dtype) != (one.row_shape, one.dtype):
            raise FormatError(
                f"{where}: expected rows of {one.row_shape} {one.dtype}, as the schema says; found "
                f"{spec.row_shape} {spec.dtype}"
            )
        if spec.width != one.width and not (spec.is_raw and spec.width == 1):
            what = "parts of a chunk file" if spec.is_raw else "inner chunks beside each other"
            raise FormatError(f"{where}: expected {one.width:,} {what}, found {spec.width:,}")
        if rows is not None and found != rows:
            # Cut off between two arrays of a close: the root says what holds.
            found = min(found, rows)
        specs[name], rows = spec, found
        if not spec.is_raw and not name.startswith("frames"):
            raise FormatError(f"{where}: expected raw chunks, found {spec.codec_name}")
    for name, text in layout.odd_lengths(specs):
        raise FormatError(f"{read_array(path, below + name, name, copy)[1]}: {text}")
    return specs, rows or 0


def read_array(
    lane: AnyPath, path: str, name: str, copy: Documents | None
) -> tuple[tuple[ArraySpec, int], str]:
    """An array's spec and rows, and the name of its document, or where a copy has it."""
    if copy is not None and path in copy:
        shown = f"{lane / 'zarr.json'}: {layout.COPY}: {path}"
        return parse.array_spec(copy[path], name, shown), shown
    where = lane.joinpath(path, "zarr.json")
    try:
        data = checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        advice = ""
        if path.startswith("derived/"):
            column = path.partition("/")[2]
            advice = f", or do without it (mmreplay drop-column PATH {column}, load(columns=[...]))"
        raise FormatError(
            f"{where}: missing; every column of the schema has one, so the store is damaged, "
            f"or was copied in part: run `mmreplay verify`, then `mmreplay repair`, or copy it "
            f"again{advice}"
        ) from error
    return parse.parse_array(data, name, str(where)), str(where)


def read_holder(lane: AnyPath) -> dict[str, Any] | None:
    """The process that opened a lane for writing last: pid, host, since; None if not known."""
    where = lane / ".live" / "writer"
    try:
        checked_reads.check_directories(lane, ".live")
        about = parse.parse_json(
            checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES), str(where)
        )
    except (OSError, MmreplayError):
        return None
    words = [about.get("host"), about.get("since")]
    is_sound = isinstance(about.get("pid"), int) and all(
        isinstance(word, str) and word.isprintable() and len(word) <= _MOST_LETTERS
        for word in words
    )
    return {name: about[name] for name in ("pid", "host", "since")} if is_sound else None


def lane_paths(path: AnyPath) -> list[AnyPath]:
    """The lanes of a store, in order; the store itself if it is one lane."""
    with contextlib.suppress(OSError, ValueError, MmreplayError):  # raised again below
        names = checked_reads.names(path)
        if "actions" in names and not layout.lane_names(names):
            return [path]  # opening it will tell: one document less to read twice
    if kind_and_name(path)[0] != "lanes":
        return [path]
    lanes = [path / name for name in layout.lane_names(checked_reads.names(path))]
    checked_reads.check_directories(path, *(lane.name for lane in lanes))
    if not lanes:
        raise FormatError(
            f"{path}: no process has written to this store yet; try again, or write a lane of it "
            f"(create with lane=...)"
        )
    return lanes
