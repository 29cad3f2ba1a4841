"""Forked children: what the objects of this process do in them, and children that compute.

Invariant: they do it in the order in which their modules registered them: locks before what holds
one. A system without fork never does any of it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_n_children = 0
_lineage: tuple[int, ...] = ()


class Child:
    """A process that answers requests; OSError or AttributeError if none can be forked.

    Ends with this one. `send` gives it a request, one at a time, `receive` the answer: EOFError or
    OSError if it was ended, as by an error of its own.
    """

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        global _n_children  # noqa: PLW0603
        pipe, there = multiprocessing.Pipe()
        self._pipe, self.send, self.receive = pipe, pipe.send, pipe.recv
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # Python and JAX warn of locks that other threads hold: `answer` takes none of them.
                warnings.simplefilter("ignore")
                self._pid = os.fork()
            if not self._pid:
                pipe.close()  # the parent has the only one, which is closed when it ends
                while True:
                    there.send(answer(there.recv()))
        finally:
            if os.getpid() != parent:
                os._exit(0)
            _n_children -= 1  # `lineage` is about those that the program forks
        there.close()

    def end(self) -> None:
        """End it, whatever it does."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


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
