"""What carries calls from a sender to the receiver: two calls, and what comes back.

Invariant: a call that raises ConnectionError may have been done or not; any other error is the
receiver's own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mmreplay.distributed.blocks import Packed
from mmreplay.schema import Schema


class Opened(NamedTuple):
    """A lane as its new owner finds it."""

    token: int  # names this owner; those of earlier ones are refused from now on
    head: int  # steps that it has
    schema: Schema
    path: str


class Reply(Protocol):
    """The answer to an `append`, which may not be there yet."""

    def done(self) -> bool:
        """Whether `result` would return at once."""

    def result(self) -> int | None:
        """See `Transport.append`."""


class Transport(Protocol):
    """The way to a receiver; see its methods of these names."""

    def open(self, name: str, environments: int | None) -> Opened:
        """Own a lane from now on; its running episodes are over."""

    def append(self, name: str, token: int, start: int, block: Packed) -> Reply:
        """Append a block at step `start`: the new head, or None if the lane is to be opened."""
