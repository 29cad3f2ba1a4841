"""``mmreplay record``: what it prints, what it returns, how it ends."""

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import mmreplay
from tests.support.disks.faults import faulty_disk

SLOW = """
import time

def policy(observation):
    time.sleep(0.001)
    return 0
"""


SIGNALLED = """
import os, time

n_steps = 0

def policy(observation):
    global n_steps
    n_steps += 1
    while n_steps > 100 and not os.path.exists("signalled"):
        time.sleep(0.001)
    return 0
"""


ITS_TERMINAL = """
import fcntl, sys, termios
from mmreplay_cli import main

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
main(sys.argv[1:])
"""


@contextmanager
def hangup(handler):
    """What a process that is started meanwhile does with SIGHUP, however these tests are run."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts ``mmreplay record`` in an empty folder, and ends what is left of it."""
    monkeypatch.chdir(tmp_path)
    started = []

    def run(*arguments, stderr=subprocess.PIPE):
        command = [sys.executable, "-m", "mmreplay_cli", "record", *arguments]
        environment = {**os.environ, "COLUMNS": "100"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def record(start):
    """Runs ``mmreplay record``: exit status, standard output, standard error."""

    def run(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def wait_for_rows(path, rows, process):
    """Until a recording that runs has committed as many rows."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        if path.exists():
            with mmreplay.open(path) as store:
                if sum(lane.rows for lane in store.lanes) >= rows:
                    return
        time.sleep(0.05)
    raise AssertionError("it does not record")


def test_it_says_what_it_recorded(record):
    status, out, err = record("CartPole-v1", "cart.zarr", "--steps", "300", "--envs", "2")
    assert err == ""
    assert status == 0
    numbers = re.sub(r"\d[\d,.]*", "N", re.sub(r"[\d.]+ [kM]B", "N MB", out))
    assert numbers == (
        "Recorded N steps and N episodes of CartPole-vN into cart.zarr\n"
        "N lanes, N MB on disk, N s, N steps/s\n"
    )
    assert out.startswith("Recorded 300 steps and ")
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == 300
        assert len(store.lanes) == 2


def test_json_is_one_object_and_nothing_else(command, folder):
    result = command("record", "CartPole-v1", "cart.zarr", "--steps", "10", "--json")
    assert (result.status, result.err) == (0, "")
    told = json.loads(result.out)
    assert told["path"] == "cart.zarr"
    assert told["env"] == "CartPole-v1"
    assert told["lanes"] == 1
    assert told["steps"] == 10
    assert told["stopped"] is False


def test_options_reach_the_store(record, tmp_path):
    (tmp_path / "mine.py").write_text("def policy(observation):\n    return 1\n")
    arguments = "--steps 60 --policy mine:policy --seed 7 --codec raw --capacity 40".split()
    status, _, err = record("CartPole-v1", "cart.zarr", *arguments)
    assert (status, err) == (0, "")
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == 40
        assert set(store.transitions(store.ids, stack=None).action) == {1}
        info = store.info()
    assert info["capacity"] == 40
    assert info["fields"]["frames"]["codec"] == "raw"
    assert info["env"]["runs"][0]["policy"] == "mine:policy"
    assert info["env"]["runs"][0]["seed"] == 7


@pytest.mark.parametrize(
    "arguments",
    [
        ["CartPole-v1", "cart.zarr"],
        ["CartPole-v1"],
        ["CartPole-v1", "cart.zarr", "--steps", "0"],
        ["CartPole-v1", "cart.zarr", "--steps", "9", "--codec", "gzip"],
        ["CartPole-v1", "cart.zarr", "--steps", "9", "--policy", "clever"],
    ],
)
def test_wrong_usage_is_status_2(arguments, command, folder):
    result = command("record", *arguments)
    assert (result.status, result.out) == (2, "")
    assert "Usage: mmreplay record" in result.err or "Error: " in result.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NoSuchThing-v3", "cart.zarr"], "NoSuchThing"),
        (["CartPole-v1", "cart.zarr", "--policy", "nosuch:policy"], "no module 'nosuch'"),
        (["CartPole-v1", "cart.zarr", "--policy", "json:nosuch"], "json has no 'nosuch'"),
        (["CartPole-v1", "nosuch/cart.zarr"], "nosuch"),
        (["CartPole-v1", "cart.zarr", "--envs", "100000"], "envs: expected 1 to 4,096, found 100,"),
        (["CartPole-v1", "cart.zarr", "--capacity", str(10**30)], "capacity: expected a whole"),
    ],
)
def test_what_does_not_work_is_said_without_a_traceback(arguments, message, command, folder):
    result = command("record", *arguments, "--steps", "5")
    assert (result.status, result.out) == (1, "")
    assert message in result.err
    assert "Traceback" not in result.err
    assert list(folder.iterdir()) == []


def test_a_policy_that_breaks_is_told_from_an_environment_that_does(record, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        return {}['gone']\n"
        "gymnasium.register('Broken-v0', Broken)\n"
        "def policy(observation):\n"
        "    return [][3]\n"
    )
    status, _, err = record("CartPole-v1", "a.zarr", "--steps", "9", "--policy", "mine:policy")
    assert status == 1
    assert "the policy raised IndexError" in err
    assert "mine.py:8" in err
    status, _, err = record("mine:Broken-v0", "b.zarr", "--steps", "9")
    assert status == 1
    assert "the environment raised KeyError" in err
    assert "mine.py:5" in err


def test_it_says_what_a_capacity_evicted(command, folder):
    arguments = "--steps 20000 --capacity 10 --codec raw".split()
    result = command("record", "CartPole-v1", "cart.zarr", *arguments)
    assert (result.status, result.err) == (0, "")
    found = re.fullmatch(
        r"the oldest ([\d,]+) of the store's ([\d,]+) rows evicted", result.out.splitlines()[-1]
    )
    assert found is not None
    with mmreplay.open("cart.zarr") as store:
        lane = store.lanes[0]
        assert [f"{lane.base:,}", f"{lane.rows:,}"] == list(found.groups())
        assert lane.base > 0


def test_a_store_that_is_there_is_only_appended_to_when_asked(command, folder):
    arguments = ["cart.zarr", "--steps", "10"]
    assert command("record", "CartPole-v1", *arguments).status == 0
    result = command("record", "CartPole-v1", *arguments)
    assert result.status == 1
    assert "cart.zarr" in result.err
    result = command("record", "Pendulum-v1", *arguments, "--append")
    assert result.status == 1
    assert "CartPole-v1" in result.err
    assert command("record", "CartPole-v1", *arguments, "--append").status == 0
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly_and_keeps_everything(number, start, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    with hangup(signal.SIG_DFL):
        process = start("CartPole-v1", "cart.zarr", "--steps", "1000000", "--policy", "slow:policy")
    wait_for_rows(tmp_path / "cart.zarr", 50, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    stopped = re.match(r"Stopped at ([\d,]+) of 1,000,000 steps, all kept", out)
    assert stopped, out
    steps = int(stopped[1].replace(",", ""))
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == steps >= 40
        assert store.info()["state"] == "closed"
    assert mmreplay.verify("cart.zarr").findings == []


def test_under_nohup_it_goes_on_when_the_terminal_is_closed(start, tmp_path):
    (tmp_path / "waits.py").write_text(SIGNALLED)
    with hangup(signal.SIG_IGN):
        process = start("CartPole-v1", "cart.zarr", "--steps", "200", "--policy", "waits:policy")
    wait_for_rows(tmp_path / "cart.zarr", 50, process)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "signalled").touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("Recorded 200 steps")


def test_a_terminal_that_is_closed_keeps_everything(tmp_path):
    """A session of its own, with all its output there, as in a window that somebody closes."""
    (tmp_path / "slow.py").write_text(SLOW)
    terminal, its_end = pty.openpty()
    arguments = "record CartPole-v1 cart.zarr --steps 1000000 --policy slow:policy".split()
    with hangup(signal.SIG_DFL):
        process = subprocess.Popen(
            [sys.executable, "-c", ITS_TERMINAL, *arguments],
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            cwd=tmp_path,
            start_new_session=True,
        )
    os.close(its_end)
    try:
        wait_for_rows(tmp_path / "cart.zarr", 50, process)
    finally:
        os.close(terminal)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    with mmreplay.open(tmp_path / "cart.zarr") as store:
        assert store.info()["state"] == "closed"
        assert len(store) >= 40
    assert mmreplay.verify(tmp_path / "cart.zarr").findings == []


@pytest.mark.parametrize("envs", [pytest.param("1", marks=pytest.mark.deep(only=True)), "3"])
def test_after_a_kill_it_goes_on_where_it_stopped(envs, start, record, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    arguments = ["CartPole-v1", "cart.zarr", "--envs", envs, "--policy", "slow:policy", "--append"]
    process = start(*arguments, "--steps", "1000000")
    wait_for_rows(tmp_path / "cart.zarr", 50, process)
    process.kill()
    process.wait()
    with mmreplay.open("cart.zarr") as store:
        assert store.info()["state"] == "crashed"
        before = len(store)
        frames = [lane.frames[:] for lane in store.lanes]
    status, _, err = record(*arguments, "--steps", "60")
    assert (status, err) == (0, "")
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == before + 60
        for lane, kept in zip(store.lanes, frames, strict=True):
            assert (lane.frames[: len(kept)] == kept).all()
        first, second = store.info()["env"]["runs"]
        assert second["rows_before"] == sum(map(len, frames))
        assert first["seed"] != second["seed"]
    assert mmreplay.verify("cart.zarr").findings == []


def test_on_a_terminal_it_shows_how_far_it_is(start, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    terminal, its_end = pty.openpty()
    try:
        process = start(
            "CartPole-v1", "cart.zarr", "--steps", "100", "--policy", "slow:policy", stderr=its_end
        )
        out, _ = process.communicate(timeout=60)
        os.set_blocking(terminal, False)
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(terminal, 1 << 20).decode())
    finally:
        os.close(its_end)
        os.close(terminal)
    assert process.returncode == 0
    assert re.search(r"\d+/100 [\d,]+ steps/s, \d+ episodes, [\d.]+ [kM]B", shown)
    assert out.startswith("Recorded 100 steps and ")


def test_a_full_disk_keeps_what_was_recorded_and_says_how_to_go_on(command, tmp_path):
    path = tmp_path / "s.zarr"
    with faulty_disk() as disk:
        disk.fail({"posix_fallocate"}, errno.ENOSPC, at=14, forever=True)
        result = command("record", "CartPole-v1", path, "--steps", "80000", "--envs", "1")
    assert result.status == 1
    assert "no room on the disk" in result.err
    assert "is kept in" in result.err
    assert "--append goes on" in " ".join(result.err.split())
    with mmreplay.open(path) as store:
        assert len(store) > 0
