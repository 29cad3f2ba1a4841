"""Directories that are held open: a path below one leads into it, wherever it has been moved.

Invariant: a `HeldPath` is looked up from an open descriptor, never by the name that its directory
had when it was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from mmreplay.errors import CorruptStoreError, FailedStoreError
from mmreplay.system import platform
from mmreplay.system.limits import check_limit


class HeldDirectory:
    """A directory held open: `descriptor`, -1 once it is closed.

    `path` is what it was opened as, for messages, or `named`.
    """

    def __init__(self, path: AnyPath, *, named: Path | None = None) -> None:
        self.descriptor = -1
        self.path = named or Path(str(path))
        if not platform.OPENS_FROM_DIRECTORIES:
            raise FailedStoreError(
                f"{path}: this system cannot hold a directory open, so nothing can be written "
                f"here; closed stores can be read"
            )
        name, folder = at(path)
        try:
            self.descriptor = os.open(
                name, os.O_RDONLY | platform.DIRECTORY | platform.CLOEXEC, dir_fd=folder
            )
        except PermissionError as error:
            raise CorruptStoreError(f"{path}: may not be read: {error.strerror}") from error
        except OSError as error:
            check_there(path, error)
            check_limit(error, path)
            raise
        self._absolute = self.path.absolute()  # the working directory may change

    @property
    def root(self) -> HeldPath:
        """The directory itself."""
        return HeldPath(self)

    def is_at(self, path: AnyPath) -> bool:
        """Whether a path leads to it; raises FileNotFoundError if it leads nowhere."""
        name, folder = at(path)
        there, here = os.stat(name, dir_fd=folder), os.fstat(self.descriptor)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def place(self) -> Path:
        """Where it is now, as far as the system tells."""
        with contextlib.suppress(OSError):
            if self.is_at(self._absolute):
                return self.path
        with contextlib.suppress(OSError):
            return Path(os.readlink(f"/proc/self/fd/{self.descriptor}"))
        return self.path

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        descriptor, self.descriptor = getattr(self, "descriptor", -1), -1  # -1: interrupted
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class HeldPath:
    """A path below a directory that is held open; has what the package needs of `pathlib.Path`."""

    __slots__ = ("below", "directory")

    def __init__(self, directory: HeldDirectory, below: str = "") -> None:
        self.directory = directory
        self.below = below

    def __truediv__(self, name: str) -> HeldPath:
        parts = filter(None, (self.below, name))
        return HeldPath(self.directory, "/".join(parts))

    def joinpath(self, *names: str) -> HeldPath:
        """One path below this one."""
        return self / "/".join(names)

    @property
    def name(self) -> str:
        """The last name in it."""
        return self.below.rpartition("/")[2] or self.directory.path.name

    @property
    def parent(self) -> HeldPath:
        """The directory that it is in, also of the held one itself."""
        return HeldPath(self.directory, self.below.rpartition("/")[0] if self.below else "..")

    def with_name(self, name: str) -> HeldPath:
        """A path beside it."""
        return self.parent / name

    def lstat(self) -> os.stat_result:
        """As `os.lstat`; FailedStoreError if the directory was removed."""
        return self.stat(follow_symlinks=False)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `os.stat`; FailedStoreError if the directory was removed."""
        name, folder = at(self)
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=follow_symlinks)
        except FileNotFoundError as error:
            check_there(self, error)
            raise

    def exists(self) -> bool:
        """As `pathlib.Path.exists`."""
        return self._mode() != 0

    def is_dir(self) -> bool:
        """As `pathlib.Path.is_dir`."""
        return stat.S_ISDIR(self._mode())

    def is_symlink(self) -> bool:
        """As `pathlib.Path.is_symlink`."""
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def _mode(self, *, follow_symlinks: bool = True) -> int:
        """What it leads to; 0 for nothing."""
        name, folder = at(self)
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=follow_symlinks).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return 0
            raise

    def __str__(self) -> str:
        """What it was opened as; see `shown` for where it is now."""
        above = self.directory.path
        if self.below == "..":
            return str(above.parent)
        # Not joined as paths: each file that is read has its path ready for a message.
        where = str(above)
        return os.path.join(where, self.below).removeprefix("./") if self.below else where

    def __repr__(self) -> str:
        return f"<mmreplay.HeldPath {self}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeldPath):
            return NotImplemented
        return self.directory is other.directory and self.below == other.below

    def __hash__(self) -> int:
        return hash((id(self.directory), self.below))


AnyPath = Path | HeldPath


def at(path: AnyPath) -> tuple[str, int | None]:
    """A path as the calls of `os` take it: what to look up, and from where (``dir_fd``)."""
    if isinstance(path, HeldPath):
        return path.below or ".", path.directory.descriptor
    return os.fspath(path), None


def shown(path: AnyPath) -> str:
    """A path for a message: with where its directory is now, if that was moved."""
    if isinstance(path, HeldPath):
        now = path.directory.place()
        if now != path.directory.path and path.below != "..":
            return f"{now / path.below} (opened as {path.directory.path})"
    return str(path)


def check_there(path: AnyPath, error: Exception) -> None:
    """Raise FailedStoreError if a directory was removed while it was held open."""
    if not isinstance(path, HeldPath):
        return
    held = path.directory.descriptor
    if held >= 0 and os.fstat(held).st_nlink == 0:
        raise FailedStoreError(
            f"{path.directory.path}: this store was removed while it was open; its rows are gone, "
            f"and nothing else was touched: make another store"
        ) from error
