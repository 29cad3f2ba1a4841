"""Calls that are made by several processes: this one, and children that are forked for them.

Invariant: a child makes calls and sends what they return, and nothing else: it runs no code of the
parent's end, handles no signal, and ends when its parent does or takes no more results.

Forked, a child has all that is open here and takes milliseconds to start; a new interpreter would
take as long as compressing a hundred thousand frames. But it has none of the threads, and what lock
one of them held stays locked: see `can_fork`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NoReturn, TypeVar

from mmreplay.errors import FailedStoreError, MmreplayError
from mmreplay.system import forks, platform

__all__ = ["Call", "Pause", "can_fork", "run_in_processes"]

T = TypeVar("T")
Pause = Callable[[], None]
"""What a call that takes long calls in between; does not return if the call is to end."""
Call = Callable[[Pause], T]

_MESSAGE_BYTES = 1 << 18
_NUMBER_BYTES = 8


def can_fork() -> bool:
    """Whether `run_in_processes` may be called: on Linux, by a process of one thread."""
    return platform.LINUX and hasattr(os, "memfd_create") and threading.active_count() == 1


def run_in_processes(
    calls: Iterable[Call[T]], take: Callable[[T], None], n_processes: int, what: str
) -> bool:
    """Make each call in one of up to `n_processes` processes, and `take` in this one its result.

    Results are pickled, and come in any order. No child is left when the caller goes on.

    Returns:
        False if there is no other process to be had; nothing was called then.

    Raises:
        FailedStoreError: a child was killed; `what` names the work.
        Exception: whatever the first call raised that failed, in any of them; others are given up.
    """
    with contextlib.ExitStack() as stack:
        try:
            turns = _Turns(calls)
            stack.callback(turns.close)
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return False
        stack.enter_context(here)
        children = _Children(what)
        try:
            with there:
                children.start(n_processes - 1, turns, here, there)
            if not children.pids:
                return False
            results = _Results(here, take)
            for call in turns:
                results.take(call(results.look))
                results.look()
                children.check()
            results.take_all()
            children.wait()
            if results.n_taken < turns.n_calls:
                raise children.killed("")
        except BaseException:
            try:
                children.kill()
            finally:  # once more, if another interrupt came before the first could catch it
                children.kill()
            raise
    return True


class _Turns(Generic[T]):
    """The calls that are this process's turn: each is that of the first process to come to it.

    The number of the next one stands in a file in memory that all of them have open. Its lock is of
    a process, unlike flock, and ends with one that is killed. (A position that is shared would need
    none, but Linux moves that of such a file for two processes at once.)

    Attributes:
        n_calls: made by all processes, once this one has found no more.
    """

    def __init__(self, calls: Iterable[Call[T]]) -> None:
        self._calls = calls
        self._file = os.memfd_create("mmreplay-turns")
        self.n_calls = 0

    def __iter__(self) -> Iterator[Call[T]]:
        turn = self._next()
        for number, call in enumerate(self._calls):
            self.n_calls = number + 1
            if number == turn:
                yield call
                turn = self._next()

    def _next(self) -> int:
        platform.fcntl.lockf(self._file, platform.fcntl.LOCK_EX)
        try:
            number = int.from_bytes(os.pread(self._file, _NUMBER_BYTES, 0), "little")
            os.pwrite(self._file, (number + 1).to_bytes(_NUMBER_BYTES, "little"), 0)
        finally:
            platform.fcntl.lockf(self._file, platform.fcntl.LOCK_UN)
        return number

    def close(self) -> None:
        """No more turns."""
        os.close(self._file)


class _Results(Generic[T]):
    """What comes of the calls, here and in the children.

    Attributes:
        n_taken: results so far.
    """

    def __init__(self, here: socket.socket, take: Callable[[T], None]) -> None:
        self._here, self._take = here, take
        self._poll = select.poll()
        self._poll.register(here, select.POLLIN)
        self._is_open = True
        self.n_taken = 0

    def take(self, result: T) -> None:
        """One more."""
        self.n_taken += 1
        self._take(result)

    def look(self) -> None:
        """Take what has come by now; raises what a child sent for an error."""
        while self._is_open and self._poll.poll(0):
            self._receive()

    def take_all(self) -> None:
        """Take what comes until all children have ended."""
        while self._is_open:
            self._receive()

    def _receive(self) -> None:
        message = self._here.recv(_MESSAGE_BYTES)
        if not message:
            self._is_open = False
            return
        result, error = pickle.loads(message)  # noqa: S301 (a child of this process wrote it)
        if error is not None:
            raise error
        self.take(result)


class _Children:
    """The processes that were forked.

    Attributes:
        pids: of those that were not waited for.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.pids: list[int] = []

    def start(self, n: int, turns: _Turns[T], here: socket.socket, there: socket.socket) -> None:
        """Fork up to `n` that make calls, and send results to `here` from `there`."""
        for _ in range(n):
            # A child has no handlers of its parent, and no parent is interrupted before it knows
            # of its child. Who stops them all (Ctrl-Z) stops it, too.
            blocked = signal.valid_signals() - {signal.SIGTSTP}
            before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            try:
                pid = forks.fork_worker()
                if not pid:
                    _work(turns, here, there)
                self.pids.append(pid)
            except (OSError, RuntimeError):  # at a limit, or the interpreter is ending
                return
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def check(self) -> None:
        """Raise FailedStoreError if one was killed."""
        for pid in list(self.pids):
            self._wait(pid, os.WNOHANG)

    def wait(self) -> None:
        """Wait for all; raises FailedStoreError if one was killed."""
        for pid in list(self.pids):
            self._wait(pid, 0)

    def _wait(self, pid: int, options: int) -> None:
        try:
            ended, status = os.waitpid(pid, options)
        except ChildProcessError:  # the program waits for whatever ends, or ignores it
            ended, status = pid, 0
        if ended:
            self.pids.remove(pid)
        if ended and status:
            code = os.waitstatus_to_exitcode(status)
            raise self.killed(f" by signal {-code}" if code < 0 else f" with status {code}")

    def killed(self, how: str) -> FailedStoreError:
        """The error for a child that has not done what it was there for."""
        return FailedStoreError(
            f"{self._what}: a process that worked on it was ended{how}, as the system does when "
            f"memory runs out; nothing is left behind: try again, with fewer workers"
        )

    def kill(self) -> None:
        """End them at once; all have ended when this returns, or raises an interrupt."""
        interrupt: BaseException | None = None
        while self.pids:
            try:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(self.pids[-1], signal.SIGKILL)
                    os.waitpid(self.pids[-1], 0)
                self.pids.pop()
            except BaseException as error:  # noqa: BLE001 (raised when they cannot write any more)
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _work(turns: _Turns[T], here: socket.socket, there: socket.socket) -> NoReturn:
    """In a child: make calls until there are no more, one fails, or nobody wants the results."""
    status = 1
    try:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        gc.freeze()  # garbage of the parent is not this process's to finalize
        here.close()
        poll = select.poll()
        poll.register(there, 0)  # it is told if the other end is closed

        def pause() -> None:
            if poll.poll(0):
                os._exit(0)

        for call in turns:
            try:
                result, error = call(pause), None
            except Exception as raised:  # noqa: BLE001 (the parent raises it)
                result, error = None, _sendable(raised)
            there.sendall(pickle.dumps((result, error)))
            if error is not None:
                break
            pause()
        status = 0
    finally:
        os._exit(status)


def _sendable(error: Exception) -> Exception:
    """The error as another process can raise it, of an unknown cause with where it happened."""
    if not isinstance(error, MmreplayError):
        error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (one's own)
    except Exception:  # noqa: BLE001 (whatever an exception of another library does)
        return RuntimeError(traceback.format_exc())
    return error
