"""Where a store is, or is to be: paths as the user gives them, checked before anything is made.

Invariant: nothing is opened or made here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from mmreplay.errors import SchemaError, StoreNotFoundError
from mmreplay.system import checked_reads

__all__ = ["check_above", "given", "to_make"]

_LONGEST = ".{}.01234567.tmp"
"""The name that something has beside its place while it is being built."""


def given(path: Any, argument: str = "path") -> Path:
    """A path as the user gave it.

    Args:
        path: the user's.
        argument: what the user calls it.

    Raises:
        SchemaError: it is no path.
    """
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise SchemaError(f"{argument}: expected a path, a text or a pathlib.Path, found {path!r}")
    return Path(path)


def to_make(path: Any, argument: str = "path") -> Path:
    """The absolute path of something that may be made there; as `given`.

    Raises:
        SchemaError: it is no path, or a name that nothing can have.
    """
    where = given(path, argument).absolute()  # whatever becomes of the working directory
    problem = checked_reads.name_problem(where)
    if not problem and where.name and not os.path.lexists(where):
        problem = checked_reads.name_problem(where.with_name(_LONGEST.format(where.name)))
    if problem:
        raise SchemaError(
            f"{argument}: {str(where)!r:.300}: nothing can be made there: {problem}; choose "
            f"another path"
        )
    return where


def check_above(where: Path) -> None:
    """Make sure that there is a directory above what is to be made.

    Raises:
        StoreNotFoundError: there is none.
    """
    try:
        if stat.S_ISDIR(where.parent.stat().st_mode):
            return
        what = "is no directory; choose another path"
    except FileNotFoundError:
        what = "there is no such directory; make one first, or choose another path"
    except OSError as error:
        what = f"cannot be looked into: {error.strerror}; choose another path"
    raise StoreNotFoundError(f"{where.parent}: {what}")
