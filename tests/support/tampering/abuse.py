"""What is done to a store that somebody has tampered with, and what may come of it.

``python -m tests.support.tampering.abuse FOLDER SEED WHICH START STOP`` does it with the inputs of these
numbers, in children with limits, and prints what came of it as JSON. An input follows from the seed
and its number: the first ones are `special_cases`, each once for every call that writes, all after
them are random. WHICH is ``all``, or ``quick``: then START and STOP count from the first random
one, and there are some of the special ones besides.

Invariant: whatever is in a store, each call on it returns, or raises an error of mmreplay that is
documented for it; nothing outside it is touched; what `verify` calls sound reads as it was written.
"""

import contextlib
import dataclasses
import functools
import json
import os
import random
import sys
import warnings
from pathlib import Path

import numpy as np

import mmreplay
from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    EmptyBufferError,
    FailedStoreError,
    FormatError,
    LockedError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.system import locks
from tests.support.effort import by_effort
from tests.support.oracle.checks import columns_of
from tests.support.tampering import hostile
from tests.support.tampering.extremes import special_cases
from tests.support.tampering.fixtures import Victim, pristine_stores
from tests.support.tampering.limits import run_limited, timed
from tests.support.tampering.steps import broken_steps

_MOST_BYTES = 4 << 20  # of one answer: whoever asks for more than fits asks for too much
_MOST_ROWS = 20_000
_READING = (StoreNotFoundError, FormatError, CorruptStoreError, SchemaError)
_SAMPLING = (*_READING, EmptyBufferError)
_WRITING = (*_SAMPLING, LockedError, DiskFullError, FailedStoreError)
_VERIFYING = (StoreNotFoundError, FormatError, CorruptStoreError, LockedError)
_SECONDS = 2.0
_QUICK = by_effort(211, 149, 37)  # one special case of so many: no divisor of how many there are
_OFTEN = {
    "raw": 8, "lz4, evicting": 8, "larger lz4": 8, "zstd": 8, "dict": 2, "lanes": 2,
    "priorities": 2, "crashed": 6, "power cut": 6, "crashed raw lanes": 1, "crashed buffer": 2,
    "vector": 8, "vector, evicting": 6, "crashed vector": 6, "power cut of a vector": 4,
}  # fmt: skip
"""How often each store is tampered with: the small ones are done sooner, and show as much."""


