"""What ends a writer, who may call what when, and the lock that keeps others out."""

import copy
import errno
import gc
import os
import pickle
import shutil
import threading

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    LockedError,
    SchemaError,
)
from mmreplay.storage.state_page import BASE, COMMITTED, TAIL_START, State
from mmreplay.system import durable_writes, locks
from mmreplay.writing import flush
from tests.support.disks import faults
from tests.support.disks.trees import contents, files, flip
from tests.support.documents import attributes
from tests.support.modelled_lane import Play
from tests.support.quiet import settle

pytestmark = pytest.mark.usefixtures("quick_disk")

LANES = pytest.mark.parametrize("lanes", [None, 2])
WAIT = 300  # seconds, for what comes at once: only a hang takes as long


@pytest.fixture
def play(tmp_path):
    """`play(kind, lanes)`: a writer and its model; it dies when the test ends."""
    plays = []

    def make(kind="raw", lanes=None, **given):
        plays.append(Play(tmp_path / "s.zarr", kind, lanes, **given))
        return plays[-1]

    yield make
    for one in plays:
        faults.kill(one.writer)


def begin(one, n_steps=3):
    one.reset(list(range(one.model.n)))
    for _ in range(n_steps):
        one.step()


def calls(writer):
    """Each way to go on."""
    n = None if isinstance(writer, mmreplay.Writer) else len(writer)
    shape = () if n is None else (n,)
    frames = np.ones((*shape, 3), np.int32)
    zeros, none = np.zeros(shape, np.int32), np.zeros(shape, bool)
    x = np.zeros((*shape, 2), np.int16)
    values = (0, 0.0, frames, False, False) if n is None else (zeros, zeros, frames, none, none)
    return {
        "reset": lambda: writer.reset(frames),
        "step": lambda: writer.step(*values, x=x),
        "flush": writer.flush,
    }


def broken(*_, **__):
    raise OSError(errno.EIO, "broken")


def full(*_, **__):
    raise OSError(errno.ENOSPC, "full")


@LANES
def test_a_step_needs_a_running_episode(play, lanes):
    one = play("raw", lanes)
    for text in ("no episode is running", "no episode is running"):
        with pytest.raises(SchemaError, match=rf"step\(\) at step \d, but {text}.*reset\(frame"):
            calls(one.writer)["step"]()
        begin(one, 2)
        one.step(terminated=list(range(one.model.n)))
    assert np.all(~np.asarray(one.writer.running))
    begin(one, 0)
    assert np.all(one.writer.running)
    begin(one, 2)  # an episode of no step has left nothing
    one.end("close")
    for name, call in calls(one.writer).items():
        with pytest.raises(ClosedError, match="this writer is closed, or belongs to the parent"):
            call()
        assert name
    one.writer.close()
    assert not np.any(one.writer.running)
    assert "closed" in repr(one.writer) or lanes


def test_an_environment_may_be_left_out_only_while_no_episode_of_it_runs(play):
    one = play("raw", 2)
    begin(one, 1)
    given = np.zeros(2, np.int32), np.zeros(2), np.ones((2, 3), np.int32), [False] * 2, [False] * 2
    x = np.zeros((2, 2), np.int16)
    with pytest.raises(SchemaError, match="environment 1 is left out, but its episode is running"):
        one.writer.step(*given, mask=[True, False], x=x)
    one.step(terminated=[1])
    with pytest.raises(SchemaError, match="no episode is running in environment 1; call reset"):
        one.writer.step(*given, x=x)
    for wrong, text in (
        ([True], r"mask: expected one for each of 2 environments, .*found shape \(1,\)"),
        (["a", "b"], "mask: expected numbers or bools"),
        ([np.nan, 1.0], "mask: expected bools, found NaN"),
    ):
        for call in (
            lambda wrong=wrong: one.writer.step(*given, mask=wrong, x=x),
            lambda wrong=wrong: one.writer.reset(np.ones((2, 3), np.int32), mask=wrong),
            lambda wrong=wrong: one.writer.end_episodes(wrong),
        ):
            with pytest.raises(SchemaError, match=text):
                call()
    with pytest.raises(SchemaError, match=r"environment 0 is left out"):
        one.writer.step(*given, mask=[False, False], x=x)
    one.step()  # environment 0 alone; what is given for the other may be anything
    one.model.end([0])
    one.writer.end_episodes([True, True])
    one.writer.reset(np.ones((2, 3), np.int32), mask=[False, False])
    assert not one.writer.running.any()
    one.end("close")


