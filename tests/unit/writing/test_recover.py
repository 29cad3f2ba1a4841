"""How a lane begins to be written again: reopened, recovered; and a death in the middle of it."""

import itertools
import os
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import CorruptStoreError
from mmreplay.reading import log_reader
from mmreplay.storage import chunk_files, state_page
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.checksums import stored_checksum
from mmreplay.storage.state_page import BASE, TAIL_START, State
from mmreplay.system import durable_writes, memory_maps
from mmreplay.writing import background, build_lane, seal
from tests.support.disks.trees import contents, files
from tests.support.documents import attributes
from tests.support.effort import by_effort
from tests.support.writers import open_lane

pytestmark = pytest.mark.usefixtures("quick_disk")

CODECS = {"raw": "raw", "lz4": "lz4"}
DEEP_ONLY = pytest.mark.deep(only=True)


@pytest.fixture(params=CODECS)
def fields(request):
    return {
        "frame": Field((3,), "uint8", CODECS[request.param], chunk=4, shard=8),
        "extras": {"x": Field((2,), "float32", chunk=3)},
    }


def cut_to(story, path, head):
    """What is left of a lane of which only `head` rows are."""
    rows = story.lanes[path]
    del rows[head:]
    rows[-1]["step"] = False
    rows[-1]["flag"] = 1 if rows[-1]["reset"] else rows[-2]["flag"]


# ---------------------------------------------------------------- reopened


# Each goes on three times, 10 rows apart: 6 and 7 come to 16 and 17 too.
@pytest.mark.parametrize(
    "length", [0, 1, 6, 7, 8, 15, *(pytest.param(one, marks=DEEP_ONLY) for one in (14, 16, 17))]
)
def test_a_closed_lane_goes_on_where_it_stopped(make, story, fields, length):
    writer = make(**fields)
    if length:
        story.play(writer, length - 1, "terminated")
    for _ in range(3):
        writer.close()
        writer = make(append=True)
        assert writer.rows == len(story.lanes.get(writer.path, []))
        assert attributes(writer.path)["closed"] is False
        story.play(writer, 9, "truncated")
        with mmreplay.open(writer.path) as store:
            story.check(store)
    writer.close()
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_the_short_shard_is_unpacked_and_stays_until_the_whole_one_replaces_it(make, story, lz4):
    writer = make(**lz4)
    story.play(writer, 19)
    writer.close()
    shard = chunk_files.chunk_path(writer.path, writer.specs["frames"], 2)
    short = shard.read_bytes()
    writer = make(append=True)
    assert shard.read_bytes() == short
    frames = story.columns(writer.path, writer.schema)["frames"]
    tail = writer.log.tails["frames"]
    assert np.array_equal(tail[:4], frames[16:20])
    story.play(writer, 3)
    assert shard.read_bytes() == short
    story.play(writer, 9)
    writer._background.finish_tasks()
    assert shard.read_bytes() != short
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_only_private_files_change_before_a_lane_is_marked_as_open(
    make, story, fields, monkeypatch
):
    writer = make(**fields)
    story.play(writer, 20)
    writer.close()
    path = writer.path

    def contents():
        return {
            name: (path / name).read_bytes()
            for name in files(path)
            if not name.startswith((".live", "checksums"))
        }

    before, seen = contents(), []

    def write_metadata(where, metadata, **changes):
        seen.append(contents())
        live = {one.name for one in (path / ".live").iterdir()}
        assert {"state", "checkpoint"} <= live
        best = CheckpointFile(path / ".live" / "checkpoint", metadata["uuid"]).best
        assert best.head == 21
        assert not State(path / ".live" / "state", writable=False).trusted(best)
        return real(where, metadata, **changes)

    real = build_lane.write_metadata
    monkeypatch.setattr(build_lane, "write_metadata", write_metadata)
    make(append=True)
    assert seen == [before]


