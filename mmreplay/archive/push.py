"""`push`: a store as objects, of which only those are sent that are not there yet.

Invariants:
- An object is never overwritten by other bytes: its name has their crc32c. The manifest is
  exchanged after all objects that it names are there, if it is still the one that was read.
- Nothing is removed that a manifest of the last `grace_s` seconds names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

from mmreplay.archive import hub
from mmreplay.archive.manifest import (
    MANIFEST,
    Lane,
    Manifest,
    Piece,
    is_object,
    is_of_rest,
    read_manifest,
)
from mmreplay.archive.objects import Objects, Progress, do_all, is_hub
from mmreplay.arguments import check_number
from mmreplay.errors import CorruptStoreError, SchemaError, StoreExistsError
from mmreplay.format import layout
from mmreplay.format.layout import FINALS
from mmreplay.maintenance.snapshot import copy_now
from mmreplay.maintenance.verify.report import as_json
from mmreplay.reading.lane_reader import LaneReader, file_stamp
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import hold_store, lane_paths, read_lane, read_metadata
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.staging import locked_temporary_directory, staging_directory

_ATTEMPTS = 20
_COPY_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did.

    Attributes:
        url: of the archive.
        lanes: in it.
        objects: in it, without the manifest.
        bytes: of these.
        sent_objects: of these, those that were sent.
        sent_bytes: of these.
        removed_objects: that had been out of use for long enough.
    """

    url: str
    lanes: int
    objects: int
    bytes: int
    sent_objects: int
    sent_bytes: int
    removed_objects: int

    to_json = as_json


def push(
    path: str | os.PathLike[str],
    url: Any,
    *,
    grace_s: float = 3600.0,
    page: str | os.PathLike[str] | None = None,
    progress: Progress = None,
) -> Pushed:
    """Send a store to object storage as it is now: closed, live or left by a crash.

    Only what is not there yet is sent: of a lane that has not changed since the last push nothing.
    If it is interrupted, the archive is what it was before, and the next call continues. Writers of
    the store are not disturbed.

    Args:
        path: the store.
        url: of the archive of this store only: ``s3://bucket/pong``, ``gs://``, ``az://``,
            ``file:///data/pong``, ``hf://datasets/OWNER/NAME``, or a store object of obstore.
        grace_s: how long objects stay that the newest push does not need: the time of a pull.
        page: a folder that `export_view` has written, which goes along to ``hf://``.
        progress: called with bytes that are there and bytes in all.

    Raises:
        StoreNotFoundError, FormatError, CorruptStoreError: there is no store, or a damaged one, or
            something at the URL that is not an archive.
        SchemaError: not such a URL, or a wrong argument.
        StoreExistsError: another store was pushed to the URL.
        LockedError: another push ended meanwhile; nothing was changed.
        FailedStoreError, DiskFullError: the storage failed, or there is no room for a copy of what
            a live lane may still change.
        MissingExtraError: ``mmreplay[s3]``, or ``mmreplay[huggingface]``, is not installed.
    """
    check_number("grace_s", grace_s)
    named = user_paths.as_path(path)
    if is_hub(url):
        lanes, files, n_bytes = hub.push_to_hub(named, str(url), page)
        return Pushed(str(url), lanes, files, n_bytes, files, n_bytes, 0)
    if page is not None:
        raise SchemaError("page: only hf:// takes a page; copy the folder to any static host")
    objects = Objects(url, make=True)
    for _ in range(_ATTEMPTS):
        try:
            return _push(named, objects, grace_s, progress)
        except EvictedError:  # a closed lane was opened at this moment
            continue
    raise CorruptStoreError(f"{named}: changed {_ATTEMPTS} times while it was being pushed")


def _push(named: Path, objects: Objects, grace_s: float, progress: Progress) -> Pushed:
    source = hold_store(named).root
    lanes = lane_paths(source)
    found = read_manifest(objects)
    old, tag = (Manifest(), None) if found is None else found
    known = {lane.name: lane for lane in old.lanes}
    theirs = {uuid for lane in old.lanes for uuid in (lane.uuid, lane.copy_uuid)}
    if old.lanes and theirs.isdisjoint(read_metadata(lane)["uuid"] for lane in lanes):
        raise StoreExistsError(
            f"{objects.url}: has another store than {named}, which would be removed; push to "
            f"another URL, or remove {MANIFEST} there first"
        )
    with contextlib.ExitStack() as opened:
        rests, lock = locked_temporary_directory()
        opened.callback(lock.release)
        opened.callback(durable_writes.remove_tree, rests)
        staged: AnyPath | None = None  # copies of live lanes beside the store, to share its files
        new, files = Manifest(), dict[str, Path]()
        for number, lane in enumerate(lanes):
            name = "" if lane == source else lane.name
            reader = LaneReader(lane)
            state, last = _state(reader), known.get(name)
            if last is not None and last.state == state:
                new.lanes.append(last)
                continue
            folder, packed = lane, Path(str(rests), f"{number}.zip")
            if not reader.is_closed:
                staged = staged or opened.enter_context(staging_directory(named.absolute()))
                folder = staged / lane.name
                copy_now(lane, folder, lambda _: None)
            sent = _as_pieces(name, state, Path(str(folder)), packed)
            if reader.is_closed and reader.rows.replaced():
                raise EvictedError(str(lane))
            new.lanes.append(sent)
            files[sent.key(sent.rest)] = packed
            files |= {sent.key(one): Path(str(folder), one.path) for one in sent.chunks}
        if lanes != [source]:
            root = checked_reads.read_bytes(source / "zarr.json", layout.MAX_METADATA_BYTES)
            new.document = root.decode()
        return _send(objects, old, tag, new, files, grace_s, progress)