WRONG = [
    ("actions", [0.5, 1.0], "actions: expected dtype int32"),
    ("actions", [1], r"actions: expected one for each of 2 environments, .*found shape \(1,\)"),
    ("rewards", [1.0], "rewards: expected one for each of 2"),
    ("rewards", ["a", "b"], "rewards: expected numbers or bools"),
    ("frames", np.ones((2, 4), np.int32), "frames"),
    ("frames", np.ones((2, 3), np.float64) / 2, "frames"),
    ("frames", None, "frames"),
    ("terminated", [np.nan, 0.0], "terminated: expected bools, found NaN"),
    ("truncated", [0, 0, 0], "truncated: expected one for each of 2"),
    ("life_lost", [None, 1], "life_lost: expected numbers or bools"),
    ("x", np.ones((2, 3)), "x"),
    ("x", [[0.5, 1], [1, 1]], "x: expected dtype int16"),
    ("y", [1, 1], "y|extras"),
]


def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(play):
    one = play("raw", 2)
    begin(one)
    flags = {name: [True, True] for name in ("terminated", "truncated", "life_lost")}
    frames, x = np.full((2, 3), 77, np.int32), np.full((2, 2), 7, np.int16)
    good = {"actions": [1, 1], "rewards": [1.0, 1.0], "frames": frames, "x": x, **flags}
    for name, wrong, match in WRONG:
        for _ in range(2):
            with pytest.raises(SchemaError, match=match):
                one.writer.step(**good | {name: wrong})
            assert one.writer.rows == 3
            one.flush()
        if name == "frames":
            with pytest.raises(SchemaError, match=match):
                one.writer.reset(wrong)
            assert one.writer.running.all()
    one.step()
    one.end("close")


@pytest.mark.parametrize("flag", [np.array([True]), 1, np.float32(1), np.True_, 1.0])
def test_flags_may_be_of_any_kind_and_terminated_wins(tmp_path, flag):
    with mmreplay.create(tmp_path / "s.zarr", Field((), "uint8"), Field((), "bool")) as writer:
        for given in ((flag, flag), (flag, False), (False, flag)):
            writer.reset(1)
            writer.step(True, 1.0, 2, False, life_lost=flag)
            writer.step(False, 1.0, 2, *given)
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    assert group["non_terminals"][:].tolist() == [0, 0, 0, 0, 0, 1]
    assert group["ends"][:].tolist() == [0, 1] * 3


def test_a_flag_that_is_no_bool_is_refused(play):
    one = play()
    begin(one)
    for flag in ("yes", [False], {1: 2}, np.array([1, 2]), float("nan"), object()):
        for name in ("terminated", "truncated", "life_lost"):
            with pytest.raises(
                SchemaError, match="flags terminated, truncated, life_lost: expected bools"
            ):
                one.writer.step(1, 1.0, np.ones(3, np.int32), **{name: flag}, x=[1, 1])
            assert one.writer.rows == 3
    one.step()
    one.end("close")


def test_bytes_of_bools_and_rewards_out_of_range_are_stored_alike_by_both_writers(tmp_path):
    odd = np.array([2, 0], np.uint8).view(np.bool_)
    frame, action = Field((2,), "bool"), Field((2,), "bool")
    rewards = [1e300, -1e-300]
    for lanes in (None, 2):
        path = tmp_path / f"{lanes}.zarr"
        with mmreplay.create(
            path, frame, action, lanes=lanes, extras={"f": Field((2,), "bool")}
        ) as w:
            if lanes is None:
                w.reset(odd)
                for reward in rewards:
                    w.step(odd, reward, odd, f=odd)
            else:
                both = np.stack([odd, odd])
                w.reset(both)
                w.step(both, rewards, both, odd, odd, f=both)
        group = zarr.open_group(path, mode="r")
        for name in ("frames", "actions", "extras/f", "finals/frames"):
            values = np.fromfile(next((path / name).glob("c.0*")), np.uint8)
            assert set(values.tolist()) <= {0, 1}, name
            assert group[name][:].any(), name
        assert group["rewards"][:].ravel().tolist() == [np.inf, -0.0]


@LANES
@pytest.mark.parametrize("log", ["", "finals"])
def test_a_failed_fsync_ends_writing_and_gives_up_what_was_not_durable(
    play, monkeypatch, lanes, log
):
    one = play("lz4", lanes)
    begin(one)
    one.flush()
    one.step(terminated=[0])
    real = durable_writes.sync_all

    def sync_all(paths=(), directories=()):
        paths = list(paths)
        if paths and ("finals" in str(paths[0])) == bool(log):
            with monkeypatch.context() as patch:
                patch.setattr(durable_writes, "_fdatasync", broken)
                patch.setattr(durable_writes, "_fsync", broken)
                real(paths, directories)
        real(paths, directories)

    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "sync_all", sync_all)
        with pytest.raises(FailedStoreError, match="fsync failed"):
            one.writer.flush()
    for call in calls(one.writer).values():
        with pytest.raises(FailedStoreError, match="fsync failed"):
            call()
    one.writer.close()  # it lets go of the lane, and leaves it as it is
    for where in (one.path, one.path / "finals"):
        state = State(where / ".live" / "state", writable=False)
        assert state.is_of_this_boot() is (where == one.path / "finals" and not log)
    one.model.lose_power()
    one.open()
    assert one.writer.rows == 3
    one.end("close")


