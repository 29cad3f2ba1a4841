"""Copies by hard links (`cp -al`): two stores whose files are the same, until one is written.

Invariant: neither side loses or gains a row by what the other does. The original has exactly its
rows; the copy has at least those that were durable when it was made, none but rows of the original,
and then its own.
"""

import itertools
import os
import random
import shutil
import sys
import threading

import pytest

import mmreplay
from tests.support.disks import faults
from tests.support.disks.faults import CALLS, faulty_disk
from tests.support.disks.trees import contents
from tests.support.effort import EFFORT, THOROUGH, by_effort
from tests.support.oracle.layout import Layout
from tests.support.processes.parties import CODECS, Party, frame_of
from tests.support.writers import go_on

pytestmark = [
    pytest.mark.timeout(0 if THOROUGH else 900),
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody has tried it"),
]
Field = mmreplay.Field

KINDS = {"one environment": None, "many environments": 3}
STATES = ("live", "within a call", "crashed", "closed")
FIRST = ("original first", "copy first")
N_POINTS = by_effort(1, 2, 60)  # of each kind of store, at which a copy is made
MOST_CALLS = 300
A, B = 10, 200


def link_tree(source, target):
    """`cp -al`."""
    target.mkdir()
    for folder, folders, files in os.walk(source):
        here = target / os.path.relpath(folder, source)
        for name in folders:
            (here / name).mkdir()
        for name in files:
            os.link(os.path.join(folder, name), here / name)


class History:
    """A store, a copy of it that is made at some point, and what both do then."""

    def __init__(self, folder, layout, seed, state, first):
        folder.mkdir()
        self.path, self.copy = folder / "store.zarr", folder / "copy.zarr"
        self.luck, self.layout = random.Random(seed), layout
        self.state, self.first = state, first
        self.a = Party(layout, A, self.luck)
        self.durable = self.a.model.heads()
        self.known = None
        self.turn = threading.Lock()

    def run(self):
        self.a.make(self.path)
        for _ in range(self.luck.randint(0, 8)):
            self.act()
        if self.state == "within a call":
            self.copy_within_a_call()
        else:
            end = {"crashed": self.a.kill, "closed": self.a.close}
            end.get(self.state, lambda: None)()
            if self.state == "closed":
                self.durable = self.a.model.heads()
            self.make_copy()
        if self.first == "copy first":
            if self.state != "closed":
                self.go_on_with_copy(self.a.model)
                self.go_on()
            else:
                before = contents(self.path)
                self.go_on_with_copy(self.a.model)
                assert contents(self.path) == before
                self.go_on()
        else:
            self.go_on()
            before = contents(self.path)
            self.go_on_with_copy(self.a.model)
            assert contents(self.path) == before
        self.a.check(self.path)
        self.b.check(self.copy)

    def act(self):
        """A step or more, or a flush, after which rows are durable."""
        if self.luck.random() < 0.35:
            self.a.writer.flush()
            self.durable = [lane.rows for lane in self.a.lanes]
        else:
            self.a.step(self.luck.randint(1, 12))

    def make_copy(self):
        with self.turn:  # a thread of the writer may be making it
            if self.known is None:
                self.known = list(self.durable)
                link_tree(self.path, self.copy)

    def copy_within_a_call(self):
        with faulty_disk() as disk:
            disk.before(CALLS, self.make_copy, at=int(MOST_CALLS ** self.luck.random()))
            for _ in range(6):
                self.act()
            disk.heal()
        self.make_copy()

    def go_on(self):
        """The original goes on, and is closed."""
        if self.a.writer is None:
            self.a.open(self.path)
        for _ in range(self.luck.randint(1, 6)):
            self.act()
        self.a.close()

    def go_on_with_copy(self, model):
        """The copy is opened: it has rows of the original, and gets some of its own."""
        self.b = Party(self.layout, B, self.luck)
        self.b.model = model.copy()
        writer = go_on(self.copy)
        found = [lane.rows for lane in faults.writers_of(writer)]
        for known, rows, most in zip(self.known, found, model.heads(), strict=True):
            assert known <= rows <= most, (known, rows, most)
        self.b.model.cut(found)
        writer.close()
        self.b.check(self.copy)
        self.b.open(self.copy)
        for _ in range(self.luck.randint(1, 6)):
            self.b.act()
        self.b.end(lambda: self.copy)


def cells(state, first):
    if EFFORT == "quick":
        some = [
            ("lz4", "one environment", True),
            ("raw", "many environments", True),
            ("lz4", "many environments", False),
        ]
        return [some[(STATES.index(state) + FIRST.index(first)) % 3]]
    return list(itertools.product(CODECS, KINDS, (False, True)))


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("state", STATES)
def test_a_copy_by_hard_links_is_a_store_of_its_own(tmp_path, state, first, measured):
    n_copies = 0
    for codec, kind, evicts in cells(state, first):
        n, action = KINDS[kind], Field((), "int64", chunk=8)
        capacity = 12 * (n or 1) if evicts else None
        layout = Layout(frame_of(codec, n), action, capacity=capacity, environments=n)
        for point in range(N_POINTS):
            cell = f"{codec}, {kind}, {capacity=}, {state}, {first}, point {point}"
            history = History(tmp_path / "history", layout, cell, state, first)
            try:
                history.run()
            except BaseException as error:
                error.add_note(cell)
                raise
            shutil.rmtree(tmp_path / "history")
            n_copies += 1
    result = measured(f"hard_links-{state.replace(' ', '_')}-{first.partition(' ')[0]}")
    result.add("copies", n_copies, "")
