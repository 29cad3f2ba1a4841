"""What mutants of the protocol are made of, and the search for a history that notices one.

Invariant: a mutant is noticed by what it breaks: a mistake in its own code is an error, and where
it is said how it is noticed, whatever else is found in a history does not count.
"""

import contextlib
import functools
import os
import re
import stat
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

from mmreplay.system import durable_writes
from tests.support.oracle.layout import Layout
from tests.support.power_cut.simulator import ViolationError, simulate, uncollected

Change = tuple[Any, str, Any]


class Mutant(NamedTuple):
    """The code without one rule."""

    rule: str  # that is broken
    changes: Callable[[], list[Change]]  # gives what is changed for it
    layouts: Sequence[Layout]  # of the stores in which it can be noticed
    # whether somebody else has to be at work for that; if None, nobody has to
    others: bool | None
    noticed: str  # a pattern of what the simulator says then
    seeds: Sequence[int] = ()  # of histories that noticed it once


@contextlib.contextmanager
def changed(changes):
    """While this lasts, things are others."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in changes:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def caught(mutant, seeds, n_crashes):
    """The first history in which the simulator notices a mutant, and what it says; None if none."""
    with changed(mutant.changes()):
        for seed in uncollected(seeds):
            try:
                simulate(seed, n_crashes, mutant.layouts, others=mutant.others)
            except ViolationError as error:
                if re.search(mutant.noticed, str(error)):
                    return seed, str(error)
    return None


def during(owner, name, *changes):
    """A function during which other things are changed."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(*args, **kwargs):
        with changed(list(changes)):
            return real(*args, **kwargs)

    return owner, name, call


def instead(owner, name, function):
    """Another function, which is called with the real one first."""
    real = getattr(owner, name)

    def call(*args, **kwargs):
        return function(real, *args, **kwargs)

    return owner, name, call


def before(owner, name, first):
    """A function with something done before it, with the same arguments."""
    real = getattr(owner, name)

    def call(*args, **kwargs):
        first(*args, **kwargs)
        return real(*args, **kwargs)

    return owner, name, call


def after(owner, name, then):
    """A function with something done after it, with its result and the same arguments."""
    real = getattr(owner, name)

    def call(*args, **kwargs):
        out = real(*args, **kwargs)
        then(out, *args, **kwargs)
        return out

    return owner, name, call


def nothing(*_, **__):
    pass


def unless(skip, owner, name):
    """A function that does nothing for some arguments."""
    real = getattr(owner, name)

    def call(*args, **kwargs):
        return None if skip(*args, **kwargs) else real(*args, **kwargs)

    return owner, name, call


def no_sync(owner, name, *, of):
    """A function that leaves out the fsyncs of "files" or of "directories"."""

    def skip(descriptor):
        return stat.S_ISDIR(os.fstat(descriptor).st_mode) == (of == "directories")

    return during(
        owner,
        name,
        unless(skip, durable_writes, "_fsync"),
        unless(skip, durable_writes, "_fdatasync"),
    )


def not_durable(owner, name):
    """A function whose files are written without an fsync, of themselves or of their names."""
    return during(
        owner,
        name,
        (durable_writes, "write_file", functools.partial(_volatile, durable_writes.write_file)),
    )


def _volatile(write_file, path, data, **how):
    write_file(path, data, **{**how, "durable": False})
