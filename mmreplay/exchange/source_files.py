"""The sources of an import, and their untrusted files, checked before a library opens them.

Invariant: only the named file, or regular files below the named folder, are read, never through a
link; sizes that a file claims are compared with its own size before memory is allocated.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mmreplay.errors import (
    CorruptStoreError,
    FormatError,
    MmreplayError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.exchange.losses import Losses
from mmreplay.system import user_paths
from mmreplay.system.checked_reads import open_regular
from mmreplay.system.limits import check_limit

AT_ONCE_BYTES = 256 << 20
"""The largest piece that is decoded at once: a chunk, a page, an array that is needed whole."""

ROW_BYTES = 64 << 20  # the largest row, of one column and of all columns together

_ZIPPED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_JSON_BYTES = 64 << 20
_FREE_BYTES, _MOST_RATIO = 64 << 20, 1100
"""All rows may have 64 MiB and 1,100 times the bytes of the source; deflate reaches 1,032."""


def find_sources(given: Any, chosen: Any, losses: Losses) -> tuple[list[Any], float]:
    """What is read of a format, one after the other, and the bytes of all files."""
    if not isinstance(given, (str, os.PathLike, list, tuple)) and chosen.takes_arrays:
        return [given], math.inf
    paths = [_source_path(one) for one in user_paths.matching(given, "src", by_numbers)]
    if paths == sorted(paths, key=str):  # as a shell and `sorted` put them: file 10 before file 2
        paths.sort(key=by_numbers)
    if len(paths) > 1 and chosen.files is None:
        raise SchemaError(f"{chosen.name}: expected one source, found {len(paths)}; import each")
    found: list[Any] = []
    n_bytes = 0
    for path in paths:
        with reading(path, chosen.name):
            n_bytes += sum(source_files(path).values())
            inside = chosen.files(path, losses) if chosen.files and path.is_dir() else []
        found += inside or [path]
    with reading(paths[0], chosen.name):
        return chosen.tables(found, losses) if chosen.tables else found, n_bytes


def shown(source: Any) -> object:
    """A source in messages: the first of its files."""
    first = source[0] if isinstance(source, list) else source
    return first if isinstance(first, Path) else "src"


def _source_path(src: Any) -> Path:
    source = user_paths.absolute_path(src, "src")
    if not os.path.lexists(source):
        raise StoreNotFoundError(f"{source}: there is no such file or directory")
    try:  # only a link that the caller named is followed
        return source.resolve(strict=True) if source.is_symlink() else source
    except (OSError, RuntimeError) as error:
        raise StoreNotFoundError(f"{source}: this link leads to itself or to nothing") from error


@contextlib.contextmanager
def reading(source: object, name: str) -> Iterator[None]:
    """Whatever a library raises for an invalid file, as FormatError."""
    try:
        yield
    except MmreplayError:
        raise
    except Exception as error:
        if isinstance(error, OSError):
            check_limit(error, source)
        raise FormatError(
            f"{source}: cannot be read as {name}: {type(error).__name__}: {error!s:.300}; see "
            f"`mmreplay import --help` for the formats"
        ) from error


def source_files(source: Path) -> dict[str, int]:
    """The bytes of each file below a folder, by relative name; "" for a file. Refuses links."""
    about = source.stat()
    if stat.S_ISREG(about.st_mode):
        return {"": about.st_size}
    if not stat.S_ISDIR(about.st_mode):
        raise FormatError(f"{source}: expected a file or a directory, found a pipe or a device")
    found, todo = {}, [os.fspath(source)]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    name = Path(entry.path).relative_to(source).as_posix()
                    found[name] = entry.stat(follow_symlinks=False).st_size
                else:
                    kind = "a link" if entry.is_symlink() else "a pipe, a socket or a device"
                    raise FormatError(
                        f"{entry.path}: expected files and directories only, found {kind}; an "
                        f"import follows no links: if you trust them, copy the folder with `cp -rL`"
                    )
    return dict(sorted(found.items()))


def add_other_files(source: Path, used: Callable[[str], Any], losses: Losses) -> None:
    """Count the files of a folder for whose relative name `used` is false."""
    others = [name for name in source_files(source) if not used(name)]
    losses.add_names("files that are not read", others)


def files_named(*suffixes: str, needed: bool = False) -> Callable[[Path, Losses], list[Path]]:
    """A function that lists the files of a folder whose names end like this, by their numbers."""

    def files(folder: Path, losses: Losses) -> list[Path]:
        names = [name for name in source_files(folder) if name.endswith(suffixes)]
        if names:
            add_other_files(folder, names.__contains__, losses)
        elif needed:
            raise FormatError(f"{folder}: expected {', '.join(suffixes)} files, found none")
        return sorted((folder / name for name in names), key=by_numbers)

    return files


def by_numbers(path: str | Path) -> list[int | str]:
    """A key that sorts file 2 before file 10."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def inside(folder: Path, *names: str) -> Path:
    """A path below a folder; raises FormatError for names that lead out of it."""
    path = folder.joinpath(*names)
    if ".." in path.parts or not path.is_relative_to(folder):
        raise FormatError(
            f"{folder}: expected names of files in this folder, found {'/'.join(names)!r:.200}"
        )
    return path


def open_file(path: Path) -> IO[bytes]:
    """A regular file, for reading; raises FormatError for links, pipes and devices."""
    try:
        return open(path, "rb", opener=lambda name, flags: open_regular(Path(name), flags))
    except CorruptStoreError as error:
        raise FormatError(f"{path}: expected a regular file with permission to read it") from error


def checked_name(path: Path) -> str:
    """The path of a regular file, for a library that opens files by name."""
    with open_file(path):
        return str(path)


def read_json(path: Path) -> Any:
    """A JSON document; raises FormatError if it is very large."""
    with open_file(path) as file:
        data = file.read(_JSON_BYTES + 1)
    if len(data) > _JSON_BYTES:
        raise FormatError(f"{path}: expected at most {_JSON_BYTES:,} bytes of JSON, found more")
    return json.loads(data)


def check_member(about: zipfile.ZipInfo, source: Path) -> None:
    """Raise FormatError for a member of a zip whose decompression has no bound on memory."""
    if about.compress_type not in _ZIPPED:
        raise FormatError(
            f"{source}: {about.filename!r:.200}: expected a member that is stored or deflated, "
            f"found compression {about.compress_type}; zip it as numpy does"
        )


def check_row(n_bytes: int, what: object) -> None:
    """Raise FormatError for rows of more than `ROW_BYTES`."""
    if n_bytes > ROW_BYTES:
        raise FormatError(
            f"{what}: expected rows of at most {ROW_BYTES:,} bytes, found {n_bytes:,}; write "
            f"such a store with mmreplay.create"
        )


def check_at_once(n_bytes: int, what: str, most: int = AT_ONCE_BYTES) -> None:
    """Raise FormatError for a piece of more than `most` bytes."""
    if n_bytes > most:
        raise FormatError(
            f"{what}: expected at most {most:,} bytes in one piece, found {n_bytes:,}; "
            f"write it in smaller chunks"
        )


def check_claim(n_bytes: int, source_bytes: float, what: object) -> None:
    """Raise FormatError for rows that no compression could fit into the bytes of the source."""
    most = _FREE_BYTES + _MOST_RATIO * source_bytes
    if n_bytes > most:
        raise FormatError(
            f"{what}: expected up to {most:,} bytes of rows from {source_bytes:,} bytes of files, "
            f"found {n_bytes:,}; its numbers of rows are wrong, or most rows are fill values: read "
            f"it with its own library, and import the arrays"
        )
