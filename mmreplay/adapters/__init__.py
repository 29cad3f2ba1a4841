"""What joins mmreplay to other libraries: a module and an extra each, imported only when used."""

from __future__ import annotations

from mmreplay.errors import MmreplayError

__all__ = ["MissingExtraError"]


class MissingExtraError(MmreplayError, ImportError):
    """A library that an adapter needs is not installed; the message has the command that helps."""
