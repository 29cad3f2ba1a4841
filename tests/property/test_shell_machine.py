"""Stores that two writers and a reader use while somebody moves, copies, links and restores them.

Invariant: a writer changes no byte of a directory but the one that it has locked; each store has
the rows that its model says, or of a copy of one that was not closed those that were durable and
maybe later ones; a reader sees the rows of a store that has had its path; what fails says what of
ours it is.
"""

import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import mmreplay
from mmreplay.reading import live_lanes
from mmreplay.system import locks
from tests.support import quiet
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.disks.trees import contents, names
from tests.support.effort import EFFORT, THOROUGH, by_effort
from tests.support.oracle import checks, disk
from tests.support.oracle.layout import Layout
from tests.support.processes.directories import Directory, Reader
from tests.support.processes.parties import CODECS, Party, frame_of

NAMES = ("run.zarr", "bak.zarr", "old.zarr", "new.zarr")
LINK = "now.zarr"
MARKS = {"A": 10, "B": 200}  # the least values of their frames
MOST_ORIGINS = 2  # the other stores are copies
KEPT = 12  # transitions of an environment, where old ones are evicted
GONE = "this store was removed while it was open"
PICKS = st.integers(0, 11)
SEEDS = st.integers(0, 2**32 - 1)
LAYOUTS = st.builds(
    lambda codec, environments, evicts: Layout(
        frame_of(codec, environments),
        mmreplay.Field((), "int64", chunk=8),
        capacity=KEPT * (environments or 1) if evicts else None,
        environments=environments,
    ),
    st.sampled_from(CODECS),
    st.sampled_from([None, 3]),
    st.sampled_from([False, False, True]),
)


def while_writing(function):
    """A rule for one of those who are writing, whichever `n` picks."""
    there = precondition(lambda self: any(self.writing.values()))
    return there(rule(n=PICKS)(function))