def test_files_left_by_a_death_during_a_close_are_removed(make, story, fields):
    writer = make(**fields)
    story.play(writer, 20)
    writer.close()
    clean = files(writer.path)
    (writer.path / ".live").mkdir()
    for name in (
        ".live/state",
        ".live/checkpoint",
        ".live/frames.tail",
        ".live/generator",
        ".live/who-knows",
        "zarr.json.0123.tmp",
        "frames/c.0.0.abcd.tmp",
    ):
        (writer.path / name).write_bytes(b"litter" * 10_000)
    with mmreplay.open(writer.path) as store:
        story.check(store)
    again = make(append=True)
    assert build_lane.read_generator(again.path) is None
    assert not (writer.path / ".live" / "who-knows").exists()
    again.close()
    assert files(writer.path) == clean
    with mmreplay.open(writer.path) as store:
        story.check(store)


# ---------------------------------------------------------------- recovered


# Each is killed three times, 6 rows apart: 1 comes to 7 too.
@pytest.mark.parametrize("length", [1, 8, 9, 16, 17, pytest.param(30, marks=DEEP_ONLY)])
def test_after_a_kill_every_committed_row_is_there(make, story, kill, fields, length):
    writer = make(**fields)
    story.play(writer, length - 1)
    for _ in range(3):
        kill(writer)
        with mmreplay.open(writer.path) as store:
            story.check(store)
        writer = make(append=True)
        assert writer.rows == len(story.lanes[writer.path])
        assert not writer.running
        story.play(writer, 5)
    writer.close()
    with mmreplay.open(writer.path) as store:
        story.check(store)


# Every second pair in a quick run: each length with two or three of `more`.
@pytest.mark.parametrize(
    ("length", "more"),
    [
        pytest.param(*pair, marks=() if number % 2 == 0 else DEEP_ONLY)
        for number, pair in enumerate(
            itertools.product((1, 4, 8, 12, 16, 17, 30), (0, 1, 5, 8, 40))
        )
    ],
)
def test_after_a_power_cut_what_was_flushed_is_there_and_no_more(
    make, story, kill, fields, power_cut, length, more
):
    writer = make(**fields)
    story.play(writer, length - 1)
    writer.flush()
    story.play(writer, more, reset=False)
    writer._background.finish_tasks()
    kill(writer)
    power_cut()
    cut_to(story, writer.path, length)
    with mmreplay.open(writer.path) as store:
        story.check(store)
        assert store.ids.tolist() == story.transitions(writer.path)
    writer = make(append=True)
    assert writer.rows == length
    story.play(writer, 25)
    with mmreplay.open(writer.path) as store:
        story.check(store)
    writer.close()
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_tail_that_was_sealed_past_the_flushed_head_is_unpacked(
    make, story, kill, lz4, power_cut
):
    writer = make(**lz4)
    story.play(writer, 4)
    writer.flush()
    story.play(writer, 20, reset=False)
    writer._background.finish_tasks()
    checkpoint = CheckpointFile(writer.path / ".live" / "checkpoint", writer.metadata["uuid"])
    assert (checkpoint.best.head, checkpoint.best.tail_start) == (5, 24)
    kill(writer)
    power_cut()
    writer = make(append=True)
    cut_to(story, writer.path, 5)
    assert writer.log.tail_start == 0
    frames = story.columns(writer.path, writer.schema)["frames"]
    assert np.array_equal(writer.log.tails["frames"][:5], frames)
    best = CheckpointFile(writer.path / ".live" / "checkpoint", writer.metadata["uuid"]).best
    assert (best.head, best.tail_start) == (5, 0)


def test_a_kill_between_checkpoint_and_state_page_loses_no_row(make, story, kill):
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8), capacity=10)
    story.play(writer, 120)
    writer.flush()
    writer._sealer.wait()
    best = writer.log.checkpoint.best
    kill(writer)
    assert (best.tail_start, best.base) == (120, 46)
    state = State(writer.path / ".live" / "state", writable=True)
    state.words[TAIL_START], state.words[BASE] = 112, 40  # as a seal and a flush found them
    writer = make(append=True)
    assert writer.rows == 121
    assert (writer.log.tail_start, writer.log.base) == (120, 46)
    assert [state.words[word] for word in (TAIL_START, BASE)] == [120, 46]


def damage_newest_slot(writer):
    path = writer.path / ".live" / "checkpoint"
    best = CheckpointFile(path, writer.metadata["uuid"]).best
    slots = bytearray(path.read_bytes())
    slots[4096 * (best.generation % 2 == 0)] ^= 1
    path.write_bytes(slots)
    assert CheckpointFile(path, writer.metadata["uuid"]).best.generation == best.generation - 1


