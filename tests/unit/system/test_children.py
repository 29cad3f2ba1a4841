"""Children that compute: their answers, their errors, and their end."""

import os
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

from mmreplay.system.forks import Child
from mmreplay.system.locks import DirectoryLock, is_locked


@pytest.fixture
def started():
    """Makes children that are ended with the test."""
    made = []

    def start(answer):
        made.append(Child(answer))
        return made[-1]

    yield start
    for child in made:
        child.end()


def test_children_answer_in_processes_of_their_own(started):
    first, second = (started(lambda rows: (os.getpid(), rows + 1)) for _ in range(2))
    found = []
    for number in range(3):
        for child in (first, second):
            child.send(np.full(3, number))
        found += [child.receive() for child in (first, second)]
    assert [rows.tolist() for _, rows in found] == [[n] * 3 for n in (1, 1, 2, 2, 3, 3)]
    assert len({os.getpid(), *(pid for pid, _ in found)}) == 3


def test_a_program_counts_only_the_children_that_it_forks(child):
    code = """
import os
from mmreplay.system import forks
for _ in range(2):
    made = forks.Child(abs)
    if not os.fork():
        print(forks.lineage(), flush=True)
        os._exit(0)
    os.wait()
    made.end()
print(forks.lineage())
"""
    assert child(code).split() == ["(1,)", "(2,)", "()"]


def test_no_other_thread_is_warned_of(started):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started(abs)


@pytest.mark.parametrize("how", ["an error", "from outside"])
def test_one_that_was_ended_answers_no_more(started, how):
    def answer(pid):
        if how == "an error":
            raise ValueError("none of the parent's business")
        os.kill(os.getpid(), signal.SIGKILL)

    child = started(answer)
    child.send(0)
    with pytest.raises((EOFError, ConnectionResetError)):
        child.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        child.send(0)
    child.end()  # of one that has ended, and a second time below


def test_the_end_waits_for_no_answer(started):
    child = started(lambda _: signal.pause())
    child.send(0)
    child.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_child_has_no_lock_of_its_parents(started, tmp_path):
    lock = DirectoryLock(tmp_path, who=lambda: "")
    child = started(str)
    lock.release()
    assert not is_locked(tmp_path)
    child.send(1)
    assert child.receive() == "1"


PARENT = """
import os, signal
from mmreplay.system.forks import Child
children = [Child(lambda _: os.getpid()) for _ in range(3)]
for child in children:
    child.send(0)
    print(child.receive(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_children_end_with_a_parent_that_is_killed():
    """Their standard output is that of the parent: it is closed when the last of them has gone."""
    command = [sys.executable, "-c", PARENT]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL
    pids = [int(line) for line in done.stdout.splitlines()]
    assert len(set(pids)) == 3
    assert done.stderr == ""
