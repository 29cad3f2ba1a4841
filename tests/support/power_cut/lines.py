"""Lines of the package as points at which a process can die, or be counted.

Invariant: only lines of functions in the package are seen, in every thread that is started after
`watched` was entered; a process that is told to die at a line dies before that line does anything.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import mmreplay
from mmreplay.system import threads

__all__ = ["Line", "Watch", "functions", "lines_of", "watched"]

ROOT = Path(mmreplay.__file__).parent
Line = tuple[str, int]
"""A file below the package's directory, and a line of it."""


class Watch:
    """What is done at each line; nothing while `active` is False.

    Args:
        line: where to die; None for counting only.
        at: at which of its executions, from 1.

    Attributes:
        active: whether lines count.
        counts: executions by line, if they are counted.
    """

    def __init__(self, line: Line | None = None, at: int = 1) -> None:
        self.active = False
        self.counts: collections.Counter[Line] = collections.Counter()
        self._left = at
        self._target = line
        self._names: dict[str, str | None] = {}
        self._wanted: dict[types.CodeType, bool] = {}

    def _name(self, file: str) -> str | None:
        """A file's path below the package; None for one that does not belong to it."""
        try:
            return self._names[file]
        except KeyError:
            path = Path(file)
            ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] != "testing"
            name = self._names[file] = path.relative_to(ROOT).as_posix() if ours else None
            return name

    def trace(self, frame: types.FrameType, _event: str, _argument: Any) -> Any:
        """For `sys.settrace`."""
        if not self.active:
            return None
        code = frame.f_code
        name = self._name(code.co_filename)
        if name is None:
            return None
        if self._target is None:
            return self._count(name)
        if code not in self._wanted:
            file, number = self._target
            self._wanted[code] = name == file and number in lines_of(code)
        return self._die if self._wanted[code] else None

    def _count(self, name: str) -> Callable[..., Any]:
        def local(frame: types.FrameType, event: str, _argument: Any) -> Any:
            if event == "line" and self.active:
                self.counts[name, frame.f_lineno] += 1
            return local

        return local

    def _die(self, frame: types.FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and self._target is not None and frame.f_lineno == self._target[1]:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._die


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let a watch see this thread, and those that are started meanwhile, as for a slow disk."""
    threading.settrace(watch.trace)
    sys.settrace(watch.trace)
    try:
        with mock.patch.object(threads, "_ALONE_S", 0):
            yield
    finally:
        sys.settrace(None)
        threading.settrace(None)


def lines_of(code: types.CodeType) -> set[int]:
    """The lines of one function at which it can be interrupted."""
    found = {line for _, _, line in code.co_lines() if line is not None}
    if not code.co_name.startswith("<"):
        found.discard(code.co_firstlineno)  # entering it is no line
    return found


def functions(module: str) -> dict[str, set[int]]:
    """The lines of every function of a module, by qualified name.

    What stands in a function without a name (a comprehension, a generator, a lambda) belongs to the
    one around it; what runs once, when the module is imported, to none.

    Args:
        module: its file below the package's directory.
    """
    path = ROOT / module
    out: dict[str, set[int]] = {}

    def collect(code: types.CodeType, owner: str | None) -> None:
        is_function = bool(code.co_flags & 0x02)  # CO_NEWLOCALS: neither a module nor a class
        if is_function and not code.co_name.startswith("<"):
            owner = code.co_qualname if "<locals>" not in code.co_qualname else owner
        if is_function and owner is not None:
            out.setdefault(owner, set()).update(lines_of(code))
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                collect(inner, owner)

    collect(compile(path.read_text(encoding="utf-8"), str(path), "exec"), None)
    return out


_REFUSALS = {
    "ClosedError",
    "CorruptStoreError",
    "FormatError",
    "LockedError",
    "NotImplementedError",
    "SchemaError",
    "StoreExistsError",
    "StoreNotFoundError",
    "ValueError",
    "_unfit",
    "damaged",
    "missing",
}
"""What names a mistake of the caller, or damage, or somebody else at work; and what makes such."""


def refusals(module: str) -> set[int]:
    """The lines of a module that do nothing but refuse.

    These are blocks that end by raising what names a mistake of the caller, or damage.
    """
    out: set[int] = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        for name in ("body", "orelse", "handlers"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            if name == "handlers":
                block = [one for one in block if _refuses(one.body)]
            elif not _refuses(block) or isinstance(node, ast.FunctionDef):
                continue
            for one in block:
                out |= set(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    return out


def _refuses(block: list[ast.stmt]) -> bool:
    last = block[-1] if block else None
    if not isinstance(last, ast.Raise):
        return False
    made = last.exc
    made = made.func if isinstance(made, ast.Call) else made
    name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
    return name in _REFUSALS