@pytest.mark.parametrize("cause", [broken, lambda *_, **__: 1 / 0])
def test_what_goes_wrong_in_the_background_is_said_by_the_next_call(play, monkeypatch, cause):
    one = play()
    begin(one)
    with monkeypatch.context() as patch:
        patch.setattr(flush, "flush_rows", cause)
        one.writer._timed_flush.flush_in_background(timer=True)
    for call in calls(one.writer).values():
        with pytest.raises(FailedStoreError, match=r"a flush in the background failed: \w+Error"):
            call()
    one.writer._timed_flush.flush_in_background(timer=True)
    assert one.writer.rows == 3
    faults.kill(one.writer)
    one.model.die()
    one.open()
    one.end("close")


def test_a_full_disk_at_a_timed_flush_does_not_end_writing(play, monkeypatch):
    one = play()
    begin(one)
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_write_all", full)
        one.writer._timed_flush.flush_in_background(timer=True)
        with pytest.raises(DiskFullError):
            one.writer.flush()
    one.step()
    one.end("close")


def test_a_parts_that_somebody_removes_end_the_writer(play):
    one = play("raw", 2)
    begin(one, 5)
    settle(one.writer)
    one.flush()
    one.step()
    (one.path / "rewards" / "c.1.0").unlink()
    with pytest.raises(FailedStoreError, match="opening it to make it durable failed"):
        one.writer.flush()
    shutil.rmtree(one.path)
    with pytest.raises(FailedStoreError, match="was removed while it was open"):
        calls(one.writer)["step"]()


def test_a_close_that_finds_no_room_can_be_called_again_and_nothing_else(play, monkeypatch):
    one = play("lz4")
    begin(one, 8)
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_write_all", full)
        with pytest.raises(DiskFullError):
            one.writer.close()
        for call in calls(one.writer).values():
            with pytest.raises(ClosedError, match=r"close\(\) found no room on the disk"):
                call()
    one.end("close")


@LANES
def test_a_dropped_writer_releases_its_lane_at_once(tmp_path, lanes):
    gc.disable()
    try:
        path = tmp_path / "s.zarr"
        writer = mmreplay.create(path, Field((2,)), Field(), lanes=lanes, flush_s=3600)
        writer.reset(np.zeros((2,) if lanes is None else (lanes, 2), np.uint8))
        del writer
        with mmreplay.create(path, append=True) as again:
            assert again.n_steps == 0
    finally:
        gc.enable()


@LANES
def test_a_forked_child_has_no_writer_and_its_parent_goes_on(play, lanes):
    one = play("raw", lanes)
    begin(one)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls(one.writer)["step"]()
        except ClosedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    one.step()
    one.end("close")


@LANES
def test_a_writer_is_neither_pickled_nor_copied(play, lanes):
    one = play("raw", lanes)
    for double in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SchemaError, match=r"one writer; another process .*mmreplay\.load\("):
            double(one.writer)


def test_leaving_the_context_closes_also_after_an_error_and_ends_its_threads(tmp_path):
    before = set(threading.enumerate())
    with (
        pytest.raises(ZeroDivisionError),
        mmreplay.create(tmp_path / "s.zarr", Field(), Field(), flush_s=3600) as writer,
    ):
        writer.reset(1)
        writer.step(1, 1.0, 2)
        raise ZeroDivisionError
    assert attributes(tmp_path / "s.zarr")["closed"]
    assert not [one for one in set(threading.enumerate()) - before if one.is_alive()]


def test_a_second_writer_learns_which_process_has_the_lane(play, impatient):
    one = play()
    begin(one)
    mine = rf"open for writing already, in this process \(pid {os.getpid()} on .*, since "
    with pytest.raises(LockedError, match=mine):
        one.open()
    (one.path / ".live" / "writer").write_bytes(b"[]")
    with pytest.raises(LockedError, match="already, in this process; close that"):
        one.open()
    one.step()
    one.end("close")


