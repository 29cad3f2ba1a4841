"""A store is moved, removed, or its link turned while it is written, and another takes its path.

Invariant: a writer touches only the directory that it has locked. The other store has exactly its
own rows; the first one goes on where it is now, with exactly its rows; of one that was removed the
next call that needs the disk says so.
"""

import contextlib
import dataclasses
import itertools
import random
import shutil
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest

import mmreplay
from mmreplay.system import durable_writes
from tests.support.disks.faults import CALLS, faulty_disk
from tests.support.disks.trees import contents, flip, names
from tests.support.effort import EFFORT, by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.processes.parties import CODECS, Party, frame_of
from tests.support.writers import drain

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody has tried it"),
]
Field = mmreplay.Field

KINDS = {"one environment": None, "many environments": 8}
N_ORDERS = by_effort(1, 1, 200)  # of each cell
CHUNK_ROWS = 8
KEPT = 12  # transitions of an environment, where old ones are evicted
MOST_CALLS = 400  # a move within an operation comes before one of so many calls of it
A, B = 10, 200
GONE = "this store was removed while it was open"


WAYS = ("renamed", "removed", "link turned")


class Place:
    """A path in a new folder; the first store that is at it goes away at `move`."""

    def __init__(self, folder, way):
        folder.mkdir()
        self.folder, self.way = folder, way
        self.path = folder / "store.zarr"
        self.second = folder / "second.zarr"
        self.first = self.path
        self.moved = False
        if way == "link turned":
            self.first = folder / "first.zarr"
            self.path.symlink_to(self.first.name)

    def move(self):
        """Take the first store away from the path; whether it was there.

        A repair that exchanges it takes it away itself for a moment, and would put it back.
        """
        self.moved = True
        was_there = self.path.exists()
        if self.way == "link turned":
            turned = self.folder / "turned"
            turned.symlink_to(self.second.name)
            turned.replace(self.path)
        elif self.way == "renamed":
            try:
                self.first = self.path.rename(self.folder / "moved.zarr")
            except FileNotFoundError:
                was_there = False
                self.first = self.folder / "store.zarr.damaged"  # as the repair will name it
        else:
            self.first = None
            while self.path.exists():  # a thread may be making a file in it
                with contextlib.suppress(OSError):
                    shutil.rmtree(self.path)
        return was_there

    def put_second(self):
        """Let the second store, made elsewhere and closed, be at the path."""
        if self.way != "link turned":
            self.second.rename(self.path)
            self.second = self.path

    def stores(self):
        """What should stand in the folder."""
        stores = [self.path] if self.first is None else [self.path, self.first]
        return [*stores, self.second] if self.way == "link turned" else stores


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is done, when the store goes which way."""

    what: str
    way: str
    codec: str
    kind: str

    def layout(self):
        n = KINDS[self.kind]
        action = Field((), "int64", chunk=CHUNK_ROWS)
        return Layout(
            frame_of(self.codec, n),
            action,
            capacity=KEPT * (n or 1) if self.what == "evict" else None,
            environments=n,
        )


class Order:
    """One history of two writers, A and B, in an order that a seed chooses."""

    def __init__(self, folder, cell, seed):
        self.cell, self.luck = cell, random.Random(seed)
        self.place = Place(folder, cell.way)
        self.a = Party(cell.layout(), A, self.luck)
        self.b = Party(cell.layout(), B, self.luck)
        self.within = self.beside = self.gone = False
        self.turn = threading.RLock()  # B's: a thread of A may be where the store is moved
        self.problems = []
        self.harmed = self.said = None
        self.made = cell.way == "link turned" or self.luck.random() < 0.5
        # Done between two calls, or before one of the calls that an operation makes to the disk.
        self.at = int(MOST_CALLS ** self.luck.random()) if self.luck.random() < 0.75 else 0
        self.calls = CALLS
        if cell.what == "repair" and self.luck.random() < 0.3:  # as it exchanges the stores
            self.calls, self.at = frozenset({"renameat2", "rename"}), self.luck.randint(1, 3)
        self.told = cell.what in ("snapshot", "repair") and self.luck.random() < 0.3

    # ------------------------------------------------------------ what happens

    def run(self):
        self.begin()
        with faulty_disk() as disk:
            self.disk = disk
            if self.told:
                pass
            elif self.at:
                disk.before(self.calls, self.move_within, at=self.at)
            else:
                self.move()
            for _ in getattr(self, self.cell.what)():
                self.others()
            disk.heal()
        self.move()
        for _ in range(self.luck.randint(1, 4)):
            self.others()
            if self.a.writer is not None:
                self.do(self.a.act)
        self.finish()
        if self.problems:
            raise self.problems[0]
        self.check()

    def begin(self):
        """A has written something; B's store is made elsewhere, unless it is made at the path."""
        if self.made:
            self.b.make(self.place.second)
            self.b.step(self.luck.randint(0, 20))
            self.b.close()
        self.a.make(self.place.first)
        if self.cell.way == "link turned":
            self.a.close()
            self.a.open(self.place.path)
        for _ in range(self.luck.randint(0, 5)):
            self.a.act()
        if self.cell.what == "reopen":
            self.luck.choice([self.a.close, self.a.kill])()
        elif self.cell.what == "snapshot":
            # Else a thread of A may be where the store goes, before the snapshot has looked it up.
            for lane in self.a.lanes:
                drain(lane)
            self.luck.choice([self.a.close, self.a.kill, lambda: None])()
        elif self.cell.what == "repair":
            self.damage()

    def damage(self):
        """A's store is closed and damaged, or left open by a crash and sound."""
        self.a.step(20)
        if self.luck.random() < 0.25:
            self.a.kill()
            return
        self.a.close()
        rows = self.a.model.heads()
        number = self.luck.randrange(len(rows))
        chunk = self.luck.randint(1, (rows[number] - 1) // CHUNK_ROWS)
        name = f"c.{chunk}" if KINDS[self.cell.kind] is None else f"c.{chunk}.0"
        file = self.place.first / self.luck.choice(["actions", "rewards"]) / name
        self.luck.choice([flip, Path.unlink])(file)
        rows[number] = chunk * CHUNK_ROWS
        self.a.model.cut(rows)
        self.harmed = contents(self.place.first)

    def move_within(self):
        with self.turn:
            self.within = not self.place.moved
            self.beside = threading.current_thread() is not threading.main_thread()
            try:
                self.move()
            except BaseException as error:
                self.problems.append(error)
                raise

    def move(self):
        """The store goes; B's comes, at once or a while later."""
        with self.turn:
            if not self.place.moved:
                was_there = self.place.move()
                if self.luck.random() < 0.7 or not was_there:
                    self.come()

    def come(self):
        if not self.made:
            self.b.make(self.place.path)
        else:
            self.place.put_second()
            self.b.open(self.place.path)
        self.b.act()

    def others(self):
        """B's turn."""
        with self.turn:
            if not self.place.moved:
                return
            if self.b.writer is None:
                self.come()
            for _ in range(self.luck.randint(0, 2)):
                self.b.act()

    def do(self, call, *args):
        """A's turn; of a store that was removed, the first call that fails says so."""
        if self.gone:
            return
        try:
            call(*args)
        except mmreplay.MmreplayError as error:
            if not self.place.moved or self.place.first is not None:
                raise
            # Another thread of A may have met the store when half of it was removed: a flush or a
            # seal may run at any time.
            if not self.beside:
                assert isinstance(error, mmreplay.FailedStoreError), error
                half_gone = " missing" in str(error) or "No such file" in str(error)
                assert GONE in str(error) or half_gone, error
            self.gone = True

    def finish(self):
        """Both end; nobody can go on with what was removed."""
        self.others()
        if self.b.writer is None:
            self.come()
        if self.place.first is not None:
            if self.a.killed and self.a.writer is None and self.cell.what != "repair":
                self.a.open(self.place.first)
            if self.a.writer is not None:
                self.a.end(lambda: self.place.first)
        elif self.a.writer is not None:
            self.do(self.luck.choice([self.a.writer.flush, self.a.writer.close]))
            assert self.gone
            with contextlib.suppress(mmreplay.MmreplayError):
                self.a.writer.close()
        self.b.end(lambda: self.place.path)

    def check(self):
        self.b.check(self.place.path)
        if self.place.first is not None:
            if self.cell.what == "repair":
                self.check_repair()
            self.a.check(self.place.first)
        there = {one.name for one in self.place.stores()}
        for name in names(self.place.folder):
            if ".damaged" in name:
                assert contents(self.place.folder / name) == self.harmed or name in there
            else:
                assert name in there

    def check_repair(self):
        """It was done where the store is, or nothing was changed, and can be done now."""
        now = contents(self.place.first)
        if self.said is None and self.harmed is not None:
            assert now != self.harmed
        if mmreplay.repair(self.place.first).before is not None:
            assert now == self.harmed

    # ------------------------------------------------------------ what A is doing

    def evict(self):
        """Steps until rows go."""
        before = [lane.base for lane in self.a.lanes]
        for _ in range(20):
            self.do(self.a.step, self.luck.randint(5, 12))
            yield
        self.do(self.a.writer.flush)
        if not self.gone:
            after = [lane.base for lane in self.a.lanes]
            assert min(new - old for new, old in zip(after, before, strict=True)) > 0

    def snapshot(self):
        """The store goes while a snapshot of it is made."""
        copy = self.place.folder / "copy.zarr"
        source = self.place.first if self.place.moved else self.place.path
        if source is None:
            return
        model = self.a.model.copy()
        model.end_session()
        try:
            mmreplay.snapshot(source, copy, self.progress())
        except mmreplay.MmreplayError:
            if self.place.first is not None:
                raise
        else:
            checks.check_verified(copy)
            with mmreplay.open(copy) as store:
                checks.check_store(store, model, most=12)
            shutil.rmtree(copy)
        yield

    def repair(self):
        """The store goes while it is being repaired."""
        source = self.place.first if self.place.moved else self.place.path
        with contextlib.ExitStack() as stack:
            if self.luck.random() < 0.3:  # as where two names cannot be exchanged at once
                stack.enter_context(
                    mock.patch.object(durable_writes, "exchange", return_value=False)
                )
            try:
                if source is not None:
                    mmreplay.repair(source, progress=self.progress())
            except mmreplay.MmreplayError as error:
                self.said = error
        yield

    def progress(self):
        """A callback in which the store may go."""
        left = itertools.count(self.luck.randrange(6), -1)

        def tell(done, total):
            if self.told and next(left) == 0:
                self.move_within()

        return tell

    def reopen(self):
        """The store goes while A is being opened."""
        if not self.place.moved:
            self.do(self.a.open, self.place.path)
        elif self.place.first is not None:
            self.a.open(self.place.first)
        yield


def cells(what):
    """All that are about one operation; for a quick run one of each of two ways."""
    if EFFORT != "quick":
        return [Cell(what, *rest) for rest in itertools.product(WAYS, CODECS, KINDS)]
    luck = random.Random(what)
    kinds = ["one environment", "many environments"]
    luck.shuffle(kinds)
    kinds.append("many environments")
    cells = [
        Cell(what, way, luck.choice(CODECS), kind) for way, kind in zip(WAYS, kinds, strict=True)
    ]
    return luck.sample(cells, 2)


@pytest.mark.parametrize("what", ["evict", "reopen", "repair", "snapshot"])
def test_a_writer_stays_with_its_directory(tmp_path, what, measured):
    n_orders = n_within = 0
    for cell in cells(what):
        for seed in range(N_ORDERS):
            order = Order(tmp_path / "order", cell, f"{cell} {seed}")
            try:
                order.run()
            except BaseException as error:
                error.add_note(f"{cell}, order {seed}, {order.at=}")
                raise
            shutil.rmtree(tmp_path / "order")
            n_orders += 1
            n_within += order.within
    result = measured(f"moved_stores-{what}")
    result.add("cells", len(cells(what)), "")
    result.add("orders", n_orders, "")
    result.add("moves within a call", n_within, "")