@pytest.mark.parametrize("n_more", [9, 100])  # with the last the old head is below the new base
def test_a_damaged_checkpoint_slot_is_restored_from_the_state_page(
    make, story, kill, monkeypatch, n_more
):
    for name in ("flush_soon", "wake"):
        monkeypatch.setattr(background.Background, name, lambda _: None)
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8), capacity=10)
    story.play(writer, 120)
    writer.flush()
    writer._sealer.wait()
    story.play(writer, n_more)
    writer._sealer.wait()
    writer.flush()
    n_rows = writer.rows
    kill(writer)
    path, store = writer.path / ".live" / "checkpoint", writer.metadata["uuid"]
    best = CheckpointFile(path, store).best
    damage_newest_slot(writer)
    damaged = CheckpointFile(path, store)
    assert not damaged.is_newest
    assert (damaged.best.tail_start, damaged.best.base) < (best.tail_start, best.base)
    kill(make(append=True))
    again = CheckpointFile(path, store)
    assert again.is_newest
    assert again.best.head >= best.head
    assert (again.best.tail_start, again.best.base) == (best.tail_start, best.base)
    assert make(append=True).rows == n_rows


def test_an_untrusted_state_stays_untrusted_after_a_death_in_recovery(
    make, story, kill, power_cut, monkeypatch
):
    monkeypatch.setattr(background.Background, "flush_soon", lambda _: None)
    writer = make(frame=Field((3,), "uint8", "raw", chunk=8))
    story.play(writer, 4)
    writer.flush()
    kill(writer)
    power_cut()
    writer = make(append=True)
    story.play(writer, 30)
    kill(writer)
    damage_newest_slot(writer)  # the only one of this boot
    with monkeypatch.context() as patch:
        patch.setattr(State, "start", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make(append=True)
    assert make(append=True).rows == 5


def test_a_base_made_larger_by_a_flipped_bit_evicts_nothing(make, story, kill):
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8), capacity=10)
    story.play(writer, 120)
    writer.flush()
    writer._sealer.wait()
    kill(writer)
    State(writer.path / ".live" / "state", writable=True).words[BASE] = 47
    before = {one: one.read_bytes() for one in writer.path.rglob("c.*")}
    with pytest.raises(
        CorruptStoreError, match="base: expected at most that of the checkpoint, 46"
    ):
        make(append=True)
    assert before == {one: one.read_bytes() for one in writer.path.rglob("c.*")}
    assert mmreplay.repair(writer.path).lost == 0
    writer = make(append=True)
    assert (writer.rows, writer.log.base) == (121, 46)


@pytest.mark.parametrize("how", ["killed", "power cut"])
def test_recovery_removes_checksums_of_shards_whose_rows_are_still_in_the_tail(
    make, story, kill, lz4, power_cut, how
):
    writer = make(**lz4)
    story.play(writer, 15)
    writer._sealer.wait()
    spec, chunks = writer.specs["frames"], range(2)
    job = seal.seal_job(writer.log, 8)
    with pytest.MonkeyPatch.context() as patch:  # killed once the shard has its name and checksum
        patch.setattr(CheckpointFile, "write", lambda *_, **__: 1 / 0)
        job.run()
    assert isinstance(job.error, ZeroDivisionError)
    writer.flush()
    kill(writer)
    if how == "power cut":
        power_cut()
    sums = [stored_checksum(writer.path, spec, chunk) for chunk in chunks]
    assert 0 not in sums
    again = make(append=True)
    assert (again.rows, again.log.tail_start) == (16, 8)
    assert [stored_checksum(writer.path, spec, chunk) for chunk in chunks] == [sums[0], 0]


