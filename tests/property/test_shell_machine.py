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
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.disks.trees import contents, names
from tests.support.effort import EFFORT, THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.model import Model
from tests.support.oracle.strategies import Layout
from tests.support.processes.parties import FRAMES, Party

NAMES = ("run.zarr", "bak.zarr", "old.zarr", "new.zarr")
LINK = "now.zarr"
MARKS = {"A": 10, "B": 200}  # the least values of their frames
KEPT = 12  # transitions a lane, where old ones are evicted
GONE = "this store was removed while it was open"
PICKS = st.integers(0, 11)
SEEDS = st.integers(0, 2**32 - 1)
WRITERS = st.sampled_from(sorted(MARKS))
LAYOUTS = st.builds(
    lambda codec, lanes, evicts: Layout(
        FRAMES[codec],
        mmreplay.Field((), "int64", chunk=8),
        {},
        capacity=KEPT * (lanes or 1) if evicts else None,
        lanes=lanes,
    ),
    st.sampled_from(sorted(FRAMES)),
    st.sampled_from([None, None, 2]),
    st.sampled_from([False, False, True]),
)


@dataclasses.dataclass(eq=False)
class Directory:
    """A store, wherever it is now.

    Attributes:
        layout: it was made with.
        prioritized: whether its writers are prioritized buffers.
        model: the rows that may be in it.
        durable: of each lane, as many rows were flushed.
        state: ``open``, ``closed``, ``crashed``, or ``copied``: of one that was not closed.
        origin: the same of all copies of one store.
        party: who writes it, while it is open.
        files: what is in it, since that was last changed by who may.
        loose: files that a writer of another directory had mapped when a link was made to them.
        loose_with: that writer.
        is_plain: whether no files of another time were left in it.
        priorities: ids, and their priorities, if they have to be there.
    """

    layout: Layout
    prioritized: bool
    model: Model
    durable: list
    state: str
    origin: object
    party: Party | None = None
    files: dict = dataclasses.field(default_factory=dict)
    loose: frozenset = frozenset()
    loose_with: object = None
    is_plain: bool = True
    priorities: tuple | None = None

    def copied(self):
        """What a copy of it is."""
        state = "closed" if self.state == "closed" else "copied"
        return dataclasses.replace(
            self,
            model=self.ended_model(),
            durable=list(self.durable),
            state=state,
            party=None,
            loose=frozenset(),
            loose_with=None,
            priorities=self.priorities if state == "closed" else None,
        )

    def ended_model(self):
        """Its rows, with no episode that goes on."""
        model = self.model.copy()
        for lane in model.lanes:
            lane.end_session()
        return model

    def cut(self, rows):
        """It has so many rows in each lane, as was found: not too few, and not too many."""
        for found, least, lane in zip(rows, self.durable, self.model.lanes, strict=True):
            if self.state == "copied":
                assert least <= found <= len(lane.rows), (least, found, len(lane.rows))
                lane.cut(found)
            else:
                assert found == len(lane.rows), (found, len(lane.rows))


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
        self.create("A", 0, layout, prioritized, seed)
        self.step("A", 9)

    def teardown(self):
        try:
            for who in MARKS:
                self.close(who)
            for name, store in sorted(self.at.items()):
                if store.state != "closed":
                    self.open_at("A", name, seed=0)
                    self.close("A")
                self.check_closed(name)
        finally:
            self.drop_reader()
            for store in filter(None, self.writing.values()):
                faults.kill(store.party.writer)
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

    @precondition(lambda self: self.free())
    @rule(who=WRITERS, n=PICKS, layout=LAYOUTS, prioritized=st.booleans(), seed=SEEDS)
    def create(self, who, n, layout, prioritized, seed):
        if self.writing[who] is not None:
            return
        name = self.pick(n, self.free())
        party = Party(layout, MARKS[who], random.Random(seed), prioritized=prioritized)
        party.make(self.path(name))
        n_lanes = layout.lanes or 1
        store = Directory(layout, prioritized, party.model, [0] * n_lanes, "open", object(), party)
        self.at[name] = self.writing[who] = store
        self.settle(store)

    @precondition(lambda self: self.at)
    @rule(n=PICKS)
    def create_where_one_is(self, n):
        with pytest.raises(mmreplay.StoreExistsError):
            mmreplay.create(self.path(self.pick(n, sorted(self.at))), FRAMES["raw"])
        self.settle()

    @precondition(lambda self: self.names())
    @rule(who=WRITERS, n=PICKS, seed=SEEDS)
    def open(self, who, n, seed):
        if self.writing[who] is None:
            self.open_at(who, self.pick(n, self.names()), seed)

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
        if store is None:
            return False
        is_there = store in self.at.values()
        try:
            call(store.party)
            if store.party.writer is not None:
                self.wait_for(store.party.writer)
        except mmreplay.FailedStoreError as error:
            assert not is_there, error
            assert GONE in str(error), error
            with contextlib.suppress(mmreplay.FailedStoreError):
                store.party.writer.close()
            self.end_session(who, "closed")
        self.settle(store)
        return store in self.at.values()

    def wait_for(self, writer):
        """Nothing that a writer's threads were given is left to be done."""
        background = faults.lanes_of(writer)[0]._background
        background.finish_tasks()
        background.tick(timer=False)
        with faults.quiet(writer):
            pass

    def end_session(self, who, state):
        store, self.writing[who] = self.writing[who], None
        store.state, store.party = state, None
        if state == "closed":
            store.durable = [len(lane.rows) for lane in store.model.lanes]
        for other in self.at.values():
            if other.loose_with is store:
                other.loose, other.loose_with = frozenset(), None

    @rule(who=WRITERS, n_steps=st.sampled_from([1, 2, 5, 9, 20, 45]))
    def step(self, who, n_steps):
        self.act(who, lambda party: party.step(n_steps))

    @rule(who=WRITERS)
    def reset(self, who):
        self.act(who, lambda party: party.reset())

    @rule(who=WRITERS)
    def flush(self, who):
        if self.act(who, lambda party: party.writer.flush()):
            store = self.writing[who]
            store.durable = [lane.rows for lane in store.party.lanes]

    @rule(who=WRITERS)
    def update_priorities(self, who):
        store = self.writing[who]
        if store is not None and store.prioritized:
            self.act(who, lambda party: party.update())

    @rule(who=WRITERS)
    def close(self, who):
        self.end(who, "closed")

    @rule(who=WRITERS)
    def kill(self, who):
        self.end(who, "crashed")

    def end(self, who, state):
        store = self.writing[who]
        if store is None:
            return
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

    @precondition(lambda self: any(self.writing.values()) and self.free())
    @rule(who=WRITERS, m=PICKS, n_steps=st.integers(1, 20), live_last=st.booleans())
    def cp_a_meanwhile(self, who, m, n_steps, live_last):
        """Its writer goes on while a store is being copied: files are of two moments."""
        store = self.writing[who]
        old = next((name for name, one in self.at.items() if one is store), None)
        if old is None:
            return
        new = self.pick(m, self.free())
        half = self.aside / "half.zarr"
        shutil.copytree(self.path(old), half, copy_function=_copies(live=not live_last))
        before = _checkpoints(self.path(old))
        self.step(who, n_steps)
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

    @precondition(lambda self: len(self.at) > 1)
    @rule(n=PICKS, m=PICKS)
    def cp_r_over(self, n, m):
        """A copy is restored in place. The process of a live store ends by that."""
        pairs = [
            (source, target)
            for source, one in self.at.items()
            for target, other in self.at.items()
            if one is not other and one.origin is other.origin and one.state != "open"
        ]
        pairs = [pair for pair in pairs if self.may_restore(*pair)]
        if not pairs:
            return
        source, target = self.pick(n * 12 + m, sorted(pairs))
        store, over = self.at[source], self.at[target]
        for who in MARKS:
            if self.writing[who] is over:
                self.kill(who)
        if self.reader is not None and over in self.reader.followed:
            self.drop_reader()
        # What the two share is left alone, and makes the status 1.
        done = self.shell("cp", "-r", f"{source}/.", f"{target}/", status=1)
        assert all("are the same file" in line for line in done.stderr.splitlines()), done.stderr
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
            store.durable = [len(lane.rows) for lane in store.model.lanes]
            store.state, store.is_plain = "closed", True
            store.loose, store.loose_with = frozenset(), None
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
        copy.durable = [len(lane.rows) for lane in copy.model.lanes]
        copy.state, copy.is_plain, copy.priorities = "closed", True, None
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
            self.reader.data.close()
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
            live = store.state in ("open", "crashed")
            checks.check_store(found, seen.model, live=live, most=12)

    def check_closed(self, name):
        self.check_verified(name)
        if self.resolved(name).is_plain:
            checks.check_plain_zarr(self.path(name))
        self.check_read(name)

    def check_verified(self, name):
        """Nothing is wrong; where a copy was restored in place, files may be left over."""
        if self.resolved(name).is_plain:
            checks.check_verified(self.path(name))
        else:
            for finding in mmreplay.verify(self.path(name)).findings:
                assert (
                    finding.array == "priorities" or "expected no chunk file" in finding.message
                ), finding

    def check_priorities(self, store):
        if store.priorities is not None:
            ids, expected = store.priorities
            buffer = store.party.writer
            checks.check_same(buffer.ids, ids, "ids with priorities")
            checks.check_same(buffer.priorities(ids), expected, "priorities")
        store.priorities = None


