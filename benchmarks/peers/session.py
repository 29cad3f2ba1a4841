"""The processes of the libraries, as the benchmark speaks to them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.catalogue import Entry
from benchmarks.peers.peer import Setup

__all__ = ["Session", "SessionError"]

_ROOT = Path(__file__).parents[2]
_SHOWN = 2_000


class SessionError(Exception):
    """A process ended before it had answered.

    Attributes:
        was_killed: by a signal that it did not send itself.
    """

    def __init__(self, message: str, *, was_killed: bool) -> None:
        super().__init__(message)
        self.was_killed = was_killed


class Session:
    """A process of one library; a context manager that ends it.

    Args:
        entry: the library.
        setup: what its buffer is made for.
        source: a folder of frames, or "environments,ticks".
    """

    def __init__(self, entry: Entry, setup: Setup, source: str) -> None:
        self.entry = entry
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        told = json.dumps(dataclasses.asdict(setup), default=str)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.worker", entry.name, told, source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=_ROOT,
        )

    def tell(self, call: str, **arguments: Any) -> None:
        """Let it begin; `answer` waits."""
        assert self._process.stdin is not None
        try:
            print(json.dumps([call, arguments]), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self.answer()

    def answer(self) -> Any:
        """What it answers to the oldest call that was not answered.

        Raises:
            SessionError: it ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")[-_SHOWN:]
        raise SessionError(
            f"{self.entry.name}: exit status {status}\n{text}", was_killed=status == -9
        )

    def ask(self, call: str, **arguments: Any) -> Any:
        """Tell, and wait for the answer."""
        self.tell(call, **arguments)
        return self.answer()

    def die(self) -> None:
        """Let it kill itself with SIGKILL."""
        try:
            self.ask("die")
        except SessionError as error:
            if not error.was_killed:
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