@pytest.mark.parametrize("head", [8, 16, 9])
def test_no_checksum_of_rows_lost_in_a_power_cut_is_left(
    make, story, kill, fields, power_cut, head
):
    # Row head - 1 is rewritten as a final row, and so is the chunk file that ends with it.
    writer = make(**fields)
    story.play(writer, head - 1)
    writer.flush()
    story.play(writer, 20, reset=False)
    writer._background.finish_tasks()
    kill(writer)
    power_cut()
    make(append=True).close()
    assert mmreplay.verify(writer.path).findings == []
    cut_to(story, writer.path, head)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_recovery_clears_what_an_interrupted_step_left_in_the_newest_row(make, story, kill):
    writer = make(extras={"x": Field((), "float32")})
    story.play(writer, 3)
    story.step(writer, life_lost=True)
    newest = writer.rows - 1
    for name, value in (("actions", 77), ("rewards", 5), ("non_terminals", 1), ("extras/x", 9)):
        writer._chunks.columns[name].old.rows[newest] = value
    for name in ("actions", "rewards", "resets", "non_terminals"):
        writer._chunks.columns[name].new.rows[newest + 1] = 1
    kill(writer)
    with mmreplay.open(writer.path) as store:
        story.check(store)
    writer = make(append=True)
    story.play(writer, 1)
    writer.close()
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_nothing_past_the_head_is_left_of_what_a_power_cut_left_there(make, story, kill, power_cut):
    writer = make(extras={"x": Field((), "float32")})
    story.play(writer, 3)
    writer.flush()
    story.play(writer, 2, reset=False)
    kill(writer)
    power_cut()
    writer = make(append=True)
    cut_to(story, writer.path, 4)
    for act in (story.reset, story.step):  # the newest row is a final row the moment it is there
        act(writer)
        for name in ("actions", "rewards", "extras/x"):
            assert writer._chunks.columns[name].new.rows[writer.rows - 1] == 0


def test_the_state_page_may_be_lost_with_the_power(make, story, kill, fields):
    writer = make(**fields)
    story.play(writer, 11)
    writer.flush()
    story.play(writer, 3, reset=False)
    kill(writer)
    (writer.path / ".live" / "state").unlink()
    writer = make(append=True)
    cut_to(story, writer.path, 12)
    assert writer.rows == 12
    story.play(writer, 20)
    with mmreplay.open(writer.path) as store:
        story.check(store)


@pytest.mark.parametrize("name", ["checkpoint", "frames.tail"])
def test_a_missing_file_that_recovery_needs_is_named(make, story, kill, lz4, monkeypatch, name):
    monkeypatch.setattr(log_reader, "_PATIENCE_S", 0)
    writer = make(**lz4)
    story.play(writer, 11)
    kill(writer)
    (writer.path / ".live" / name).unlink()
    with pytest.raises(CorruptStoreError, match=rf"expected \.live with .*{name} is missing"):
        make(append=True)
    with pytest.raises(CorruptStoreError, match="neither closed nor live"):
        mmreplay.open(writer.path)


def test_a_checkpoint_of_two_bad_slots_is_corrupt(make, story, kill):
    writer = make()
    story.play(writer, 11)
    kill(writer)
    (writer.path / ".live" / "checkpoint").write_bytes(bytes(8192))
    for call in (lambda: make(append=True), lambda: mmreplay.open(writer.path)):
        with pytest.raises(
            CorruptStoreError, match="expected a valid checkpoint in one of two slots"
        ):
            call()


def test_recovery_removes_files_past_the_head_and_partial_files(make, story, kill):
    writer = make()
    story.play(writer, 20)
    kill(writer)
    spec = writer.specs["rewards"]
    for name in ("c.3", "c.7", "c.0.12345678.tmp"):
        (writer.path / "rewards" / name).write_bytes(bytes(spec.chunk_bytes))
    writer = make(append=True)
    assert chunk_files.chunk_files(writer.path, spec) == [0, 1, 2]
    assert not list(writer.path.rglob("*.tmp"))
    writer.close()
    with mmreplay.open(writer.path) as store:
        story.check(store)


@pytest.mark.parametrize("how", ["killed", "power cut"])
def test_no_file_is_removed_before_what_replaces_it_is_written(
    make, story, kill, lz4, power_cut, monkeypatch, how
):
    writer = make(**lz4, capacity=1000)
    story.play(writer, 116)
    writer.flush()
    story.play(writer, 60, reset=False)
    writer._background.finish_tasks()
    live = writer.path / ".live"
    writer.log.checkpoint.write(base=40 if how == "killed" else 0)
    kill(writer)
    if how == "power cut":
        power_cut()
    seen, unlink = [], durable_writes.unlink

    def look(path):
        if not path.name.endswith(".tmp") and "/.live/" not in str(path):
            best = CheckpointFile(live / "checkpoint", writer.metadata["uuid"]).best
            words = State(live / "state", writable=False).words
            seen.append((best.head, best.tail_start, best.base, words[BASE]))
        unlink(path)

    monkeypatch.setattr(durable_writes, "unlink", look)
    make(append=True)
    expected = (117, 176, 40, 40) if how == "killed" else (117, 112, 0, 0)
    assert set(seen) == {expected}