class Ordeal:
    """What is done to each of some stores."""

    def __init__(self, folder, stores, seed):
        self._seed, self._pid = seed, os.getpid()
        self._out = folder / "out"
        for store in stores:
            for name in store.folders:
                (self._out / name).mkdir(parents=True, exist_ok=True)
            for name, data in store.files.items():
                (self._out / name).write_bytes(data)
        self._victims = {
            one.name: Victim(folder / f"in-{number}" / "s.zarr", one)
            for number, one in enumerate(stores)
        }
        self.cases = special_cases(stores)
        every = [getattr(make, "func", make) for _, make in self.cases]
        breaking = {make.func for _, make in broken_steps()}
        self.broken = [n for n, make in enumerate(every) if make in breaking]
        self.extremes = [
            n for n, make in enumerate(every) if make not in {hostile.make_kind, *breaking}
        ]
        self.n_special = len(self._CHANGING) * len(self.cases)
        self.inside = [one.path.parent for one in self._victims.values()]
        self._contents = {name: _contents(one.path) for name, one in self._victims.items()}
        self._found = []
        self._slowest = 0.0
        self._before = self._outside()

    def warm_up(self):
        """Do all of it once to sound stores: everything is imported then, and works.

        Only a thorough run changes each of them in every way.
        """
        n_ways = len(self._CHANGING)
        for place, victim in enumerate(self._victims.values()):
            self._read(victim, hostile.Change("nothing"))
            for number in by_effort(*[[place % n_ways]] * 2, range(n_ways)):
                self._change_store(victim, number)
                victim.rebuild()
            self._show(victim.path, random.Random(0), every=not place)
        if self._found:
            raise AssertionError(f"a sound store: {self._found}")

    def trial(self, number, guard):
        """One input; see `limits.Trial`."""
        random_ = random.Random(f"{self._seed}:{number}")
        self._found, self._slowest = [], 0.0
        guard.seen.clear()
        self._begin_child()
        is_special = number < self.n_special
        which = random_.randrange(len(self._CHANGING))
        if is_special:
            name, make = self.cases[number % len(self.cases)]
            victim = self._victims[name]
            changes = make(victim)
            which = (number + number // len(self.cases)) % len(self._CHANGING)
        else:
            often = [_OFTEN[name] for name in self._victims]
            victim = self._victims[random_.choices(list(self._victims), often)[0]]
            changes = hostile.change(victim, random_)
        if changes is None:
            return 0.0, []
        guard.resolve = changes.links
        is_rebuilt = False
        with guard.limited():
            self._read(victim, changes, None if is_special else random_.random())
            luck = random_.random()
            if changes.giant:
                is_rebuilt = True
            elif is_special or luck < 0.02:
                self._show(victim.path, random_)
            if not (victim.pristine.closed or changes.giant) and (is_special or luck > 0.99):
                self._while_locked(victim.path)
            # Whoever writes into a file writes into all of its names.
            may_write = not changes.giant and "hard link" not in changes.text
            if may_write and (is_special or 0.02 < luck < 0.06):
                self._change_store(victim, which)
                is_rebuilt = True
        for path in guard.seen:
            self._found.append(("outside", path))
        if changes.links and (now := self._outside()) != self._before:
            self._found.append(("outside", f"changed: {now ^ self._before}"))
            self._before = now
        about = f"{victim.pristine.name}: {changes.text}"
        found = [(kind, f"{text} [{about:.600}]") for kind, text in self._found]
        if is_rebuilt or found:
            victim.rebuild()
        else:
            victim.restore()
        return self._slowest, found

    def _begin_child(self):
        """Put all right that the child before this one may have died of."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            for one in self._victims.values():
                one.rebuild()

    def _outside(self):
        """Every path on forbidden ground, with what changes when it is written."""
        out = set()
        for folder, folders, names in os.walk(self._out):
            for name in (*folders, *names):
                about = os.lstat(os.path.join(folder, name))
                path = os.path.join(folder, name)
                out.add((path, about.st_mtime_ns, about.st_size, about.st_ino))
        return out

    def read_broken_rules(self):
        """What is wrong with reading lanes whose steps break a rule, see `steps`; some, if quick."""
        out = []
        cases = [(name, make) for name, make in broken_steps() if name in self._victims]
        for name, make in cases[:: by_effort(5, 2, 1)]:
            victim, self._found = self._victims[name], []
            changes = make(victim)
            self._read(victim, changes)
            out += [(changes.text, f"{kind}: {text}") for kind, text in self._found]
            victim.restore()
        return out

    # ------------------------------------------------------------ calls

    def _call(self, what, call, allowed):
        """What a call returns; None if it raised one of the errors that are allowed."""
        seconds, out, error = timed(call)
        self._slowest = max(self._slowest, seconds)
        if seconds > _SECONDS:
            self._found.append(("slow", f"{what}: {seconds:.1f} s"))
        if error is None or isinstance(error, allowed):
            if error is not None and len(str(error)) > 5_000:
                self._found.append(("message", f"{what}: {len(str(error))} characters"))
            return out
        self._found.append(("foreign", f"{what}: {type(error).__name__}: {error!s:.300}"))
        self._found.append(("traceback", _trace(error)))
        return None

    def _read(self, victim, changes, luck=None):
        """Open, look at everything, sample, verify; a random input gets a part of it."""
        path = victim.path
        whole = luck is None or luck < 0.2
        look = functools.partial(_look, path, whole=whole)
        opened = self._call("open", look, _READING)
        if luck is None or luck < 0.4:
            self._call("load", functools.partial(_sample, path), _SAMPLING)
        if luck is None or luck > 0.55:
            report = self._call("verify", functools.partial(mmreplay.verify, path), _VERIFYING)
            if report is not None and report.sound:
                if changes.wrong:
                    self._found.append(("accepted", "verify: sound, though it cannot be"))
                self._compare(victim, changes, opened)

    def _compare(self, victim, changes, opened):
        """A store that `verify` calls sound can be opened, and reads as it was written."""
        if opened is None:
            seen = self._call("open what is sound", lambda: _contents(victim.path), ())
            if not seen:
                return
            opened = seen
        expected = self._contents[victim.pristine.name]
        if changes.sealed:
            return
        if opened != expected:
            differ = sorted(
                key
                for key in opened.keys() | expected.keys()
                if opened.get(key) != expected.get(key)
            )
            self._found.append(("accepted", f"verify: sound, but {differ} are not as written"))

    def _while_locked(self, path):
        try:
            lock = locks.DirectoryLock(path, who=lambda: "")
        except (OSError, mmreplay.MmreplayError):
            return
        try:
            self._call("open, locked", functools.partial(_look, path), _READING)
            self._call("verify, locked", functools.partial(mmreplay.verify, path), _VERIFYING)
        finally:
            lock.release()

    # ------------------------------------------------------------ calls that write

    def _change_store(self, victim, which):
        self._CHANGING[which](self, victim.path)

    def _append(self, path):
        self._call("append", functools.partial(_append, path), _WRITING)

    def _prioritized(self, path):
        self._call("prioritized", functools.partial(_prioritized, path), _WRITING)

    def _repair(self, path):
        for skip in (False, True):
            call = functools.partial(mmreplay.repair, path, skip_damaged=skip)
            if self._call("repair", call, _WRITING) is None:
                continue
            report = self._call("verify", functools.partial(mmreplay.verify, path), ())
            if report is not None and not report.sound:
                self._found.append(("unsound", f"after repair: {report.findings[:2]}"))
            self._call("open, repaired", functools.partial(_look, path), ())

    def _snapshot(self, path):
        target = path.with_name("copy.zarr")
        call = functools.partial(mmreplay.snapshot, path, target)
        if self._call("snapshot", call, _WRITING) is not None:
            self._call("open, copied", functools.partial(_look, target), _READING)

    def _pack(self, path):
        for n, how in enumerate(
            ({}, {"codec": "zstd"}, {"episodes": lambda all_: all_["id"] >= 0})
        ):
            target = path.with_name(f"packed-{n}.zarr")
            call = functools.partial(mmreplay.pack, path, target, workers=1, **how)
            if self._call("pack", call, _WRITING) is not None:
                self._call("open, packed", functools.partial(_look, target), _READING)

    _CHANGING = (_append, _prioritized, _repair, _snapshot, _pack)

    # ------------------------------------------------------------ the command

    def _show(self, path, random_, *, every=False):
        commands = [
            ["verify"], ["info"], ["episodes"], ["verify", "--json"], ["info", "--json"],
        ]  # fmt: skip
        for command in commands if every else [random_.choice(commands)]:
            outcome = self._call(
                f"mmreplay {command[0]}", functools.partial(_run, [*command, str(path)]), ()
            )
            if outcome is None:
                continue
            status, output = outcome
            if status not in (0, 1) or "Traceback" in output:
                self._found.append(("command", f"{command}: {status}: {output[-300:]!r}"))
            odd = [one for one in output if not one.isprintable() and one != "\n"]
            if odd:
                self._found.append(("command", f"{command}: prints {sorted(set(odd))!r}"))


def _trace(error):
    """Where an error comes from: the innermost places within the package."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return " < ".join(reversed(places[-7:]))


def _contents(path):
    with mmreplay.open(path) as store:
        return _columns(store)


def _columns(store):
    """Every column that is not too large to be asked for."""
    out = {}
    for number, view in enumerate(store.lanes):
        for name, column in columns_of(view, store.schema).items():
            if column.size * column.dtype.itemsize <= _MOST_BYTES:
                values = column[:]
                out[f"{number}/{name}"] = (str(values.dtype), values.shape, values.tobytes())
    if len(store) <= _MOST_ROWS:
        for name, values in (("ids", store.ids), ("episodes", store.episodes)):
            out[name] = (str(values.dtype), values.shape, values.tobytes())
    return out


def _look(path, *, whole=True):
    """All that a reader may ask, or the most of it."""
    with mmreplay.open(path) as store:
        out = _columns(store)
        if not whole:
            return out
        store.info()
        episodes = store.episodes
        if len(store) > _MOST_ROWS or _row_bytes(store.schema) > _MOST_BYTES // 64:
            return out
        ids = store.ids
        if ids.size:
            _check_batch(store, ids)
        if len(episodes):
            store.trajectory(len(episodes) - 1)
        return out


def _row_bytes(schema):
    return sum(one.row_bytes for one in schema.columns().values())


def _check_batch(store, ids):
    """Batches and columns say the same."""
    some = ids[:: max(len(ids) // 3, 1)]
    batch = store.transitions(some, stack=1)
    lanes = store.lanes
    for place, one in enumerate(some.tolist()):
        view = lanes[one >> 40]
        row = one & ((1 << 40) - 1)
        shown = batch.observation
        if view.rewards.ndim > 1:
            row = divmod(row, view.environments)
        pairs = [(view.rewards[row], batch.reward[place]), (view.actions[row], batch.action[place])]
        if isinstance(view.frames, dict):
            pairs += [(view.frames[k][row], shown[k][place, 0]) for k in view.frames]
        else:
            pairs.append((view.frames[row], shown[place, 0]))
        for left, right in pairs:
            if np.asarray(left).tobytes() != np.asarray(right).tobytes():
                raise AssertionError(f"row {row}: a batch has {right}, the column {left}")


def _sample(path):
    """All that a trainer may ask."""
    with mmreplay.load(path, stack=2, n_step=2) as data:
        if _row_bytes(data.store.schema) > _MOST_BYTES // 64:
            return
        data.sample(8)
        data.sample_sequences(4, 3)
        if len(data) <= _MOST_ROWS:
            data.sample_trajectories(2)[0].observation  # noqa: B018 (read when it is asked for)
            for batch in data.batches(32):
                batch.reward.max()


def _append(path):
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        _write_rows(writer)


def _write_rows(writer):
    lanes = len(writer) if hasattr(writer, "__len__") else None
    schema = writer.schema
    if _row_bytes(schema) > _MOST_BYTES // 64 or (lanes or 0) > 64:
        return

    def zeros(one):
        return np.zeros(one.shape if lanes is None else (lanes, *one.shape), one.dtype)

    frames = {key: zeros(one) for key, one in schema.frames.items()}
    frame = frames if schema.is_dict else frames["frame"]
    extras = {name: zeros(one) for name, one in schema.extras.items()}
    flag = False if lanes is None else np.zeros(lanes, bool)
    reward = 1.0 if lanes is None else np.ones(lanes)
    writer.reset(frame)
    for _ in range(10):
        writer.step(zeros(schema.action), reward, frame, flag, flag, **extras)
    writer.flush()


def _prioritized(path):
    """Go on with a buffer that samples by priority."""
    with mmreplay.PrioritizedReplayBuffer(path, stack=2, flush_s=0) as buffer:
        _write_rows(buffer.writer)
        batch = buffer.sample(8)
        if not (np.isfinite(batch.weight).all() and (batch.weight > 0).all()):
            raise AssertionError(f"weights {batch.weight}")
        buffer.update_priorities(batch.id, np.ones(8))


def _run(command):
    """Exit status and output of ``mmreplay``."""
    from click.testing import CliRunner

    from mmreplay_cli import main as mmreplay_command

    result = CliRunner().invoke(mmreplay_command, command, env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def run(folder, seed, start, stop, *, quick=False, limits=None):
    """Do it with the inputs of these numbers."""
    names = list(_OFTEN)[:: by_effort(4, 1, 1)]
    ordeal = Ordeal(folder, pristine_stores(folder / "made", names), seed)
    ordeal.warm_up()
    numbers = list(range(start, stop))
    if quick:
        some = range(0, ordeal.n_special, _QUICK)
        numbers = [
            *some,
            *ordeal.extremes[:: by_effort(7, 1, 1)],
            *ordeal.broken[:: by_effort(50, 9, 1)],
            *(ordeal.n_special + n for n in numbers),
        ]
    return run_limited(ordeal.trial, numbers, ordeal.inside, limits)


def main(arguments):
    """Print a tally as JSON."""
    folder, seed, which, start, stop = arguments
    warnings.simplefilter("error")
    with contextlib.redirect_stdout(sys.stderr):
        tally = run(Path(folder), int(seed), int(start), int(stop), quick=which == "quick")
    print(json.dumps(dataclasses.asdict(tally)))


if __name__ == "__main__":
    main(sys.argv[1:])
