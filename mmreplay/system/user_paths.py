"""Paths as the user gives them, checked before anything is created there.

Invariant: nothing is opened or created here.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mmreplay.errors import SchemaError, StoreNotFoundError
from mmreplay.system import checked_reads

_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_LONGEST = ".{}.01234567.tmp"
"""The name that a store has while it is built next to its path; see `staging`."""


def is_url(path: object) -> bool:
    """Whether something given as a path is a URL, as ``s3://bucket/pong``."""
    return isinstance(path, str) and bool(_URL.match(path))


def as_path(path: Any, argument: str = "path") -> Path:
    """A path as the user gave it; raises SchemaError, which names `argument`, if it is not one."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str) or not path:  # an empty one would be the working directory
        raise SchemaError(f"{argument}: expected a path, as a str or pathlib.Path, found {path!r}")
    if is_url(path):
        raise StoreNotFoundError(
            f"{path}: a store is a directory: get an archive with `mmreplay pull {path} PATH` "
            f"first, or with mmreplay.load({path!r}, cache=DIR)"
        )
    return Path(path)


def absolute_path(path: Any, argument: str = "path") -> Path:
    """As `as_path`, absolute; StoreNotFoundError if the working directory was removed."""
    given = as_path(path, argument)
    try:
        return given.absolute()
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{argument}: {given}: the working directory was removed; go to another one, or give "
            f"an absolute path"
        ) from error


def path_to_create(path: Any, argument: str = "path") -> Path:
    """The absolute path of something to be created; raises SchemaError if nothing can be there."""
    where = absolute_path(path, argument)
    problem = checked_reads.name_problem(where)
    if not problem and where.name and not os.path.lexists(where):
        problem = checked_reads.name_problem(where.with_name(_LONGEST.format(where.name)))
    if problem:
        raise SchemaError(
            f"{argument}: {str(where)!r:.300}: nothing can be made there: {problem}; choose "
            f"another path"
        )
    return where


def check_parent(where: Path) -> None:
    """Raise StoreNotFoundError unless the directory exists in which something is to be created."""
    try:
        if stat.S_ISDIR(where.parent.stat().st_mode):
            return
        what = "is not a directory; choose another path"
    except FileNotFoundError:
        what = "there is no such directory; make one first, or choose another path"
    except OSError as error:
        what = f"cannot be looked into: {error.strerror}; choose another path"
    raise StoreNotFoundError(f"{where.parent}: {what}")


def matching(path: Any, name: str, key: Callable[[str], Any] | None = None) -> list[Path]:
    """A path, all of a list, or what matches a pattern, in the order of `key`; as given."""
    if not isinstance(path, (str, os.PathLike)):
        if not isinstance(path, Iterable):
            raise SchemaError(
                f"{name}: expected a path, a list of them or a pattern, found {path!r:.200}"
            )
        paths = [match for entry in path for match in matching(entry, name, key)]
        if not paths:
            raise StoreNotFoundError(f"{name}: expected one path or more, found an empty list")
        return paths
    location, text = as_path(path, name), os.fspath(path)
    if os.path.exists(text) or not glob.has_magic(text):  # Path.exists raises for long names
        return [location]
    names = []
    with contextlib.suppress(ValueError):  # a NUL in the name of a directory
        names = sorted(glob.glob(text, recursive=True), key=key)
    if not names:
        raise StoreNotFoundError(f"{text}: nothing matches this pattern")
    return [Path(one) for one in names]