def test_an_opening_that_fails_releases_the_lock(play):
    one = play()
    begin(one)
    faults.kill(one.writer)
    good = (one.path / ".live" / "checkpoint").read_bytes()
    (one.path / ".live" / "checkpoint").write_bytes(bytes(8192))
    with pytest.raises(CorruptStoreError, match="expected a valid checkpoint"):
        one.open()
    assert not locks.is_locked(one.path)
    (one.path / ".live" / "checkpoint").write_bytes(good)
    one.model.die()
    one.open()
    one.end("close")


@LANES
@pytest.mark.parametrize("name", ["rewards", "frames", "finals/frames", "finals/id"])
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_damage_in_a_closed_lane_gets_no_new_checksum(play, lanes, name, damage):
    one = play("lz4", lanes)
    begin(one, 9)  # no whole shard at the end
    one.end("close")
    last = max((one.path / name).glob("c.*"), key=lambda path: int(path.name.split(".")[1]))
    flip(last) if damage == "flipped" else last.unlink()
    before = contents(one.path)
    with pytest.raises(CorruptStoreError, match=r"checksum|missing") as caught:
        one.open()
    assert str(last) in str(caught.value)
    assert contents(one.path) == before


@LANES
@pytest.mark.parametrize(
    "name", ["rewards", "frames/large", "finals/id", ".live/state", ".live/checkpoint"]
)
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_lane_left_open_is_not_filled_up_with_zeros(play, lanes, name, damage):
    one = play("dict", lanes)
    begin(one, 9)
    one.step(terminated=[0])
    settle(one.writer)
    faults.kill(one.writer)
    where = one.path / name
    last = max(where.glob("c.*"), key=lambda path: path.name) if where.is_dir() else where
    if damage == "cut":
        os.truncate(last, last.stat().st_size // 2)
    elif name != ".live/state":
        last.unlink()
    else:
        return  # a state that is lost with the power is done without
    before = files(one.path)
    with pytest.raises(CorruptStoreError, match=r"missing|bytes"):
        one.open()
    assert set(files(one.path)) - set(before) <= {".live/writer"}


@LANES
def test_a_lane_left_open_without_its_live_files_is_damage(play, lanes):
    one = play("lz4", lanes)
    begin(one, 9)
    settle(one.writer)
    faults.kill(one.writer)
    shutil.rmtree(one.path / ".live")
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"expected .live with state.*was not closed"):
            one.open()
    assert not (one.path / ".live").exists()


def test_a_state_that_is_ahead_of_a_sound_checkpoint_is_damage(play):
    one = play("lz4", capacity=10)
    begin(one, 120)
    settle(one.writer)
    one.flush()
    faults.kill(one.writer)
    state = State(one.path / ".live" / "state", writable=True)
    for word, more, text in (
        (BASE, 1, "base: expected at most"),
        (TAIL_START, 6, "tail_start|tail"),
    ):
        state.words[word] += more
        with pytest.raises(CorruptStoreError, match=text):
            one.open()
        state.words[word] -= more
    state.words[COMMITTED] += 50
    with pytest.raises(CorruptStoreError, match=r"tail|missing"):
        one.open()
    state.words[COMMITTED] -= 50
    one.model.die()
    one.open()
    assert one.writer.rows == 120


def test_what_an_interrupted_call_left_past_the_head_is_gone_after_a_recovery(play, power_cut):
    one = play("raw")
    begin(one, 5)
    one.flush()
    for _ in range(2):
        one.step()
    faults.kill(one.writer)
    one.model.lose_power()
    power_cut()
    one.open()
    rows = one.writer.files.rows
    for path in rows.specs:
        if not path.startswith("frames"):
            window = one.writer._rows.columns[path].window(5)
            assert not window.rows[5 - window.start :].any(), path
    one.end("close")


@LANES
def test_rows_that_are_not_kept_are_counted_in_one_warning(play, caplog, power_cut, lanes):
    one = play("raw", lanes)
    begin(one, 4)
    one.flush()
    for _ in range(3):
        one.step()
    faults.kill(one.writer)
    one.model.lose_power()
    power_cut()
    one.open()
    assert [
        record.getMessage().count("3 steps after the last flush are not kept")
        for record in caplog.records
    ] == [1]


def test_a_larger_capacity_brings_nothing_back_and_a_smaller_one_evicts_at_once(play):
    one = play("raw", capacity=50)
    one.reset([0])
    for _ in range(200):
        one.step()
    one.flush()
    assert (one.writer.files.rows.first, one.writer.base) == (150, 86)
    for capacity, first in ((100, 150), (50, 150), (20, 180)):
        one.end("close", check=False)
        one.open(capacity=capacity)
        assert attributes(one.path)["capacity"] == capacity
        assert one.writer.files.rows.first == first
        one.flush()
        assert one.writer.base == max(first - 64, 86)