def _state(reader: LaneReader) -> str:
    """What differs if a lane may have other rows: its opening, and where its logs begin and end."""
    logs = reader.rows, reader.finals
    parts = [*file_stamp(reader.path), *((log.session, log.base, log.head) for log in logs)]
    return f"{reader.metadata['uuid']} {parts}"


def chunk_pieces(folder: AnyPath) -> dict[str, Piece]:
    """The chunk files of a closed lane that no writer will change again, by path below it."""
    document, out = read_lane(folder), dict[str, Piece]()
    own = document.metadata
    for log, specs, n_rows in (
        ("", document.rows, own["rows"]),
        (f"{FINALS}/", document.finals, own["finals"]),
    ):
        for path, spec in specs.items():
            for chunk in chunk_files.chunk_files(folder / log, spec):
                # The newest row may still end.
                is_settled = (chunk + 1) * spec.chunk_rows < n_rows
                if is_settled and (crc := stored_checksum(folder / log, spec, chunk)):
                    file = chunk_files.chunk_path(folder / log, spec, chunk)
                    name = f"{log}{path}/{file.name}"
                    out[name] = Piece(name, crc, file.lstat().st_size)
    return out


def _as_pieces(name: str, state: str, folder: Path, packed: Path) -> Lane:
    """What of a closed lane becomes which object; the rest of it is written to `packed`."""
    try:
        chunks = chunk_pieces(folder)
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as rest:
            for path in sorted(folder.rglob("*")):
                file = path.relative_to(folder).as_posix()
                if file not in chunks and is_of_rest(file) and path.is_file():
                    is_large = path.lstat().st_size >= 1 << 31
                    descriptor = checked_reads.open_regular(path, os.O_RDONLY)
                    with (
                        os.fdopen(descriptor, "rb") as source,
                        rest.open(file, "w", force_zip64=is_large) as out,
                    ):
                        shutil.copyfileobj(source, out, _COPY_BYTES)
    except FileNotFoundError as error:
        raise EvictedError(str(folder)) from error
    size = packed.stat().st_size
    piece = Piece("rest", crc32c_of_file(packed, size), size)
    copy_uuid = read_metadata(folder)["uuid"]
    return Lane(name, state, copy_uuid, piece, list(chunks.values()))


def _send(
    objects: Objects,
    old: Manifest,
    tag: str | None,
    new: Manifest,
    files: dict[str, Path],
    grace_s: float,
    progress: Progress,
) -> Pushed:
    """Send what is missing, exchange the manifest, remove what is due."""
    now, had, used = time.time(), old.objects(), new.objects()
    gone = old.gone | {key: now for key in had if key not in old.gone}
    due = {key for key, when in old.gone.items() if key not in used and when < now - grace_s}
    new.gone = {key: when for key, when in gone.items() if key not in used and key not in due}
    total = sum(piece.size for piece in used.values())
    if (new.lanes, new.document, tag is None, due) == (old.lanes, old.document, False, set()):
        return Pushed(objects.url, len(new.lanes), len(used), total, 0, 0, 0)
    there = objects.sizes()
    missing = {key: piece for key, piece in used.items() if there.get(key, (-1,))[0] != piece.size}
    lost = next((key for key in missing if key not in files), None)
    if lost is not None:
        raise CorruptStoreError(
            f"{objects.url}: {lost}: was removed from the archive by others; push to another URL"
        )
    do_all(
        [
            (functools.partial(_send_one, objects, key, files[key], piece), piece.size)
            for key, piece in missing.items()
        ],
        progress,
    )
    objects.exchange(MANIFEST, new.to_json(), tag)
    # A push that runs meanwhile finds another manifest, so it cannot need what is removed.
    due |= {
        key
        for key, (_, written) in there.items()
        if is_object(key) and key not in used and key not in new.gone and written < now - grace_s
    }
    due &= there.keys()
    if due:
        objects.remove(sorted(due))
    sent = sum(piece.size for piece in missing.values())
    return Pushed(objects.url, len(new.lanes), len(used), total, len(missing), sent, len(due))


def _send_one(objects: Objects, key: str, path: Path, piece: Piece) -> None:
    try:
        crc = crc32c_of_file(path, piece.size)
    except FileNotFoundError as error:
        raise EvictedError(str(path)) from error
    if crc != piece.crc:
        raise CorruptStoreError(
            f"{path}: does not match its checksum; run `mmreplay verify`, and `mmreplay repair`"
        )
    objects.write(key, path, piece.size)