class Reader:
    """A dataset of whatever was at a path, and what that has been since."""

    def __init__(self, path, store):
        self.name, self.data = path.name, mmreplay.load(path, stack=2)
        self.followed = [store]

    def follow(self, store):
        if store is not self.followed[-1]:
            self.followed.append(store)

    def sample(self, size):
        """Whether it can go on: a batch is of a store that had its path."""
        store = self.followed[0]
        try:
            batch = self.data.sample(size)
        except mmreplay.EmptyBufferError:
            # Of a copy, those rows that were not durable are not there.
            assert any(
                one is None or one.state == "copied" or not len(one.model) for one in self.followed
            )
        except mmreplay.MmreplayError:
            assert len(self.followed) > 1  # with its own store at its path all goes well
            return False
        else:
            if len(self.followed) == 1:
                checks.check_batch(batch, store.model.batch(batch.id, stack=2), "sample")
            else:
                assert any(map(lambda one: self.is_of(batch, one), filter(None, self.followed)))
        return True

    def is_of(self, batch, store):
        try:
            checks.check_batch(batch, store.model.batch(batch.id, stack=2), "sample")
        except (AssertionError, IndexError):
            return False
        return True


def _copies(*, live):
    """Copies what is in `.live`, or what is not."""

    def copy(source, target):
        if (os.path.basename(os.path.dirname(source)) == ".live") == live:
            shutil.copy2(source, target)

    return copy


def _checkpoints(path):
    return [file.read_bytes() for file in sorted(path.rglob("checkpoint"))]


pytestmark = [
    pytest.mark.timeout(0 if THOROUGH else 240),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody has tried it"),
]
ShellMachine.TestCase.settings = settings(
    stateful_step_count=by_effort(20, 30, 40),
    max_examples=by_effort(4, 250, 5_000),
    derandomize=EFFORT == "quick",
)
TestShell = ShellMachine.TestCase