def test_everything_that_a_killed_process_left_counts_as_not_yet_durable(
    make, story, kill, monkeypatch
):
    writer = make()
    story.play(writer, 30)
    writer.flush()
    kill(writer)
    writer, synced = make(append=True), []
    monkeypatch.setattr(durable_writes, "sync_file", lambda path, **_: synced.append(str(path)))
    writer.flush()
    for name, spec in writer.specs.items():
        expected = {str(chunk_files.chunk_path(writer.path, spec, one)) for one in range(4)}
        assert expected <= set(synced), name


# ---------------------------------------------------------------- a death in the middle of it


class DeadError(BaseException):
    """The process ends here."""


CALLS = "allocate write_file write_at sync_file sync_directory sync_tree unlink remove_tree".split()


def die_at(patch, number):
    """The process dies just before the `number`-th call that reaches the disk."""
    count = [0]

    def wrapped(real):
        def call(*args, **kwargs):
            if count[0] == number:
                raise DeadError
            count[0] += 1
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        patch.setattr(durable_writes, name, wrapped(getattr(durable_writes, name)))
    patch.setattr(memory_maps, "map_file", wrapped(memory_maps.map_file))
    return count


EVERY = by_effort(5, 1, 1)  # call of them


@pytest.mark.deep
@pytest.mark.parametrize(("how", "number"), [("closed", 0), ("killed", 1), ("power cut", 3)])
def test_a_kill_at_any_point_leaves_a_lane_that_opens_and_has_every_row(
    make, story, kill, lz4, power_cut, monkeypatch, tmp_path, how, number
):
    writer = make(**lz4)
    story.play(writer, 12)
    writer.flush()
    story.play(writer, 8, reset=False)
    writer._background.finish_tasks()
    if how == "closed":
        writer.close()
    else:
        kill(writer)
    if how == "power cut":
        power_cut()
        cut_to(story, writer.path, 13)
    rows = story.lanes[writer.path]
    died, number = True, number % EVERY
    while died:
        copy = tmp_path / f"copy{number}"
        shutil.copytree(writer.path, copy)
        if (
            how == "killed"
        ):  # a copy of a state page is trusted by nobody: make it a page of its own
            state = State(copy / ".live" / "state", writable=True)
            state.name_files()
            state.words[state_page._LEAST_BLOCKS] = 0
        story.lanes[copy] = rows
        with monkeypatch.context() as patch:
            count = die_at(patch, number)
            try:
                kill(open_lane(copy))
                died = False
            except DeadError:
                number += EVERY
        with mmreplay.open(copy) as store:
            story.check(store)
        again = open_lane(copy)
        assert again.rows == len(rows)
        kill(again)
        with mmreplay.open(copy) as store:
            story.check(store)
    assert number >= count[0] > 15


@pytest.mark.parametrize("name", ["actions", "rewards", "resets", "frames"])
def test_damage_in_a_closed_lane_gets_no_new_checksum(make, story, name):
    writer = make()
    story.play(writer, 20)
    writer.close()
    with next((writer.path / name).glob("c.2*")).open("r+b") as file:
        file.write(b"\x55")
    with pytest.raises(CorruptStoreError, match=f"{name}/c.2.*does not match its checksum"):
        mmreplay.create(writer.path, append=True)
    assert mmreplay.verify(writer.path).state == "closed"
    assert not mmreplay.verify(writer.path).sound


