"""The order in which a lane's files change: whatever dies in between, a checkpoint speaks the truth."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.state_page import BASE, COMMITTED, TAIL_START, State
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane, flush
from tests.support.disks import faults
from tests.support.disks.trees import contents, files
from tests.support.documents import attributes
from tests.support.modelled_lane import FRAMES, Play
from tests.support.quiet import settle

pytestmark = pytest.mark.usefixtures("quick_disk")

LANES = pytest.mark.parametrize("lanes", [None, 3])
KINDS = pytest.mark.parametrize("kind", FRAMES)
CHECKPOINTS = "finals/.live/checkpoint", ".live/checkpoint"


@pytest.fixture
def play(tmp_path):
    """`play(kind, lanes)`: a writer of tiny chunk files, and its model; it is killed at the end."""
    plays = []

    def make(kind, lanes=None, **given):
        plays.append(Play(tmp_path / "s.zarr", kind, lanes, **given))
        return plays[-1]

    yield make
    for one in plays:
        if not one.writer.files.closed:
            faults.kill(one.writer)


def everyone(one):
    return list(range(one.model.n))


def steps(one, n, **given):
    for _ in range(n):
        one.step(**given)


def checkpoint(log):
    """What stands on the disk."""
    return CheckpointFile(log.live / "checkpoint", log.checkpoint._store.hex()).best


def below(log, name):
    return f"{'finals/' if log.path.name == 'finals' else ''}{name}"


def synced_of(calls):
    return {path for name, path in calls if name == "sync_file"}


# ---------------------------------------------------------------- flush


@LANES
@KINDS
def test_a_flush_makes_finals_durable_before_steps_and_both_before_their_checkpoints(
    play, log, kind, lanes
):
    one = play(kind, lanes)
    for is_first in (True, False):
        one.reset(everyone(one))
        steps(one, 3)
        one.step(terminated=everyone(one))
        settle(one.writer)
        log.clear()
        one.flush()
        writes = [path for name, path in log if name == "write_at"]
        assert writes == list(CHECKPOINTS)
        start = 0
        for which, written in zip(reversed(one.writer.files.logs), CHECKPOINTS, strict=True):
            stop = log.index(("write_at", written))
            synced, named = synced_of(log[start:stop]), {path for name, path in log[start:stop]}
            head, best = which.head, checkpoint(which)
            assert best.head == head
            for path, spec in which.specs.items():
                newest = head - 1 + which.beyond(spec)
                if spec.is_raw:
                    assert below(which, f"{path}/{spec.key(newest // spec.chunk_rows)}") in synced
                else:
                    tail = f".live/{path.replace('/', '~')}.tail"
                    assert below(which, tail) in synced
                if is_first:  # its first chunk file came with this flush
                    assert below(which, path) in named
            start = stop


@LANES
def test_a_flush_syncs_what_may_have_changed_since_the_last_one_and_nothing_older(play, log, lanes):
    one = play("raw", lanes)
    one.reset(everyone(one))
    steps(one, 25)
    settle(one.writer)
    one.flush()
    log.clear()
    one.flush()
    assert log == [("write_at", ".live/checkpoint")]
    one.reset(everyone(one))  # in the middle of the episodes of row 24
    log.clear()
    one.step()
    settle(one.writer)
    one.flush()
    suffix = "" if lanes is None else ".0"
    found = sorted(path for path in synced_of(log) if path.startswith("ends/"))
    assert found == [f"ends/c.4{suffix}", f"ends/c.5{suffix}"]  # row 24 has got its ends
    assert "finals/id/c.0" not in synced_of(log)  # the reset has made them durable


@LANES
def test_the_head_of_a_flush_is_that_of_the_last_step_whose_finals_are_committed(play, lanes):
    one = play("lz4", lanes)
    one.reset(everyone(one))
    steps(one, 4)
    seen, real = [], one.writer._ends.commit

    def commit():  # as the flushing thread may come between the two words
        flush.flush(one.writer.files)
        seen.append([checkpoint(which).head for which in one.writer.files.logs])
        real()

    one.writer._ends.commit = commit
    one.step(terminated=everyone(one))
    assert seen == [[4, 0]]
    one.flush()
    assert [checkpoint(which).head for which in one.writer.files.logs] == [5, one.model.n]


@LANES
@pytest.mark.parametrize("following", ["running", "flush", "step", "reset", "close"])
def test_a_final_that_an_interrupted_step_owes_is_written_by_the_next_call(play, lanes, following):
    one = play("lz4", lanes)
    one.reset(everyone(one))
    steps(one, 3)
    real = one.writer._ends.commit

    def interrupt():
        one.writer._ends.commit = real
        raise KeyboardInterrupt  # between the words of the steps and of the finals

    one.writer._ends.commit = interrupt
    with pytest.raises(KeyboardInterrupt):
        one.step(terminated=[0])
    assert [which.head for which in one.writer.files.logs] == [4, 0]
    if following == "running":
        assert np.atleast_1d(one.writer.running).tolist() == one.model.running()
    elif following == "flush":
        one.flush()
        assert [checkpoint(which).head for which in one.writer.files.logs] == [4, 1]
    elif following == "step" and lanes:
        one.step()  # of the others
    elif following == "reset":
        one.reset([0])
    one.end("close")


def test_a_file_that_is_made_while_a_flush_runs_has_its_name_synced_by_the_next_one(
    play, monkeypatch, log
):
    one = play("raw")
    one.reset([0])
    steps(one, 3)
    settle(one.writer)
    one.flush()
    real = durable_writes.allocate

    def allocate(path, size):
        flush.flush(one.writer.files)  # as the flushing thread may do at this moment
        real(path, size)

    log.clear()
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "allocate", allocate)
        steps(one, 4)
    settle(one.writer)
    one.flush()
    for path, spec in one.writer.files.rows.specs.items():
        made = log.index(("allocate", f"{path}/{spec.key(1)}"))
        assert ("sync_directory", path) in log[made:]


def test_a_flush_saves_what_the_generator_says_and_needs_room_for_nothing_else(play, monkeypatch):
    one = play("lz4")
    one.reset([0])
    steps(one, 9)
    states = iter(["first", None, "second", "third"])
    one.writer.files.on_flush = lambda: next(states)
    for expected in ("first", "first"):
        one.flush()
        assert build_lane.read_generator(one.path) == expected

    def full(*_, **__):
        raise mmreplay.DiskFullError("no room")

    one.step()
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "write_file", full)
        with pytest.raises(mmreplay.DiskFullError):
            one.writer.flush()
    assert checkpoint(one.writer.files.rows).head == 10  # the rows are durable nonetheless
    one.writer.files.on_flush = lambda: "fourth"
    one.end("close")
    assert attributes(one.path)["generator"] == "fourth"
    one.open()
    assert build_lane.read_generator(one.path) == "fourth"
    assert "generator" not in attributes(one.path)


# ---------------------------------------------------------------- a reset in mid-episode


@LANES
@KINDS
@pytest.mark.parametrize("newer", [0, 1])
def test_a_reset_overwrites_a_durable_pending_row_only_after_its_final_is_durable(
    play, log, kind, lanes, newer
):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 3)
    one.flush()
    steps(one, newer)
    rows, finals, seen = one.writer.files.rows, one.writer.files.finals, []
    path = one.writer.schema.frame_paths[next(iter(one.writer.schema.frames))]
    pending = one.writer._rows.stored(path, rows.head).copy()
    real = CheckpointFile.write

    def write(self, **changes):
        ends = one.writer._rows.stored("ends", rows.head - 1)
        now = one.writer._rows.stored(path, rows.head)
        seen.append((self is finals.checkpoint, ends.any(), np.array_equal(now, pending)))
        real(self, **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointFile, "write", write)
        one.reset(everyone(one))
    assert seen == [(True, False, True)] * (not newer)
    assert checkpoint(finals).head == (0 if newer else one.model.n)
    assert not np.array_equal(one.writer._rows.stored(path, rows.head), pending)
    assert one.writer._rows.stored("ends", rows.head - 1).all()


# ---------------------------------------------------------------- seal


@LANES
def test_half_a_tail_is_used_again_only_after_a_checkpoint_says_that_its_shard_is_there(
    play, log, monkeypatch, lanes
):
    one = play("lz4", lanes)
    rows, seen, real = one.writer.files.rows, [], CheckpointFile.write

    def write(self, **changes):
        if self is rows.checkpoint:
            seen.append((changes, rows.state.words[TAIL_START], rows.head, list(log)))
        real(self, **changes)

    monkeypatch.setattr(CheckpointFile, "write", write)
    one.reset(everyone(one))
    heads = []
    for _ in range(13):  # shards of 6 rows; the pending row is in the tail, too
        one.step()
        settle(one.writer)
        heads.append(rows.tail_start)
    assert heads == [0] * 6 + [6] * 6 + [12]  # the step that needs the place of row 7 sealed
    assert [(changes, before) for changes, before, _, _ in seen] == [
        ({"tail_start": 6}, 0),
        ({"tail_start": 12}, 6),
    ]
    for number, (_, _, head, calls) in enumerate(seen):
        assert head >= 6 * (number + 1)
        shard = f"frames/{rows.specs['frames'].key(number)}"
        assert ("write_file", shard) in calls
    assert (checkpoint(rows).head, checkpoint(rows).tail_start) == (0, 12)
    one.flush()
    assert (checkpoint(rows).head, checkpoint(rows).tail_start) == (13, 12)


def test_a_short_shard_stays_until_a_whole_one_takes_its_place(play):
    one = play("lz4")
    one.reset([0])
    steps(one, 16)
    one.end("close")
    shard = one.path / "frames" / "c.2.0"
    short = shard.read_bytes()
    one.open()
    assert shard.read_bytes() == short
    one.reset([0])
    steps(one, 2)
    settle(one.writer)
    assert shard.read_bytes() == short
    steps(one, 1)
    settle(one.writer)
    assert shard.read_bytes() != short
    one.end("close")


# ---------------------------------------------------------------- eviction


@LANES
@KINDS
def test_base_is_checkpointed_and_stored_before_a_file_goes(play, log, monkeypatch, kind, lanes):
    one = play(kind, lanes, capacity=9)
    rows, real = one.writer.files.rows, durable_writes.unlink
    gone = []

    def unlink(path):
        which = one.writer.files.finals if "finals" in str(path) else rows
        base = which.state.words[BASE]
        spec = which.specs[str(path.parent).split(f"{which.path}/")[1]]
        assert (spec.chunk_of(path.name) + 1) * spec.chunk_rows <= base
        assert checkpoint(which).base == base == which.base
        gone.append(path.name)
        real(path)

    monkeypatch.setattr(durable_writes, "unlink", unlink)
    for _ in range(30):
        one.reset(everyone(one))
        steps(one, 2)
        one.step(truncated=everyone(one))
    settle(one.writer)
    one.flush()
    first = rows.first
    assert first == 90 - 9 // one.model.n
    assert rows.base == first - 64
    assert rows.before == rows.state.words[12] == (rows.base + 2) // 3 * one.model.n
    assert len(gone) >= len(rows.specs)
    assert one.writer.base == rows.base


def test_finals_go_one_flush_after_their_steps(play, monkeypatch):
    one = play("raw", capacity=1)
    monkeypatch.setattr(one.writer._session._background, "wake", lambda: None)
    rows, finals = one.writer.files.logs
    for _ in range(90):
        one.reset([0])
        one.step(terminated=[0])
    assert (rows.base, finals.base) == (0, 0)
    one.flush()
    assert (rows.first, rows.base, rows.before, finals.base) == (89, 25, 25, 0)
    assert checkpoint(rows).before == 25
    one.flush()
    assert (rows.base, finals.base, checkpoint(finals).base) == (25, 25, 25)
    one.end("close")
    own = attributes(one.path)
    assert [own[key] for key in ("first", "first_final", "episodes_before")] == [89, 25, 25]


def test_a_larger_capacity_brings_nothing_back_and_a_smaller_one_evicts_at_once(play):
    one = play("raw", capacity=50)
    one.reset([0])
    steps(one, 200)
    one.flush()
    assert (one.writer.files.rows.first, one.writer.base) == (150, 86)
    for capacity, first in ((100, 150), (50, 150), (20, 180)):
        one.end("close", check=False)
        one.open(capacity=capacity)
        assert attributes(one.path)["capacity"] == capacity
        assert one.writer.files.rows.first == first
        one.flush()
        assert one.writer.base == max(first - 64, 86)


# ---------------------------------------------------------------- close, and open again


@LANES
@KINDS
def test_the_root_says_closed_after_everything_else_is_durable(play, log, kind, lanes):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 10)
    settle(one.writer)
    one.flush()
    log.clear()
    one.end("close")
    last = log.index(("write_file", "zarr.json"))
    assert not [call for call in log[:last] if call[1].startswith(".live/") and call[0] == "unlink"]
    written = {path for name, path in log[:last] if name == "write_file"}
    ends = one.writer.files.rows.specs["ends"]  # of the newest row, set since the flush
    assert f"ends/{ends.key(9 // ends.chunk_rows)}" in synced_of(log[:last])
    for which in one.writer.files.logs:
        for path in which.specs:
            assert below(which, f"{path}/zarr.json") in written
            assert below(which, f"checksums/{path}") in {path for _, path in log[:last]}
    after = {name for name, path in log[last + 1 :] if ".live" not in path}
    assert after <= {"sync_directory"}
    assert not [one for one in files(one.path) if ".live" in one or one.endswith(".tmp")]


@LANES
@KINDS
def test_only_private_files_change_before_a_closed_lane_is_marked_as_open(
    play, monkeypatch, kind, lanes
):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 12)  # whole chunk files of most columns: the pending row needs a new one
    one.end("close")

    def public():
        return {name: data for name, data in contents(one.path).items() if ".live" not in name}

    before, seen, real = public(), [], build_lane.write_metadata

    def write_metadata(path, metadata, *documents, **changes):
        now = public()
        assert {name: now[name] for name in before} == before
        assert all(not any(now[name]) for name in now.keys() - before if now[name])
        for log in (path, path / "finals"):
            best = CheckpointFile(log / ".live" / "checkpoint", metadata["uuid"]).best
            assert best.head == (12 if log == path else one.model.n)
            assert not State(log / ".live" / "state", writable=False).trusted(best)
        seen.append(changes["closed"])
        return real(path, metadata, *documents, **changes)

    monkeypatch.setattr(build_lane, "write_metadata", write_metadata)
    one.open()
    assert seen == [False]


@LANES
@KINDS
def test_what_a_death_in_a_close_leaves_is_removed_by_the_next_opening(play, kind, lanes):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 10)
    one.end("close")
    clean = contents(one.path)
    for name in (".live/state", ".live/x.tail", "finals/.live/checkpoint", "frames/c.0.0.ab.tmp"):
        (one.path / name).parent.mkdir(exist_ok=True)
        (one.path / name).write_bytes(b"litter" * 1000)
    one.open()
    assert not (one.path / ".live" / "x.tail").exists()
    one.end("close")
    assert contents(one.path) == clean


# ---------------------------------------------------------------- recovery


@pytest.mark.parametrize("kind", ["raw", "lz4"])
def test_finals_of_lost_steps_go_by_checkpoint_and_word_before_their_places_are_used(
    play, monkeypatch, power_cut, kind
):
    one = play(kind)
    for _ in range(8):
        one.reset([0])
        one.step(terminated=[0])
    one.flush()
    head = one.model.durable
    for _ in range(9):
        one.reset([0])
        one.step(terminated=[0])
    # A flush whose finals are durable, and whose steps are not.
    flush.in_turn(one.writer.files, lambda lane: flush._flush_finals(lane, lane.finished()))
    assert checkpoint(one.writer.files.finals).head == 17
    faults.kill(one.writer)
    power_cut()
    one.model.durable = head
    one.model.lose_power()
    seen, real = [], CheckpointFile.write

    def write(self, **changes):
        path = one.path / "finals" / ".live" / "state"
        if "finals" in str(self._path):
            seen.append((changes["head"], State(path, writable=False).words[COMMITTED]))
        real(self, **changes)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "write", write)
        one.open()
    assert (17, 17) in seen  # first all of them are there
    assert (8, 17) in seen  # then the checkpoint says 8, while the word does not yet
    assert one.writer.files.finals.head == 8
    one.reset([0])
    one.step(terminated=[0])
    one.end("close")


@LANES
@KINDS
def test_a_final_of_a_reset_that_died_is_durable_before_its_pending_row_is_overwritten(
    play, monkeypatch, power_cut, kind, lanes
):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 3)
    one.flush()

    def die(_):
        raise KeyboardInterrupt  # the word of the finals is stored, and they are not durable

    with monkeypatch.context() as patch:
        patch.setattr(flush, "flush_finals", die)
        with pytest.raises(KeyboardInterrupt):
            one.reset(everyone(one))
    faults.kill(one.writer)
    one.open()
    assert one.writer.files.finals.head == one.model.n
    one.reset(everyone(one))
    one.step()
    faults.kill(one.writer)
    power_cut()
    one.model.lose_power()
    one.open()
    one.end("close")


@LANES
@pytest.mark.parametrize("head", [1, 4, 5, 6, 7, 10, 12])
def test_a_lane_goes_back_to_any_row_with_what_was_pending_there(play, power_cut, lanes, head):
    one = play("lz4", lanes)
    one.reset(everyone(one))
    steps(one, head)
    one.flush()
    steps(one, 25)  # the tail has gone round: what was pending is in a shard
    settle(one.writer)
    assert one.writer.files.rows.tail_start > head
    faults.kill(one.writer)
    power_cut()
    one.model.lose_power()
    one.open()
    assert one.writer.files.rows.tail_start == head - head % 6
    one.end("close")


@pytest.mark.parametrize("lost", ["state", "finals/state"])
def test_a_lane_of_which_one_state_is_not_trusted_goes_back_to_both_checkpoints(play, lost):
    one = play("lz4", 3)
    one.reset(everyone(one))
    steps(one, 4)
    one.flush()
    one.step(terminated=[0, 1])
    one.reset([0, 1])
    steps(one, 2)
    faults.kill(one.writer)
    log = one.path / "finals" if "/" in lost else one.path
    State(log / ".live" / "state", writable=True).distrust()
    one.model.lose_power()
    one.open()
    assert one.writer.rows == 4
    one.end("close")


@LANES
@KINDS
def test_a_kill_between_checkpoint_and_state_page_loses_no_row(play, kind, lanes):
    one = play(kind, lanes, capacity=20)
    one.reset(everyone(one))
    steps(one, 120)
    settle(one.writer)
    one.flush()
    rows = one.writer.files.rows
    best = checkpoint(rows)
    faults.kill(one.writer)
    one.model.die()
    state = State(one.path / ".live" / "state", writable=True)
    old = state.words[TAIL_START], state.words[BASE]
    assert old == (best.tail_start, best.base)
    state.words[TAIL_START] = max(best.tail_start - 6, 0)  # as a seal and a flush found them
    state.words[BASE], state.words[12] = best.base - 1, best.before
    one.open()
    assert (one.writer.files.rows.tail_start, one.writer.base) == (best.tail_start, best.base)
    assert one.writer.rows == 120
    assert rows.before == one.writer.files.rows.before


@LANES
def test_everything_that_a_killed_process_left_is_made_durable_before_it_is_trusted(
    play, log, lanes
):
    one = play("dict", lanes)
    one.reset(everyone(one))
    steps(one, 8)
    faults.kill(one.writer)
    one.model.die()
    log.clear()
    one.open()
    first = next(i for i, (name, _) in enumerate(log) if name in ("write_at", "unlink"))
    before = log[:first]
    assert {"zarr.json", *CHECKPOINTS, ".live/state", "finals/.live/state"} <= synced_of(before)
    assert ".live/frames~seen.tail" in synced_of(before)
    named = {path for name, path in before if name == "sync_directory"}
    assert {"", "finals", ".live", "actions", "frames/large", "finals/id"} <= named
    one.flush()  # every chunk file that was kept counts as changed
    for which in one.writer.files.logs:
        for path, spec in which.specs.items():
            if spec.is_raw:
                for chunk in range(-(-which.head // spec.chunk_rows)):
                    assert below(which, f"{path}/{spec.key(chunk)}") in synced_of(log[first:])


def test_a_live_lane_of_one_environment_is_forty_files(tmp_path):
    with mmreplay.create(tmp_path / "s.zarr", Field((84, 84)), Field((), "int64")) as writer:
        for _ in range(2):
            writer.reset(np.zeros((84, 84), np.uint8))
            for t in range(3):
                writer.step(0, 0.0, np.zeros((84, 84), np.uint8), terminated=t == 2)
            writer.flush()
            settle(writer)
            found = [one for one in files(writer.path) if not one.endswith("zarr.json")]
            assert len(found) <= 40
