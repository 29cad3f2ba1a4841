"""``mmreplay record``: what it prints, what it returns, how it ends."""

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

import mmreplay
from mmreplay import Field
from tests.support.disks.faults import faulty_disk

SIGNALLED = """
import signal

n_steps = 0

def policy(observation):
    global n_steps
    n_steps += 1
    if n_steps == 100:
        signal.raise_signal({number})
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
    """What SIGHUP does meanwhile, here and in a process that is started, whoever runs these tests."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def module(folder, monkeypatch):
    """Writes a module of the user's into the current folder: `module(name, code)`."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the folder to it
    names = []

    def write(name, code):
        (folder / f"{name}.py").write_text(code)
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_recording_is_summed_up(command, folder):
    result = command("record", "CartPole-v1", "cart.zarr", "--steps", "300", "--envs", "2")
    assert (result.status, result.err) == (0, "")
    numbers = re.sub(r"\d[\d,.]*", "N", re.sub(r"[\d.]+ [kM]B", "N MB", result.out))
    assert numbers == (
        "Recorded N steps of CartPole-vN into cart.zarr: N episodes finished; those still running were truncated\n"
        "N environments, N MB on disk, N s, N steps/s\n"
    )
    assert result.out.startswith("Recorded 300 steps of ")
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == 300
        assert store.lanes[0].environments == 2


def test_json_is_one_object_and_nothing_else(command, folder):
    result = command("record", "CartPole-v1", "cart.zarr", "--steps", "10", "--json")
    assert (result.status, result.err) == (0, "")
    told = json.loads(result.out)
    assert told["path"] == "cart.zarr"
    assert told["env"] == "CartPole-v1"
    assert told["environments"] == 1
    assert told["steps"] == 10
    assert told["stopped"] is False


def test_options_reach_the_store(command, module):
    module("mine", "def policy(observation):\n    return 1\n")
    arguments = "--steps 60 --policy mine:policy --seed 7 --codec raw --capacity 40".split()
    result = command("record", "CartPole-v1", "cart.zarr", *arguments)
    assert (result.status, result.err) == (0, "")
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == 40
        assert set(store.transitions(store.ids, stack=None).action) == {1}
        info = store.info()
    assert info["capacity"] == 40
    assert info["fields"]["frames"]["codec"] == "raw"
    assert info["env"]["runs"][0]["policy"] == "mine:policy"
    assert info["env"]["runs"][0]["seed"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--steps'"),
        (["--steps", "0"], "'--steps': 0 is not in the range x>=1"),
        (["--steps", "1e6"], "'--steps': '1e6': expected a whole number in digits, as 1000000"),
    ],
)
def test_wrong_usage_is_status_2(arguments, message, command, folder):
    result = command("record", "CartPole-v1", "cart.zarr", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NoSuchThing-v3", "cart.zarr"], "NoSuchThing"),
        (["CartPole-v1", "cart.zarr", "--policy", "nosuch:policy"], "No module named 'nosuch'"),
        (["CartPole-v1", "cart.zarr", "--policy", "json:nosuch"], "has no attribute 'nosuch'"),
        (["CartPole-v1", "nosuch/cart.zarr"], "nosuch"),
        (["CartPole-v1", "cart.zarr", "--codec", "gzip"], "one with a level, as 'zstd:9'"),
        (["CartPole-v1", "cart.zarr", "--envs", "100000"], "envs: expected a whole number, 1 to"),
        (["CartPole-v1", "cart.zarr", "--capacity", str(10**30)], "capacity: expected a whole"),
    ],
)
def test_an_error_is_a_message_without_a_traceback(arguments, message, command, folder):
    result = command("record", *arguments, "--steps", "5")
    assert (result.status, result.out) == (1, "")
    assert message in result.err
    assert "Traceback" not in result.err
    assert list(folder.iterdir()) == []


def test_an_error_names_the_policy_or_the_environment_that_raised_it(command, module):
    module(
        "mine",
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        return {}['gone']\n"
        "gymnasium.register('Broken-v0', Broken)\n"
        "def policy(observation):\n"
        "    return [][3]\n",
    )
    for arguments, who, line in (
        (["CartPole-v1", "a.zarr", "--policy", "mine:policy"], "policy raised IndexError", 8),
        (["mine:Broken-v0", "b.zarr"], "environment raised KeyError", 5),
    ):
        result = command("record", *arguments, "--steps", "9")
        assert result.status == 1
        assert f"the {who}" in result.err
        assert f"mine.py:{line}" in result.err


def test_rows_evicted_by_a_capacity_are_reported(command, folder):
    fields = {"frame": Field((4,), "float32", chunk=64), "action": Field((), "int64", chunk=64)}
    mmreplay.create("cart.zarr", **fields, capacity=10).close()
    result = command("record", "CartPole-v1", "cart.zarr", "--steps", "500", "--append")
    assert (result.status, result.err) == (0, "")
    found = re.fullmatch(
        r"evicted the oldest ([\d,]+) of the store's ([\d,]+) rows", result.out.splitlines()[-1]
    )
    assert found is not None
    with mmreplay.open("cart.zarr") as store:
        lane = store.lanes[0]
        assert [f"{lane.first:,}", f"{lane.rows:,}"] == list(found.groups())
        assert lane.base > 0


def test_a_recording_of_lost_lives_goes_on_with_append_alone(command, module):
    module(
        "lives",
        "import gymnasium\n"
        "from tests.support.counter_env import Counter\n"
        "gymnasium.register('Counter-v0', Counter)\n",
    )
    arguments = ["lives:Counter-v0", "lives.zarr", "--steps", "14"]
    assert command("record", *arguments, "--life-loss").status == 0
    result = command("record", *arguments, "--append")
    assert (result.status, result.err) == (0, "")
    with mmreplay.open("lives.zarr") as store:
        assert store.info()["env"]["life_loss"] is True
        assert int((store.non_terminals[:] == 0).sum()) > 4


def test_an_existing_store_is_appended_to_only_with_append(command, folder):
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
def test_a_signal_stops_the_recording_and_keeps_every_step(number, command, module):
    module("signalled", SIGNALLED.format(number=int(number)))
    arguments = "CartPole-v1 cart.zarr --steps 1000000 --policy signalled:policy".split()
    with hangup(signal.SIG_DFL):
        result = command("record", *arguments)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(
        "Stopped at 100 of 1,000,000 steps, all kept; continue with --append\n"
    )
    with mmreplay.open("cart.zarr") as store:
        assert len(store) == 100
        assert store.info()["state"] == "closed"
    assert mmreplay.verify("cart.zarr").findings == []


def test_a_terminal_shows_progress_and_closing_it_keeps_every_step(tmp_path):
    """A session of its own, with all its output there, as in a window that somebody closes."""
    terminal, its_end = pty.openpty()
    arguments = "record CartPole-v1 cart.zarr --steps 1000000000".split()
    with hangup(signal.SIG_DFL):
        process = subprocess.Popen(
            [sys.executable, "-c", ITS_TERMINAL, *arguments],
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            start_new_session=True,
        )
    os.close(its_end)
    # After the first one, which comes with the first step.
    progress = r"\d{2,}/1000000000 [\d,]+ steps/s, [\d,]+ episodes, [\d.]+ [kM]B"
    shown = ""
    try:
        while not re.search(progress, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)):
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
    finally:
        os.close(terminal)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    with mmreplay.open(tmp_path / "cart.zarr") as store:
        assert store.info()["state"] == "closed"
        assert len(store) >= 10
    assert mmreplay.verify(tmp_path / "cart.zarr").findings == []


def test_a_full_disk_keeps_the_recorded_steps_and_names_append(command, tmp_path):
    path = tmp_path / "s.zarr"
    fields = {"frame": Field((4,), "float32", chunk=64), "action": Field((), "int64", chunk=64)}
    mmreplay.create(path, **fields).close()
    with faulty_disk() as disk:
        disk.fail({"posix_fallocate"}, errno.ENOSPC, at=30, forever=True)
        result = command("record", "CartPole-v1", path, "--steps", "2000", "--append")
    assert result.status == 1
    assert "no room on the disk" in result.err
    assert "are kept in" in result.err
    assert "continue with --append" in " ".join(result.err.split())
    with mmreplay.open(path) as store:
        assert len(store) > 0
