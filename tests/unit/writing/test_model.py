"""Calls that find no room or are interrupted in any line: zarr reads afterwards what a model says."""

import errno
import itertools
import random

import numpy as np
import pytest

from mmreplay.errors import DiskFullError
from tests.support.disks.faults import ALLOCATING, faulty_disk
from tests.support.effort import by_effort
from tests.support.interrupts import interrupted
from tests.support.modelled_lane import Play

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize(("kind", "lanes"), [("lz4", None), ("dict", 3)])
def test_a_call_that_finds_no_room_changes_nothing_and_works_later(tmp_path, kind, lanes):
    luck, n_refused = random.Random(f"{kind} {lanes}"), 0
    one = Play(tmp_path / "s.zarr", kind, lanes)
    with faulty_disk() as disk:

        def call(do):
            nonlocal n_refused
            files, rows, finals = one.writer.files, one.writer.files.rows, one.writer.files.finals
            heads = rows.head, finals.head, files.closed
            try:
                do()
            except DiskFullError:
                n_refused += 1
                assert (rows.head, finals.head, files.closed) == heads or "close" in repr(do)
                disk.heal()
                do()

        one.call = call
        for at in range(1, by_effort(9, 80, 400)):
            disk.fail(ALLOCATING, errno.ENOSPC, at=at % 13 + 1, forever=at % 2 == 0)
            for _ in range(12):
                one.play(luck)
            if at % 5 == 0:
                one.flush()
            if at % 11 == 0:
                one.end("close")
                one.open()
            disk.heal()
    one.end("close")
    assert n_refused > 2


@pytest.mark.parametrize(("kind", "lanes"), [("lz4", None), ("lz4", 3)])
@pytest.mark.parametrize("call", ["step", "last step", "reset", "reset after a flush"])
def test_a_call_may_be_interrupted_in_any_line(tmp_path, kind, lanes, call):
    one, at, luck = Play(tmp_path / "s.zarr", kind, lanes), 0, random.Random(call)
    everyone = list(range(lanes or 1))
    hit = True
    while hit:
        at += by_effort(13, 2, 1)
        ending = luck.choice(("go on", "go on", "flush", "kill", "close"))
        one.reset(everyone)
        for _ in range(at % 4 + 1):
            one.step()
        if call == "reset after a flush":
            one.flush()

        def attempt(do, at=at, ending=ending):
            nonlocal hit
            head = one.writer.files.rows.head
            lines = itertools.count(1)
            hit = interrupted(do, lambda _: next(lines) == at, "writing/")
            if hit and ending == "go on" and one.writer.files.rows.head == head:
                do()
            if hit and ending == "flush":
                one.writer.flush()
                if "step" in call and one.writer.rows > head:
                    assert np.atleast_1d(one.writer.running).tolist() == one.model.is_running()
                if "reset" in call or one.writer.rows == head:
                    do()

        one.call = attempt
        if call == "step":
            one.step()
        elif call == "last step":
            one.step(terminated=everyone[:2], truncated=everyone[1:])
        else:
            one.reset(everyone)
        one.call = lambda do: do()
        if hit and ending in ("kill", "close"):
            if one.writer.files.rows.head < len(one.model.rows):  # the step never happened
                one.model.undo()
            one.end(ending, check=False)
            one.open()
    assert at > 20
    one.end("close")