class ShellMachine(RuleBasedStateMachine):
    """A folder with up to four stores and a link to one of them, two writers and a reader."""

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.aside = self.stack.enter_context(scratch_directory())
        self.folder = self.aside / "stores"
        self.folder.mkdir()
        self.at = {}  # directories by name
        self.link = None
        self.writing = dict.fromkeys(MARKS)  # the directory that each has locked
        self.reader = None
        # No waiting for locks, and a look at what is at the path with each read, or with none.
        self.stack.enter_context(
            mock.patch.object(locks.DirectoryLock.__init__, "__kwdefaults__", {"patience_s": 0.0})
        )

    @initialize(layout=LAYOUTS, prioritized=st.booleans(), looks=st.booleans(), seed=SEEDS)
    def begin(self, layout, prioritized, looks, seed):
        every_s = 0.0 if looks else 3600.0
        self.stack.enter_context(mock.patch.object(live_lanes, "_LOOK_S", every_s))
        self.create(0, 0, layout, prioritized, seed)
        self.step(0, 9)

    def teardown(self):
        try:
            for who in self.writers():
                self.end(who, "closed")
            for name, store in sorted(self.at.items()):
                if store.state != "closed":
                    self.open_at("A", name, seed=0)
                    self.end("A", "closed")
                self.check_closed(name)
        finally:
            self.drop_reader()
            for who in self.writers():
                if (writer := self.writing[who].party.writer) is not None:
                    faults.kill(writer)
            self.stack.close()

    # ------------------------------------------------------------ what stands where

    def path(self, name):
        return self.folder / name

    def resolved(self, name):
        """The directory that a path leads to, if any."""
        return self.at.get(self.link if name == LINK else name)

    def names(self):
        return sorted(self.at) + [LINK] * (self.link is not None)

    def free(self):
        return [name for name in NAMES if name not in self.at]

    def writers(self):
        return [who for who, store in self.writing.items() if store is not None]

    def idle(self):
        return [who for who, store in self.writing.items() if store is None]

    def n_origins(self):
        return len({store.origin for store in self.at.values()})

    def pick(self, number, choices):
        return choices[number % len(choices)]

    def settle(self, *changed):
        """Only these directories have changed, and nothing was left behind beside them."""
        expected = {*self.at, *([LINK] if self.link else [])}
        assert set(names(self.folder)) == expected
        for name, store in self.at.items():
            found = contents(self.path(name))
            if store not in changed:
                wrong = {
                    file
                    for file in found.keys() | store.files.keys()
                    if found.get(file, 0) != store.files.get(file, 0)
                }
                assert wrong <= store.loose, (name, wrong)
            store.files = found
        if self.reader is not None:
            self.reader.follow(self.resolved(self.reader.name))

    # ------------------------------------------------------------ the writers

    @precondition(lambda self: self.idle() and self.free() and self.n_origins() < MOST_ORIGINS)
    @rule(n=PICKS, m=PICKS, layout=LAYOUTS, prioritized=st.booleans(), seed=SEEDS)
    def create(self, n, m, layout, prioritized, seed):
        who, name = self.pick(n, self.idle()), self.pick(m, self.free())
        party = Party(layout, MARKS[who], random.Random(seed), prioritized=prioritized)
        party.make(self.path(name))
        none = party.model.heads()
        store = Directory(layout, prioritized, party.model, none, "open", object(), party)
        self.at[name] = self.writing[who] = store
        self.settle(store)

    @precondition(lambda self: self.at)
    @rule(n=PICKS)
    def create_where_one_is(self, n):
        with pytest.raises(mmreplay.StoreExistsError):
            mmreplay.create(self.path(self.pick(n, sorted(self.at))), frame_of("raw", None))
        self.settle()

    @precondition(lambda self: self.idle() and self.names())
    @rule(n=PICKS, m=PICKS, seed=SEEDS)
    def open(self, n, m, seed):
        self.open_at(self.pick(n, self.idle()), self.pick(m, self.names()), seed)

    def open_at(self, who, name, seed):
        path, store = self.path(name), self.resolved(name)
        if store is None:
            with pytest.raises(mmreplay.StoreNotFoundError):
                mmreplay.create(path, append=True)
        elif store.state == "open":
            with pytest.raises(mmreplay.LockedError, match="in this process"):
                mmreplay.create(path, append=True)
        else:
            party = Party(
                store.layout, MARKS[who], random.Random(seed), prioritized=store.prioritized
            )
            party.model = store.model
            party.open(path)
            store.cut([lane.rows for lane in party.lanes])
            if store.state != "crashed":
                store.durable = [lane.rows for lane in party.lanes]
            store.state, store.party = "open", party
            store.loose, store.loose_with = frozenset(), None
            store.is_plain = True
            self.writing[who] = store
            self.check_priorities(store)
            self.settle(store)

    def act(self, who, call):
        """Let a writer do something; of a store that was removed it says so, if not at once."""
        store = self.writing[who]
        is_there = store in self.at.values()
        try:
            call(store.party)
            if store.party.writer is not None:
                quiet.settle(store.party.writer)
        except mmreplay.FailedStoreError as error:
            assert not is_there, error
            assert GONE in str(error), error
            with contextlib.suppress(mmreplay.FailedStoreError):
                store.party.writer.close()
            self.end_session(who, "closed")
        self.settle(store)
        return store in self.at.values()

    def end_session(self, who, state):
        store, self.writing[who] = self.writing[who], None
        store.state, store.party = state, None
        if state == "closed":
            store.finish()
        for other in self.at.values():
            if other.loose_with is store:
                other.loose, other.loose_with = frozenset(), None

    @precondition(lambda self: self.writers())
    @rule(n=PICKS, n_steps=st.sampled_from([1, 2, 5, 9, 20, 45]))
    def step(self, n, n_steps):
        self.act(self.pick(n, self.writers()), lambda party: party.step(n_steps))

    @while_writing
    def reset(self, n):
        self.act(self.pick(n, self.writers()), lambda party: party.reset())

    @while_writing
    def flush(self, n):
        who = self.pick(n, self.writers())
        if self.act(who, lambda party: party.writer.flush()):
            store = self.writing[who]
            store.durable = [lane.rows for lane in store.party.lanes]

    @while_writing
    def update_priorities(self, n):
        who = self.pick(n, self.writers())
        if self.writing[who].prioritized:
            self.act(who, lambda party: party.update())

    @while_writing
    def close(self, n):
        self.end(self.pick(n, self.writers()), "closed")

    @while_writing
    def kill(self, n):
        self.end(self.pick(n, self.writers()), "crashed")

    def end(self, who, state):
        store = self.writing[who]
        party = store.party
        if store.prioritized and store in self.at.values():
            ids = party.writer.ids
            store.priorities = ids, party.writer.priorities(ids)
        self.act(who, lambda party: party.close() if state == "closed" else party.kill())
        if self.writing[who] is not None:
            self.end_session(who, state)
        if state == "closed":
            for name, other in self.at.items():
                if other is store:
                    self.check_closed(name)

    # ------------------------------------------------------------ whoever has a shell

    def shell(self, *words, status=0):
        """A command, typed in the folder."""
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode in (0, status), done.stderr
        return done

    @precondition(lambda self: self.at and self.free())
    @rule(n=PICKS, m=PICKS)
    def mv(self, n, m):
        old, new = self.pick(n, sorted(self.at)), self.pick(m, self.free())
        self.shell("mv", old, new)
        self.at[new] = self.at.pop(old)
        self.settle()

    @precondition(lambda self: self.at and self.free())
    @rule(n=PICKS, m=PICKS)
    def cp_a(self, n, m):
        old, new = self.pick(n, sorted(self.at)), self.pick(m, self.free())
        self.shell("cp", "-a", old, new)
        self.at[new] = copy = self.at[old].copied()
        self.settle(copy)

    @precondition(lambda self: self.writers() and self.free())
    @rule(n=PICKS, m=PICKS, n_steps=st.integers(1, 20), live_last=st.booleans())
    def cp_a_meanwhile(self, n, m, n_steps, live_last):
        """Its writer goes on while a store is being copied: files are of two moments."""
        who = self.pick(n, self.writers())
        store = self.writing[who]
        old = next((name for name, one in self.at.items() if one is store), None)
        if old is None:
            return
        new = self.pick(m, self.free())
        half = self.aside / "half.zarr"
        shutil.copytree(self.path(old), half, copy_function=_copies(live=not live_last))
        before = _checkpoints(self.path(old))
        self.act(who, lambda party: party.step(n_steps))
        shutil.copytree(
            self.path(old), half, copy_function=_copies(live=live_last), dirs_exist_ok=True
        )
        if before != _checkpoints(self.path(old)):
            shutil.rmtree(half)  # of two flushes, nothing is promised
            return
        self.shell("mv", str(half), new)
        self.at[new] = copy = store.copied()
        self.settle(copy)

    @precondition(lambda self: self.at and self.free())
    @rule(n=PICKS, m=PICKS)
    def cp_al(self, n, m):
        old, new = self.pick(n, sorted(self.at)), self.pick(m, self.free())
        store = self.at[old]
        self.shell("cp", "-al", old, new)
        self.at[new] = copy = store.copied()
        if store.state == "open":
            copy.loose, copy.loose_with = frozenset(store.files), store
        else:
            copy.loose, copy.loose_with = store.loose, store.loose_with
        self.settle(copy)

    @precondition(lambda self: self.at)
    @rule(n=PICKS)
    def rm_rf(self, n):
        name = self.pick(n, sorted(self.at))
        self.shell("rm", "-rf", name)
        del self.at[name]
        self.settle()

    @rule(n=PICKS)
    def ln_s(self, n):
        """Make a link, or turn it; it may lead nowhere."""
        self.link = self.pick(n, NAMES)
        self.shell("ln", "-sfn", self.link, LINK)
        self.settle()

    def copies(self):
        """Names of stores, and of what copies of them may be restored over."""
        return [
            (source, target)
            for source, one in sorted(self.at.items())
            for target, other in sorted(self.at.items())
            if one is not other and one.origin is other.origin and one.state != "open"
        ]

    @precondition(lambda self: self.copies())
    @rule(n=PICKS, rsync=st.booleans())
    def cp_r_over(self, n, rsync):
        """A copy is restored in place. The process of a live store ends by that."""
        self.restore(*self.pick(n, self.copies()), rsync=rsync)

    @precondition(lambda self: self.writers() and self.free())
    @rule(n=PICKS, m=PICKS, n_steps=st.integers(1, 20), rsync=st.booleans())
    def cp_a_meanwhile_and_back(self, n, m, n_steps, rsync):
        """A copy whose state page knows more rows than its other files is restored in place."""
        store, before = self.writing[self.pick(n, self.writers())], set(self.at)
        self.cp_a_meanwhile(n, m, n_steps, live_last=True)
        for copy in set(self.at) - before:
            target = next(name for name, one in self.at.items() if one is store)
            self.restore(copy, target, rsync=rsync)
            self.check_read(target)

    def restore(self, source, target, *, rsync):
        if not self.may_restore(source, target):
            return
        store, over = self.at[source], self.at[target]
        for who in self.writers():
            if self.writing[who] is over:
                self.end(who, "crashed")
        if self.reader is not None and over in self.reader.followed:
            self.drop_reader()
        if rsync and shutil.which("rsync"):
            # Without -I it may take a file of the same second and size for the same.
            self.shell("rsync", "-aI", "--inplace", f"{source}/", f"{target}/")
        else:
            # What the two share is left alone, and makes the status 1.
            done = self.shell("cp", "-r", f"{source}/.", f"{target}/", status=1)
            assert all("are the same file" in line for line in done.stderr.splitlines())
        self.at[target] = restored = store.copied()
        restored.is_plain, restored.priorities = False, None
        self.settle(restored)

    def may_restore(self, source, target):
        """Whether nothing is overwritten but the target, and its state page is."""
        for folder, _, files in os.walk(self.path(target)):
            for file in files:
                path = os.path.join(folder, file)
                there = self.path(source) / os.path.relpath(path, self.path(target))
                if os.stat(path).st_nlink > 1 and not (
                    there.exists() and os.path.samefile(path, there) and ".live" not in folder
                ):
                    return False
        return True

    @precondition(lambda self: self.at)
    @rule(n=PICKS)
    def touch(self, n):
        name = self.pick(n, sorted(self.at))
        self.shell("find", name, "-exec", "touch", "{}", "+")
        self.settle()

    @precondition(lambda self: self.at)
    @rule(n=PICKS)
    def chmod(self, n):
        """Take away the permission to write for a while; it is read as before."""
        name = self.pick(n, sorted(self.at))
        store = self.at[name]
        if store.state == "open":
            return
        self.shell("chmod", "-R", "a-w", name)
        self.check_read(name)
        if os.geteuid():  # root may do all
            with pytest.raises(mmreplay.MmreplayError):
                mmreplay.create(self.path(name), append=True)
        self.shell("chmod", "-R", "u+w", name)
        self.settle()

    # ------------------------------------------------------------ maintenance

    @precondition(lambda self: self.names())
    @rule(n=PICKS)
    def verify(self, n):
        name = self.pick(n, self.names())
        if self.resolved(name) is None:
            with pytest.raises(mmreplay.StoreNotFoundError):
                mmreplay.verify(self.path(name))
        else:
            self.check_verified(name)
        self.settle()

    @precondition(lambda self: self.names())
    @rule(n=PICKS)
    def repair(self, n):
        name = self.pick(n, self.names())
        store = self.resolved(name)
        if store is None or store.state == "open":
            error = mmreplay.StoreNotFoundError if store is None else mmreplay.LockedError
            with pytest.raises(error):
                mmreplay.repair(self.path(name))
            self.settle()
            return
        if not store.is_plain:
            return
        done = mmreplay.repair(self.path(name))
        assert (done.before, done.findings) == (None, [])
        assert done.changed == (store.state != "closed")
        if done.changed:
            with mmreplay.open(self.path(name)) as found:
                store.cut([lane.rows for lane in found.lanes])
            store.finish()
            self.check_closed(name)
            self.settle(store)
        else:
            self.settle()

    @precondition(lambda self: self.names() and self.free())
    @rule(n=PICKS, m=PICKS)
    def snapshot(self, n, m):
        source, target = self.pick(n, self.names()), self.pick(m, self.free())
        store = self.resolved(source)
        if store is None:
            with pytest.raises(mmreplay.StoreNotFoundError):
                mmreplay.snapshot(self.path(source), self.path(target))
            return
        mmreplay.snapshot(self.path(source), self.path(target))
        copy = store.copied()
        with mmreplay.open(self.path(target)) as found:
            copy.cut([lane.rows for lane in found.lanes])
        copy.finish()
        copy.priorities = None
        self.at[target] = copy
        self.check_closed(target)
        self.settle(copy)

    # ------------------------------------------------------------ readers

    @precondition(lambda self: self.names())
    @rule(n=PICKS)
    def load(self, n):
        """The reader goes to another path."""
        self.drop_reader()
        name = self.pick(n, self.names())
        store = self.resolved(name)
        if store is None:
            with pytest.raises(mmreplay.StoreNotFoundError):
                mmreplay.load(self.path(name))
        else:
            self.reader = Reader(self.path(name), store)

    def drop_reader(self):
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    @precondition(lambda self: self.reader is not None)
    @rule(size=st.sampled_from([1, 8, 40]))
    def sample(self, size):
        if not self.reader.sample(size):
            self.drop_reader()
        self.settle()

    @precondition(lambda self: self.at)
    @rule(n=PICKS)
    def read(self, n):
        self.check_read(self.pick(n, sorted(self.at)))
        self.settle()

    # ------------------------------------------------------------ what must be

    def check_read(self, name):
        """A reader that comes now finds what has to be in a store."""
        store = self.resolved(name)
        with mmreplay.open(self.path(name)) as found:
            seen = dataclasses.replace(store, model=store.model.copy())
            seen.cut([lane.rows for lane in found.lanes])
            checks.check_store(found, seen.model, most=12)

    def check_closed(self, name):
        self.check_verified(name)
        if self.resolved(name).is_plain:
            disk.check_plain_zarr(self.path(name))
        self.check_read(name)

    def check_verified(self, name):
        """Nothing is wrong; where a copy was restored in place, files may be left over."""
        if self.resolved(name).is_plain:
            checks.check_verified(self.path(name))
        else:
            for finding in mmreplay.verify(self.path(name)).findings:
                assert (
                    finding.array.endswith("priorities")
                    or "expected no chunk file" in finding.message
                ), finding

    def check_priorities(self, store):
        if store.priorities is not None:
            ids, expected = store.priorities
            buffer = store.party.writer
            checks.check_same(buffer.ids, ids, "ids with priorities")
            checks.check_same(buffer.priorities(ids), expected, "priorities")
        store.priorities = None


def _copies(*, live):
    """Copies what is in `.live`, or what is not."""

    def copy(source, target):
        if (os.path.basename(os.path.dirname(source)) == ".live") == live:
            shutil.copy2(source, target)

    return copy


def _checkpoints(path):
    return [file.read_bytes() for file in sorted(path.rglob("checkpoint"))]


pytestmark = [
    pytest.mark.timeout(0 if THOROUGH else 900),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody has tried it"),
]
ShellMachine.TestCase.settings = settings(
    stateful_step_count=by_effort(20, 30, 40),
    max_examples=by_effort(4, 25, 5_000),
    derandomize=EFFORT == "quick",
)
TestShell = ShellMachine.TestCase
