"""`pull`: the store of an archive, as a directory.

Invariants:
- Nothing has the name of the store until every byte of it has been compared with its crc32c and is
  durable; a store that is there is replaced at once, and only if a pull has made it.
- Names and sizes in an archive are a stranger's: see `manifest`. A link is never made or followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from mmreplay.archive import hub
from mmreplay.archive.manifest import Lane, Manifest, Piece, is_of_rest, needed_manifest
from mmreplay.archive.objects import Objects, Progress, do_all, is_hub
from mmreplay.archive.push import chunk_pieces
from mmreplay.errors import (
    CorruptStoreError,
    FormatError,
    LockedError,
    MmreplayError,
    StoreExistsError,
)
from mmreplay.format import compression, layout
from mmreplay.maintenance.copy_lane import lock_all
from mmreplay.maintenance.verify.report import as_json
from mmreplay.reading.store import Store
from mmreplay.storage.checksums import crc32c_of_file
from mmreplay.storage.lane_metadata import check_surroundings, lane_paths
from mmreplay.system import checked_reads, durable_writes, locks, user_paths

_COPY_BYTES = 1 << 20
_FREE_BYTES, _MOST_RATIO = 64 << 20, 1100
"""A rest may unpack to 64 MiB and 1,100 times its bytes; deflate reaches 1,032."""
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, ValueError)
_MARK_BYTES = 1 << 10
_PATIENCE_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did.

    Attributes:
        path: the store.
        lanes: in it.
        transitions: that can be sampled.
        bytes: of its objects.
        received_bytes: of these, those that were not there yet.
    """

    path: str
    lanes: int
    transitions: int
    bytes: int
    received_bytes: int

    to_json = as_json


def pull(url: Any, path: str | os.PathLike[str], *, progress: Progress = None) -> Pulled:
    """Make a store of the newest push to an archive, or bring one up to date that a pull has made.

    Every byte is compared with its checksum. If it is interrupted, the next call continues.
    Unchanged files of an older pull are linked; readers that have it open keep it.

    Args:
        url: as for `push`, or ``https://``.
        path: where there is no store yet, or what a pull left there.
        progress: called with bytes that are there and bytes in all.

    Raises:
        StoreNotFoundError: no archive at the URL, or no directory above the path.
        StoreExistsError: something else is at the path, or a store that was changed since.
        FormatError: not an archive, or names and sizes that none has.
        CorruptStoreError: bytes that do not match their checksum; nothing was changed.
        LockedError: another pull to this path is running, or the store is being written.
        SchemaError, FailedStoreError, DiskFullError, MissingExtraError: as for `push`.
    """
    return _pull(url, path, progress, 0.0)


def _pull(url: Any, path: str | os.PathLike[str], progress: Progress, patience_s: float) -> Pulled:
    where = user_paths.path_to_create(path)
    check_surroundings(where)
    objects = None if is_hub(url) else Objects(url)
    work = where.with_name(f".{where.name}.pull")
    checked_reads.check_directories(where.parent, work.name)
    durable_writes.make_directory(work)
    try:
        lock = locks.DirectoryLock(work, patience_s=patience_s, who=lambda: "")
    except LockedError as error:
        raise LockedError(f"{where}: another pull to this path is running") from error
    try:
        with _Mirror(where, work) as mirror:
            new, archive = work / "new", -1
            if objects is None:
                size = received = hub.pull_from_hub(str(url), new)
            else:
                manifest = needed_manifest(objects)
                archive = manifest.digest()
                if mirror.is_there and mirror.archive == archive:
                    return _pulled(where, sum(one.size for one in manifest.objects().values()), 0)
                size, received = _fill(objects, manifest, new, mirror, progress)
            _pulled(new, size, received)  # an archive may have anything in it: it has to open
            durable_writes.sync_tree(new)
            mirror.replace(new, archive)
            return _pulled(where, size, received)
    finally:
        if not checked_reads.names(work):
            durable_writes.remove_tree(work)
        lock.release()


