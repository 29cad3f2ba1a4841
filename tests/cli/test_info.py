"""``mmreplay info``: what a person sees, and what a program gets."""

import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.system import checked_reads

ACTION = Field((), "int64", chunk=8)
VERSIONS = f"mmreplay {mmreplay.__version__}, numpy {np.__version__} (format 1)"

CLOSED = f"""\
store.zarr: closed, 1 lane

environment   Test-v0, policy random, seed 3
transitions   30 in 30 rows
capacity      unlimited
episodes      5: 2 terminated, 3 truncated
on disk       9.90 kB
              11.3 times larger than its rows uncompressed (875 B)
              17.4 times larger than two observations per transition (570 B)
made with     {VERSIONS}

column          shape    dtype     codec   rows per file   on disk
frames          3        uint8     raw                 8     600 B
actions         scalar   int64     raw                 8     600 B
rewards         scalar   float32   raw                 8     600 B
non_terminals   scalar   uint8     raw                 8     600 B
resets          scalar   uint8     raw                 8     600 B
ends            scalar   uint8     raw                 8     600 B
step            scalar   int64     raw                 8     600 B
finals/frames   3        uint8     raw            16,384     300 B
finals/id       scalar   int64     raw            16,384     300 B
finals/first    scalar   int64     raw            16,384     300 B

return per episode: min 4, mean 6.6, max 11
steps per episode: min 2, mean 6, max 11
"""


@pytest.fixture
def blocks_of_100(monkeypatch):
    """Every file and folder takes 100 bytes, on any file system."""

    def allocated(root):
        return {str(one): 100 * (1 + len(files)) for one, _, files in checked_reads.walk(root)}

    monkeypatch.setattr(checked_reads, "allocated_bytes", allocated)


def test_a_closed_store(command, store, blocks_of_100):
    result = command("info", store)
    assert (result.status, result.err) == (0, "")
    assert result.out == CLOSED


def test_json_is_what_store_info_gives_with_the_path_as_typed(command, store):
    with mmreplay.open(store) as opened:
        expected = opened.info()
    assert json.loads(command("info", store, "--json").out) == {**expected, "path": store}


def test_a_long_path_stays_one_line_and_a_table_wraps(command, write, play):
    path = "a-store-with-a-rather-long-name-" * 3 + ".zarr"
    with write(path, metadata={"id": "Env-v0", "policy": "x" * 39, "seed": 10**30}) as writer:
        play(writer, 3)
    first, *lines = command("info", path).out.splitlines()
    assert first == f"{path}: closed, 1 lane"
    assert max(map(len, lines)) <= 80


def test_an_empty_store(command, write, blocks_of_100):
    write().close()
    result = command("info", "store.zarr")
    assert result.out.startswith(
        f"""\
store.zarr: closed, 1 lane

transitions   0 in 0 rows
capacity      unlimited
episodes      0
on disk       5.60 kB
made with     {VERSIONS}

column """
    )
    assert "per episode" not in result.out


def test_evicted_rows(command, write, play):
    with write(capacity=10) as writer:
        for _ in range(20):
            play(writer, 9, "terminated")
    out = command("info", "store.zarr").out
    line = (
        r"^transitions   10 in (\d+) rows; (\d+) older rows evicted, (\d+) of them kept for stacks$"
    )
    here, older, context = map(int, re.search(line, out, re.MULTILINE).groups())
    with mmreplay.open("store.zarr") as store:
        lane = store.lanes[0]
        assert (here, older) == (180 - lane.first, lane.first)
        assert context == lane.first - lane.base == 64
    assert "episodes      1 whole: 1 terminated\n" in out
    assert "capacity      10 transitions\n" in out


def test_several_recordings_are_counted_and_the_last_is_named(command, write, play):
    runs = [{"seed": seed, "policy": policy} for seed, policy in ((3, "mine:best"), (4, "random"))]
    for n_runs, line in (
        (1, "Test-v0, policy mine:best, seed 3"),
        (2, "Test-v0, 2 recordings, the last: policy random, seed 4"),
    ):
        with write(f"{n_runs}.zarr", metadata={"id": "Test-v0", "runs": runs[:n_runs]}) as writer:
            play(writer, 3)
        assert f"\nenvironment   {line}\n" in command("info", f"{n_runs}.zarr").out


def test_a_store_of_lanes_with_no_lane_yet(command, write, folder):
    with write("run.zarr", lane="actor-0") as writer:
        pass
    shutil.rmtree(writer.path)
    for name in ("info", "episodes"):
        result = command(name, "run.zarr")
        assert (result.status, result.out) == (1, "")
        assert "run.zarr: no process has written to this store yet" in result.err


