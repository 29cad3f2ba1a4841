"""The command as it is installed, and small stores whose numbers are known."""

from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import mmreplay
from mmreplay import Field
from tests.support.disks import faults
from tests.support.writers import make_lanes


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch):
    """Runs ``mmreplay``, found as the installed script finds it, with its output in a pipe."""
    (script,) = entry_points(group="console_scripts", name="mmreplay")
    main = script.load()
    assert isinstance(main, click.Command)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments, charset="utf-8"):
        result = CliRunner(charset).invoke(
            main, [str(one) for one in arguments], prog_name="mmreplay"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception  # a traceback that a user would have seen
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch, quick_disk):
    """The current folder, empty, so that messages name no other."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def play():
    """Writes one episode: `play(writer, n_steps, end, reward)`."""

    def episode(writer, n_steps, end="", reward=1.0):
        writer.reset(_frame(writer.rows))
        for left in range(n_steps - 1, -1, -1):
            ends = end if not left else ""
            flags = ends == "terminated", ends == "truncated"
            writer.step(1, reward, _frame(writer.rows), *flags)

    return episode


def _frame(row):
    return np.full(3, row % 256, np.uint8)


@pytest.fixture
def die():
    """Leaves a writer's lane as the death of its process would: `die(writer)`."""
    return faults.kill


@pytest.fixture
def write(folder, die):
    """Opens a store of short raw chunks for writing; what is left open dies with the test."""
    writers = []

    def create(path="store.zarr", **changes):
        given = {
            "frame": Field((3,), "uint8", "raw", chunk=8),
            "action": Field((), "int64", chunk=8),
            "flush_s": 0,
        }
        new = make_lanes if "n_lanes" in changes else mmreplay.create
        writers.append(new(Path(path), **(given | changes)))
        return writers[-1]

    yield create
    for writer in writers:
        die(writer)


@pytest.fixture
def store(write, play):
    """store.zarr, closed: 30 steps in 5 episodes, the last of them cut off by the close."""
    with write(metadata={"id": "Test-v0", "policy": "random", "seed": 3}) as writer:
        for n_steps, how in ((4, "terminated"), (9, "truncated"), (4, "terminated"), (11, "")):
            play(writer, n_steps, how)
        play(writer, 2, reward=2.5)
    return "store.zarr"


@pytest.fixture
def vector_store(write):
    """store.zarr, closed: 30 steps of 2 environments together, in 3 episodes each."""
    none, frames = np.zeros(2, bool), np.arange(6, dtype=np.uint8).reshape(2, 3)
    with write(lanes=2) as writer:
        for step in range(30):
            if step % 10 == 0:
                writer.reset(frames)
            writer.step([1, 2], [1.0, 0.5], frames + step, none, none)
    return "store.zarr"
