"""A server that does nothing but fork: processes that start in milliseconds, to be killed.

Invariant: a child has no threads of its parent, and ends without running anything of the server.

`Forks` is the client; the module that it starts calls `serve` with what a child has to do.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path


def started(target, *args, method="fork"):
    """A process of multiprocessing that calls a function."""
    context = multiprocessing.get_context(method)
    process = context.Process(target=target, args=args)
    with warnings.catch_warnings():  # newer Pythons warn of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


class Forks:
    """Client of a server that forks a process for each order; a context manager."""

    def __init__(self, module, *, quiet=False):
        self._server = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
        )
        self._alive = {}  # and where each tells of its error

    def _ask(self, order):
        if self._server.stdin is None or self._server.stdout is None:
            raise ValueError("the server has no pipes")
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def fork(self, order, errors):
        """Start a process; returns its id."""
        pid = int(self._ask({"order": order, "errors": errors})["pid"])
        self._alive[pid] = errors
        return pid

    def kill(self, pid, *, however=False):
        """End a process by SIGKILL; returns its exit status as of `os.waitstatus_to_exitcode`."""
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid, however=however)

    def wait(self, pid, *, however=False):
        """Wait for a process; its exit status: 0, -9 if killed, 1 after an error."""
        status = int(self._ask({"wait": pid})["status"])
        errors = self._alive.pop(pid)
        if not however and status not in (0, -signal.SIGKILL):
            text = Path(errors).read_text(encoding="utf-8")
            raise AssertionError(f"a process ended with status {status}:\n{text}")
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in sorted(self._alive):
            os.kill(pid, signal.SIGKILL)
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait()
        if self._server.stdout is not None:
            self._server.stdout.close()


def serve(act):
    """Fork for each order on stdin a process that does it, and answer on stdout."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "order" in asked:
            pid = os.fork()
            if not pid:
                _become(act, asked["order"], Path(asked["errors"]))
            answer = {"pid": pid}
        else:
            _, status = os.waitpid(asked["wait"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), flush=True)


def _become(act, order, errors):
    status = 0
    try:
        act(order)
    except BaseException:
        errors.write_text(traceback.format_exc(), encoding="utf-8")
        status = 1
    os._exit(status)