def test_a_live_store_names_its_writer_and_the_age_of_its_rows(command, write, play):
    writer = write()
    play(writer, 4, "terminated")
    writer.flush()
    play(writer, 2)
    out = command("info", "store.zarr").out
    assert out.startswith("store.zarr: live, 1 lane\n")
    assert "episodes      2: 1 terminated, 1 running\n" in out
    assert re.search(r"^on disk       .*, including preallocated space$", out, re.MULTILINE)
    assert re.search(rf"^writer        pid {os.getpid()} on \S+, since 20", out, re.MULTILINE)
    assert re.search(r"^newest row    \d[\d.]* s ago$", out, re.MULTILINE)
    assert re.search(r"^flushed       \d[\d.]* s ago; 2 rows since$", out, re.MULTILINE)


def test_a_crashed_store_says_that_its_writer_died(command, write, play, die):
    writer = write()
    play(writer, 4, "terminated")
    play(writer, 2)
    die(writer)
    out = command("info", "store.zarr").out
    assert out.startswith("store.zarr: crashed, 1 lane\n")
    assert "episodes      2: 1 terminated, 1 truncated\n" in out
    assert "last writer   pid " in out
    assert "its writer ended without close(); the next one recovers all rows\n" in out


def test_a_store_of_many_lanes_lists_them(command, write, play):
    for name in ("actor-0", "actor-1"):
        with write("run.zarr", lane=name) as writer:
            play(writer, 3, "terminated")
    out = command("info", "run.zarr").out
    assert out.startswith("run.zarr: closed, 2 lanes\n")
    assert (
        """
lane   name      state    rows   first   transitions   environments
   0   actor-0   closed      3       0             3              1
   1   actor-1   closed      3       0             3              1

"""
        in out
    )


def test_a_dict_observation(command, folder):
    fields = {"pixels": Field((4, 4), "uint8", "zstd"), "speed": Field((2,), "float32")}
    with mmreplay.create("store.zarr", frame=fields, action=Field((2,), "float32")) as writer:
        writer.reset({"pixels": np.zeros((4, 4), np.uint8), "speed": np.zeros(2, np.float32)})
    out = command("info", "store.zarr").out
    assert re.search(r"^frames/pixels +4x4 +uint8 +zstd ", out, re.MULTILINE)
    assert re.search(r"^frames/speed +2 +float32 +raw ", out, re.MULTILINE)
    assert re.search(r"^actions +2 +float32 +raw ", out, re.MULTILINE)


def test_info_does_not_read_frames(command, write, play, folder):
    """Of a large store only rewards and flags are: info stays quick."""
    with write(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8)) as writer:
        play(writer, 30, "terminated")
    before = command("info", "store.zarr").out
    for path in (folder / "store.zarr" / "frames").glob("c.*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert command("info", "store.zarr").out == before


def test_returns_and_lengths_are_of_episodes_that_ended(command, write, play):
    writer = write()
    play(writer, 4, "terminated")
    play(writer, 2)
    out = command("info", "store.zarr").out
    assert "episodes      2: 1 terminated, 1 running\n" in out
    assert out.endswith("\nsteps per episode: min 4, mean 4, max 4\n")
    writer.close()


def test_unknown_versions(command, store):
    where = pathlib.Path(store, "zarr.json")
    document = json.loads(where.read_bytes())
    document["attributes"]["mmreplay"]["versions"] = [1]
    where.write_text(json.dumps(document))
    result = command("info", store)
    assert result.status == 0
    assert "made with     unknown (format 1)\n" in result.out


def step_together(path, **options):
    """A store of two environments, and three steps: the second one is left out of the last."""
    frames, none = np.zeros((2, 3), np.uint8), np.zeros(2, np.bool_)
    with mmreplay.create(path, Field((3,), "uint8", "raw"), ACTION, lanes=2, **options) as writer:
        writer.reset(frames)
        writer.step([1, 1], [2.0, 2.0], frames, np.array([False, True]), none)
        writer.step([1, 1], [2.0, 2.0], frames, none, none, mask=np.array([True, False]))


def test_environments_that_step_together(command, folder):
    step_together("run.zarr")
    out = command("info", "run.zarr").out
    assert out.startswith(
        """\
run.zarr: closed, 1 lane, 2 environments

transitions   3 in 2 rows
capacity      unlimited
episodes      2: 1 terminated, 1 truncated
"""
    )
    assert re.search(r"^rewards +2 +float32 +raw ", out, re.MULTILINE)
    assert re.search(r"^finals/id +scalar +int64 +raw ", out, re.MULTILINE)


def test_rewards_that_are_not_finite_are_told(command, write, play):
    with write() as writer:
        play(writer, 3, "terminated")
        play(writer, 2, "terminated", reward=float("nan"))
    lines = command("info", "store.zarr").out.splitlines()
    assert "rewards       2 of 5 are NaN or infinite" in lines
    assert "return per episode: min none, mean none, max none" in lines