def test_rows_that_a_copy_cannot_keep_are_reported(make, story, kill, tmp_path, caplog):
    writer = make()
    story.play(writer, 9)
    writer.flush()
    story.play(writer, 10, reset=False)
    kill(writer)
    shutil.copytree(writer.path, tmp_path / "copy.zarr")
    with mmreplay.create(tmp_path / "copy.zarr", append=True, flush_s=0) as copy:
        assert copy.rows == 10
    assert "copy.zarr: 10 rows after the last flush are not kept" in caplog.text
    caplog.clear()
    with mmreplay.create(writer.path, append=True, flush_s=0) as again:
        assert again.rows == 20
    assert caplog.text == ""


def test_what_a_copy_of_many_environments_cannot_keep_is_reported_once(
    make, kill, tmp_path, caplog
):
    writer = make(lanes=2)
    frames, none = np.zeros((2, 3), np.uint8), [0, 0]
    for _ in range(2):
        writer.flush()
        writer.reset(frames)
        writer.step(none, none, frames, none, none)
    kill(writer)
    shutil.copytree(writer.path, tmp_path / "copy.zarr")
    mmreplay.create(tmp_path / "copy.zarr", append=True, flush_s=0).close()
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        str(tmp_path / "copy.zarr" / "ticks")
    ]


# ---------------------------------------------------------------- refused


def last_files(writer):
    """The chunk file of the newest row of each array; of compressed ones the last shard."""
    for spec in writer.specs.values():
        chunk = (writer.rows - 1) // spec.chunk_rows
        yield chunk_files.chunk_path(writer.path, spec, chunk), spec


def check_going_on(make, story):
    """Nothing is missing for the next writer."""
    writer = make(append=True)
    assert writer.rows == len(story.lanes[writer.path])
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_closed_lane_is_not_opened_without_one_of_its_last_chunk_files(make, story, fields):
    writer = make(**fields)
    story.play(writer, 20)
    writer.close()
    for file, _ in last_files(writer):
        kept = file.read_bytes()
        file.unlink()
        with pytest.raises(CorruptStoreError, match="missing; run `mmreplay verify`"):
            make(append=True)
        assert attributes(writer.path)["closed"] is True
        assert not file.exists()
        file.write_bytes(kept)
    check_going_on(make, story)


def test_a_closed_lane_is_not_opened_with_another_shard_in_the_place_of_its_last(make, story, lz4):
    writer = make(**lz4)
    story.play(writer, 20)
    writer.close()
    file, spec = next((file, spec) for file, spec in last_files(writer) if not spec.is_raw)
    shutil.copy(chunk_files.chunk_path(writer.path, spec, 0), file)
    with pytest.raises(CorruptStoreError, match="does not match its checksum"):
        make(append=True)
    assert attributes(writer.path)["closed"] is True


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_lane_left_open_is_not_filled_up_with_zeros(make, story, kill, fields, damage):
    writer = make(**fields)
    story.play(writer, 12)
    writer.flush()
    story.play(writer, 9)
    kill(writer)
    seen = 0
    for spec in writer.specs.values():
        for chunk in chunk_files.chunk_files(writer.path, spec):
            file = chunk_files.chunk_path(writer.path, spec, chunk)
            if chunk * spec.chunk_rows >= writer.rows or (damage == "cut" and not spec.is_raw):
                continue
            kept = file.read_bytes()
            file.unlink() if damage == "missing" else file.write_bytes(kept[:-1])
            expected = "missing" if damage == "missing" else f"found {len(kept) - 1:,}"
            for _ in range(2):  # the first refusal gives up nothing
                with pytest.raises(CorruptStoreError, match=f"{expected}.*mmreplay repair"):
                    make(append=True)
            file.write_bytes(kept)
            seen += 1
    assert seen > len(writer.specs)
    check_going_on(make, story)


def test_a_copy_by_hard_links_that_is_opened_costs_the_original_no_tick(make, kill, tmp_path):
    writer = make(lanes=2)
    writer.reset(np.zeros((2, 3), "uint8"))
    for _ in range(5):
        writer.step([1, 2], [0, 0], np.ones((2, 3), "uint8"), [False] * 2, [False] * 2)
    kill(writer)
    copy = tmp_path / "copy.zarr"
    shutil.copytree(writer.path, copy, copy_function=os.link)
    before = contents(writer.path)
    with mmreplay.create(copy, append=True, flush_s=0) as copied:
        assert copied.rows == 0  # nothing of it was durable
    assert contents(writer.path) == before
    assert make(append=True).rows == 5
