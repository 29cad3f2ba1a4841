"""The error tree: one class for each thing that a caller can do about it.

Each error has one argument, the whole message, so that it survives pickling: what went wrong,
where, what was expected, what was found and what to do.
"""

from __future__ import annotations

import errno as _errno


def printable(text: str) -> str:
    """The text with control characters escaped: names in files may hold any characters."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


class MmreplayError(Exception):
    """The base of all errors of mmreplay."""

    def __str__(self) -> str:
        """The message; a terminal can show it whatever names it quotes."""
        return printable(super().__str__())


class SchemaError(MmreplayError, ValueError):
    """The data, or the order of calls, does not fit what the store was made for."""


class UnsupportedError(SchemaError, AttributeError):
    """A wrapper does not have this method of a dataset; the message says what to use instead."""


class StoreNotFoundError(MmreplayError, FileNotFoundError):
    """There is no store at this path."""


class StoreExistsError(MmreplayError, FileExistsError):
    """There is already something at this path."""


class EmptyBufferError(MmreplayError, LookupError):
    """There are not as many transitions as were requested."""


class InvalidIdError(MmreplayError, LookupError):
    """An id that is not a transition: it never was, is not yet, or has been evicted."""


class FormatError(MmreplayError):
    """Not a store, or one of a version or shape that this mmreplay does not read."""


class CorruptStoreError(MmreplayError):
    """A store whose bytes are not what they were when they were written."""


class LockedError(MmreplayError):
    """Another writer holds this lane, or this column."""


class DiskFullError(MmreplayError, OSError):
    """No room on the disk; nothing was changed, the same call works once there is room."""

    errno = _errno.ENOSPC


class FailedStoreError(MmreplayError):
    """A write or fsync failed: this writer is finished, and what was flushed before is kept.

    Or the store's directory was removed. Or a limit of the process was reached (open files, memory,
    threads), which the message names: then nothing was changed, and the same call works later.
    """


class ClosedError(MmreplayError, ValueError):
    """This writer, buffer or store was closed, or belongs to the parent of a forked process."""


class MissingExtraError(MmreplayError, ImportError):
    """A library that an adapter needs is not installed; the message has the command that helps."""
