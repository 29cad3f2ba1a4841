"""A child process with limits, in which anything may happen: slow, large, dead, or out of bounds.

Memory is limited twice. RLIMIT_DATA counts what a process may write to and shares with nobody,
touched or not, and no maps of files, nor reserved addresses, for which RLIMIT_AS is too coarse: an
array that is too large fails where it is made. The peak of the resident set counts the pages of
maps as well. Both are taken over those of the process that forked, which has everything imported.

Invariant: every trial gets a verdict. What kills or stalls the child is the fault of the trial that
was running, and the next child goes on after it.
"""

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

_MIB = 1 << 20
_RECORD = struct.Struct("<qdqI")  # number, seconds, peak, length of the failures behind it
_RENEW = 2000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a trial may take."""

    memory_bytes: int = 200 * _MIB  # over those of the process that forked
    file_bytes: int = 64 * _MIB  # largest file that `Guard.limited` may write
    patience_s: float = 30.0  # after which a trial counts as hanging


@dataclass(frozen=True, slots=True)
class Failure:
    """What a trial did wrong."""

    number: int  # of the trial
    kind: str  # ``crash``, ``hang``, or what the trial calls it
    text: str  # more

    def __str__(self):
        return f"trial {self.number}: {self.kind}: {self.text}"


@dataclass(slots=True)
class Tally:
    """What all trials came to."""

    n_trials: int = 0  # done
    slowest_s: float = 0.0  # the slowest call of any trial, as the trials say
    slowest: int = -1  # its trial
    memory_bytes: int = 0  # the most that a child took over its parent
    largest: int = -1  # the trial that did
    failures: list[Failure] = field(default_factory=list)  # what went wrong

    def add(self, other):
        """Take in the trials of another run."""
        self.n_trials += other.n_trials
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        if other.memory_bytes > self.memory_bytes:
            self.memory_bytes, self.largest = other.memory_bytes, other.largest
        self.failures += other.failures


class Guard:
    """Notes every path that is opened, listed or changed outside some directories.

    An audit hook cannot be removed: this is for a child that ends.
    """

    _EVENTS = frozenset(
        "open os.listdir os.scandir os.remove os.rename os.rmdir os.mkdir os.link os.symlink "
        "os.truncate os.chmod os.chown os.utime".split()
    )
    _WITH_FOLDER = frozenset({"os.remove", "os.rmdir", "os.mkdir"})
    _FOREIGN = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system")
    _ALLOWED = frozenset({"socket.gethostname"})

    def __init__(self, inside):
        system = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev/null", "/dev/urandom")
        packages = (str(Path(path)) for path in sys.path if path)
        self._inside = tuple(dict.fromkeys([*map(str, inside), *system, *packages]))
        self.resolve = False
        self.seen = []
        self._limits = Limits()
        self._on = False
        self._folder = threading.local()

    def install(self, limits):
        """Watch this process from now on."""
        self._limits = limits
        real = os.open

        def watched(path, flags, mode=0o777, *, dir_fd=None):
            self._folder.number = dir_fd  # which its event does not tell
            try:
                return real(path, flags, mode, dir_fd=dir_fd)
            finally:
                self._folder.number = None

        os.open = watched
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def limited(self):
        """Watch, and let no file grow larger than the limit."""
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._limits.file_bytes, most))
        self._on = True
        try:
            yield
        finally:
            self._on = False
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    def _hook(self, event, args):
        if not self._on:
            return
        if event in self._EVENTS:
            follows = event != "open" or not (args[2] or 0) & os.O_NOFOLLOW
            if event in {"os.rename", "os.link"}:
                pairs = list(zip(args[:2], args[2:4], strict=True))
            elif event == "open":
                pairs = [(args[0], getattr(self._folder, "number", None))]
            else:
                pairs = [(args[0], args[-1] if event in self._WITH_FOLDER else None)]
            for path, folder in pairs:
                if isinstance(path, (str, bytes, os.PathLike)):
                    self._check(event, os.fsdecode(path), folder, follows=follows)
        elif event.startswith(self._FOREIGN) and event not in self._ALLOWED:
            self.seen.append(f"{event} {args!r:.200}")

    def _check(self, event, path, number, *, follows):
        if number is None or number < 0:
            where = os.path.abspath(path)
        else:
            where = os.path.normpath(f"{os.readlink(f'/proc/self/fd/{number}')}/{path}")
        if self.resolve:
            folder, name = os.path.split(where)
            # What is removed, renamed or opened without following is the link itself.
            follows = follows and event in {"open", "os.listdir", "os.scandir", "os.truncate"}
            real = os.path.realpath(folder)
            where = os.path.realpath(where) if follows else os.path.join(real, name)
        if not where.startswith(self._inside):
            self.seen.append(f"{event} {where}")


def run_limited(trial, numbers, inside, limits=None):
    """Run trials one after the other in children with limits."""
    limits, tally, inside = limits or Limits(), Tally(), list(inside)
    left = list(numbers)
    while left:
        part = left[:_RENEW]
        done, failure = _run_child(trial, part, inside, limits, tally)
        if failure is not None:
            sys.stderr.write(f"{failure}\n")
            tally.add(Tally(1, failures=[failure]))
            done += 1
        left = left[done:]
    return tally


def _run_child(trial, numbers, inside, limits, tally):
    """Trials done by one child, and what ended it before its time."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(reader)
            _child(trial, numbers, inside, limits, writer)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    n_done, text = 0, ""
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while n_done < len(numbers):
                if not select.select([pipe], [], [], limits.patience_s)[0]:
                    text = f"no answer within {limits.patience_s:g} s"
                    break
                record = _read(pipe, _RECORD.size)
                if record is None:
                    break
                number, seconds, memory, length = _RECORD.unpack(record)
                found = json.loads(_read(pipe, length) or b"[]")
                n_done += 1
                failures = [Failure(number, kind, about) for kind, about in found]
                sys.stderr.writelines(f"{one}\n" for one in failures)
                tally.add(Tally(1, seconds, number, memory, number, failures))
    finally:
        if text:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)  # it says where it was, if it can
        status = os.waitpid(pid, 0)[1]
    if n_done == len(numbers):
        return n_done, None
    if text:
        return n_done, Failure(numbers[n_done], "hang", text)
    ended = os.waitstatus_to_exitcode(status)
    how = f"signal {signal.Signals(-ended).name}" if ended < 0 else f"exit status {ended}"
    return n_done, Failure(numbers[n_done], "crash", how)


def _read(pipe, size):
    out = b""
    while len(out) < size:
        piece = pipe.read(size - len(out))
        if not piece:
            return None
        out += piece
    return out


def _child(trial, numbers, inside, limits, pipe):
    warnings.simplefilter("error")
    faulthandler.enable()
    guard = Guard(inside)
    guard.install(limits)
    data, resident = _memory("VmData"), _memory("VmRSS")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = data + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    peak = 0
    for number in numbers:
        seconds, found = trial(number, guard)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident
        if now > limits.memory_bytes >= peak:
            found.append(("memory", f"{now / _MIB:.0f} MiB resident"))
        peak = max(peak, now)
        text = json.dumps(found).encode() if found else b""
        record = _RECORD.pack(number, seconds, peak, len(text)) + text
        while record:
            record = record[os.write(pipe, record) :]


def _memory(what):
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}")


def timed(call):
    """Seconds that a call takes, what it returns, and what it raises."""
    begin = time.perf_counter()
    try:
        out = call()
    except BaseException as error:
        return time.perf_counter() - begin, None, error
    return time.perf_counter() - begin, out, None
