"""Forked children that compute beside this process, where threads would wait for one another.

Invariant: a child changes nothing, has no lock of its parent's (see `forks`), and ends with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any


class Child:
    """A process that answers requests; OSError or AttributeError if none can be forked.

    Attributes:
        send: gives it a request, one at a time.
        receive: gives the answer; EOFError or OSError if it was ended, as by an error of its own.
    """

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        pipe, there = multiprocessing.Pipe()
        self._pipe, self.send, self.receive = pipe, pipe.send, pipe.recv
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # Python and JAX warn of locks that other threads hold: `answer` takes none of them.
                warnings.simplefilter("ignore")
                self._pid = os.fork()
            if not self._pid:
                pipe.close()  # the parent has the only one: when it ends, so does this
                while True:
                    there.send(answer(there.recv()))
        finally:
            if os.getpid() != parent:
                os._exit(0)
        there.close()

    def end(self) -> None:
        """End it, whatever it does."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