def _pulled(where: Path, size: int, received: int) -> Pulled:
    with Store([where]) as store:
        return Pulled(str(where), len(store.live.readers), len(store), size, received)


def pull_to_cache(url: str, cache: Any) -> Path:
    """Pull to a directory of this URL below `cache`; several processes may do so at once."""
    folder = user_paths.absolute_path(cache, "cache")
    durable_writes.make_directory(folder)
    last = "".join(one if one.isalnum() else "-" for one in url.rstrip("/").rpartition("/")[2])
    path = folder / f"{last[:60]}-{compression.crc32c(url.encode()):08x}.zarr"
    _pull(url, path, None, _PATIENCE_S)
    return path


def _digest(store: Path) -> int:
    """What differs if a store was written, or is another."""
    value = 0
    for folder in dict.fromkeys([store, *map(Path, map(str, lane_paths(store)))]):
        data = checked_reads.read_bytes(folder / "zarr.json", layout.MAX_METADATA_BYTES)
        value = compression.crc32c(data, value)
    return value


class _Mirror:
    """What an older pull left at a path, made of the manifest with digest `archive`; locked."""

    def __init__(self, where: Path, work: Path) -> None:
        self.where, self._work = where, work
        self.is_there, self.archive = False, -1
        self._locked = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Lock it, if it is there."""
        if not os.path.lexists(self.where):
            return self
        try:
            data = checked_reads.read_bytes(self._work / "mark", _MARK_BYTES)
            self.archive, *stores = map(int, data.split())
            lock_all(lane_paths(self.where), self._locked)
            self.is_there = _digest(self.where) in stores
        except LockedError:
            self._locked.close()
            raise
        except (MmreplayError, OSError, ValueError):
            pass
        if not self.is_there:
            self._locked.close()
            raise StoreExistsError(
                f"{self.where}: already exists, and is not what a pull left here; choose another "
                f"path"
            )
        return self

    def __exit__(self, *_: object) -> None:
        """Release the locks."""
        self._locked.close()

    def chunks(self, lane: Lane) -> dict[str, Piece]:
        """The chunk files of a lane that are there already."""
        if self.is_there:
            with contextlib.suppress(MmreplayError, OSError):
                return chunk_pieces(self.where / lane.name)
        return {}

    def _write_mark(self, archive: int, *stores: int) -> None:
        text = " ".join(map(str, (archive, *stores)))
        durable_writes.write_file(self._work / "mark", text.encode())

    def replace(self, new: Path, archive: int) -> None:
        """Give a new store the path, at once; what was there is removed."""
        digest, old = _digest(new), [_digest(self.where)] if self.is_there else []
        self._write_mark(-1, digest, *old)  # either may have the name if this is interrupted
        aside = self._work / "old"
        durable_writes.remove_tree(aside)
        if not self.is_there:
            if not durable_writes.replace_directory(new, self.where):
                raise StoreExistsError(f"{self.where}: another process created it meanwhile")
        else:
            if durable_writes.exchange(self.where, new):
                aside = new
            else:
                durable_writes.rename(self.where, aside)
                durable_writes.rename(new, self.where)
            durable_writes.sync_directory(self.where.parent)
            durable_writes.remove_tree(aside)
        self._write_mark(archive, digest)


def _fill(
    objects: Objects, manifest: Manifest, new: Path, mirror: _Mirror, progress: Progress
) -> tuple[int, int]:
    """Make the store of an archive at `new`, of which a part may be there; bytes, and received."""
    wanted = {
        Path(lane.name, piece.path): piece for lane in manifest.lanes for piece in lane.chunks
    }
    _keep_only(new, wanted)
    for folder in {(new / path).parent for path in wanted} | {new / x.name for x in manifest.lanes}:
        durable_writes.make_directory(folder)
    received: list[int] = []
    jobs = []
    for lane in manifest.lanes:
        # First, as it is unpacked while the others come.
        call = functools.partial(_get_rest, objects, lane, new / lane.name, received)
        jobs.append((call, lane.rest.size))
    for lane in manifest.lanes:
        shared = mirror.chunks(lane)
        for piece in lane.chunks:
            source = None
            if shared.get(piece.path) == piece:
                source = mirror.where / lane.name / piece.path
            to = new / lane.name / piece.path
            call = functools.partial(
                _get_chunk, objects, lane.key(piece), piece, to, source, received
            )
            jobs.append((call, piece.size))
    do_all(jobs, progress)
    if manifest.document is not None:
        durable_writes.write_file(new / "zarr.json", manifest.document.encode(), durable=False)
    return sum(size for _, size in jobs), sum(received)


def _keep_only(new: Path, wanted: dict[Path, Piece]) -> None:
    """Remove from an unfinished pull all that is not a chunk file of this archive."""
    if new.is_symlink() or not new.is_dir():
        durable_writes.remove_tree(new)
        return
    for folder, _, names in checked_reads.walk(new):
        for name in names:
            if Path(str(folder), name).relative_to(new) not in wanted:
                durable_writes.unlink(folder / name)
        if not checked_reads.names(folder):
            durable_writes.remove_tree(folder)


def _get_chunk(
    objects: Objects,
    key: str,
    piece: Piece,
    to: Path,
    source: Path | None,
    received: list[int],
) -> None:
    """Put a chunk file in place: it is there already, it is linked, or it is received."""
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        if crc32c_of_file(to, piece.size) == piece.crc:
            return
    durable_writes.unlink(to)
    if source is not None:
        durable_writes.share_file(source, to, piece.size)
        return
    _receive(objects, key, piece, to)
    received.append(piece.size)


def _receive(objects: Objects, key: str, piece: Piece, to: Path) -> None:
    """Write an object to a file; it has its name when it has been compared with its crc32c."""
    part = to.with_name(f"{to.name}.part")
    durable_writes.unlink(part)
    crc = size = 0

    def checked() -> Iterator[bytes]:
        nonlocal crc, size
        for data in objects.stream(key, piece.size):
            # As an array, whose slices are no copies.
            crc = compression.crc32c(np.frombuffer(data, np.uint8), crc)
            size += len(data)
            yield data

    durable_writes.write_pieces(part, checked())
    if (size, crc or 1) != (piece.size, piece.crc):
        raise CorruptStoreError(
            f"{objects.url}/{key}: expected {piece.size:,} bytes with the crc32c in its name, "
            f"found {size:,} with {crc:08x}; push the store again, to another URL"
        )
    durable_writes.rename(part, to)


def _get_rest(objects: Objects, lane: Lane, folder: Path, received: list[int]) -> None:
    """Receive the small files of a lane, and unpack them."""
    packed, key = folder / "rest.zip", lane.key(lane.rest)
    _receive(objects, key, lane.rest, packed)
    received.append(lane.rest.size)
    chunks = {piece.path for piece in lane.chunks}
    where = f"{objects.url}/{key}"
    try:
        with zipfile.ZipFile(packed) as rest:
            members = rest.infolist()
            names = [one.filename for one in members]
            odd = [name for name in names if name in chunks or not is_of_rest(name)]
            if odd or len(set(names)) != len(names):
                raise FormatError(f"{where}: has no such file in it: {odd[:1]!r:.200}")
            kinds = {one.compress_type for one in members} - {
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            }
            most = _FREE_BYTES + _MOST_RATIO * lane.rest.size
            total = sum(one.file_size for one in members)
            if kinds or total > most:
                raise FormatError(f"{where}: unpacks to {total:,} bytes; expected at most {most:,}")
            for one in members:
                durable_writes.make_directory((folder / one.filename).parent)
                with rest.open(one) as file:
                    pieces = iter(functools.partial(file.read, _COPY_BYTES), b"")
                    durable_writes.write_pieces(folder / one.filename, pieces)
    except _ZIP_ERRORS as error:
        raise FormatError(f"{where}: expected a zip, found something else: {error}") from error
    durable_writes.unlink(packed)
