"""What to do with the objects of this process in a forked child.

Invariant: they do it in the order in which their modules registered them: locks before what holds
one. A system without fork never does any of it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_n_children = 0
_lineage: tuple[int, ...] = ()


def after_fork_in_child(objects: weakref.WeakSet[T], do: Callable[[T], object]) -> None:
    """Call `do` in every forked child with each of `objects` that lives then."""

    def call() -> None:
        for one in list(objects):
            do(one)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def lineage() -> tuple[int, ...]:
    """Which child of which child this process is; the same on every run of a program."""
    return _lineage


def _count_child() -> None:
    global _n_children  # noqa: PLW0603
    _n_children += 1


def _begin_child() -> None:
    global _n_children, _lineage
    _lineage, _n_children = (*_lineage, _n_children), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_child, after_in_child=_begin_child)
