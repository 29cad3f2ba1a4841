"""Lost documents and live files of a vector lane: what the rest tells, and what nothing does."""

import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, repair
from mmreplay.format import plan
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage.state_page import State
from tests.support.disks.trees import contents, flip
from tests.support.documents import change_copy, drop_copy
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.tampering.repairs import (
    assert_refused,
    attributes,
    check_kept,
    check_ticks,
    set_attributes,
)

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)
LARGE = Field((64, 64), "uint8", "raw", chunk=8)
RAW = Field((3,), "float32", "raw", chunk=8)
ONLY_COPY = "it was the only copy of how this array is laid out"
NOBODY_KNOWS = "nobody knows how far this lane was written"
UNKNOWN = ".live cannot be read whole, so nothing tells how many rows there were"

N_TICKS, N_FLUSHED, N_CLOSED = 60, 45, 20
DOCUMENTS = [
    "zarr.json",
    "ticks/zarr.json",
    "starts/zarr.json",
    "ticks/rewards/zarr.json",
    "ticks/episode/zarr.json",
    "ticks/count/zarr.json",
    "ticks/extras/x/zarr.json",
    "ticks/checksums/actions/zarr.json",
    "starts/env/zarr.json",
    "starts/tick/zarr.json",
]
PAGES = ["ticks/.live/checkpoint", "starts/.live/state", "starts/.live/checkpoint"]


def lose(path, data=None):
    """Remove a file or directory, or overwrite the file."""
    if path.is_dir():
        shutil.rmtree(path)
    elif data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.fixture
def short_starts(monkeypatch):
    """Starts fill chunk files, too."""
    monkeypatch.setattr(plan, "_START_ROWS", 16)
    monkeypatch.setattr(plan, "_NUMBER_ROWS", 16)


@pytest.fixture
def crashed(vector, kill, make, short_starts):
    """The model of a lane of 5 environments as a kill left it, the last 15 ticks not flushed."""

    def create(frame=LZ4, *, closed=False, **given):
        model = vector(frame=frame, **given)
        model.play(N_CLOSED)
        if closed:
            model.writer.close()
            model.reopened(make(append=True))
        model.play(N_FLUSHED - N_CLOSED)
        model.writer.flush()
        model.play(N_TICKS - N_FLUSHED)
        model.writer._background.finish_tasks()
        kill(model.writer)
        return model

    return create


def repaired(path):
    """Repair; what is damaged stays as it was."""
    before = contents(path)
    done = repair(path)
    assert contents(path.with_name(f"{path.name}.damaged")) == before
    return done


@pytest.mark.parametrize(
    "lost",
    [
        ["ticks/zarr.json"],
        ["starts/zarr.json"],
        ["ticks/rewards/zarr.json", "starts/tick/zarr.json", "ticks/extras/x/zarr.json"],
    ],
)
@pytest.mark.parametrize("data", [None, b"{"])
@pytest.mark.parametrize("copied", [True, False])
def test_documents_of_a_closed_lane_are_made_again(closed_vector, ended, lost, data, copied):
    path = closed_vector.writer.path
    if not copied:
        drop_copy(path)
    for name in lost:
        (path / name).unlink() if data is None else (path / name).write_bytes(data)
    done = repair(path)
    assert (done.kept, done.lost) == (70, 0)
    # Its attributes are in the copy, too.
    assert [("random state" in one) for one in done.notes] == [True] * (
        not copied and lost == ["ticks/zarr.json"]
    )
    check_ticks(closed_vector, ended, path, 70)


def test_the_document_of_ticks_some_of_which_were_evicted(vector, tmp_path):
    model = vector(frame=LZ4, capacity=150)
    for _ in range(4):
        model.play(40)
        model.writer.flush()
    model.writer.close()
    path = model.writer.path
    original = shutil.copytree(path, tmp_path / "original.zarr")
    (path / "ticks" / "zarr.json").unlink()
    assert repair(path).lost == 0
    with mmreplay.open(original) as store:
        assert check_kept(path, original).tolist() == store.ids.tolist()


@pytest.mark.parametrize(
    ("frame", "end", "lost", "reason"),
    [
        (LZ4, "close", "ticks/frames/zarr.json", ONLY_COPY),
        (LZ4, "close", "starts/frames/zarr.json", ONLY_COPY),
        # Nothing tells whether they lie tick by tick, or environment by environment.
        (LARGE, "close", "ticks/frames/zarr.json", ONLY_COPY),
        (LZ4, "kill", "ticks/frames/zarr.json", ONLY_COPY),
        (LZ4, "kill", "starts/frames/zarr.json", ONLY_COPY),
        (LARGE, "kill", "ticks/frames/zarr.json", ONLY_COPY),
        (LZ4, "kill", "ticks/.live", NOBODY_KNOWS),
        (LZ4, "kill", "starts/.live", NOBODY_KNOWS),
        (RAW, "kill", "ticks/.live", NOBODY_KNOWS),
    ],
)
def test_what_nothing_else_tells_is_not_made_up(vector, kill, frame, end, lost, reason):
    model = vector(frame=frame)
    model.play(9)
    if end == "kill":
        kill(model.writer)
    else:
        model.writer.close()
        drop_copy(model.writer.path)
    lose(model.writer.path / lost)
    expected = rf"cannot be repaired: .*{reason}.* back .*and repair again$"
    assert_refused(model.writer.path, expected)


@pytest.mark.parametrize("n", [1, 5])
def test_documents_of_large_frames_that_lie_in_one_way_only_are_made_again(vector, ended, n):
    model = vector(n, frame=LARGE)
    model.play(20)
    model.writer.close()
    path = model.writer.path
    drop_copy(path)
    (path / "starts" / "frames" / "zarr.json").unlink()
    if n == 1:
        (path / "ticks" / "frames" / "zarr.json").unlink()
    assert repair(path).lost == 0
    check_ticks(model, ended, path, 20)


@pytest.mark.parametrize("frame", [LZ4, LARGE])
def test_the_layout_of_frames_is_also_in_the_copy_in_their_lane(vector, ended, frame):
    model = vector(frame=frame)
    model.play(20)
    model.writer.close()
    path = model.writer.path
    for log in ("ticks", "starts"):
        (path / log / "frames" / "zarr.json").unlink()
    assert repair(path).lost == 0
    check_ticks(model, ended, path, 20)


def test_a_copy_that_differs_does_not_count(closed_vector, ended):
    path = closed_vector.writer.path
    change_copy(path / "ticks" / "rewards", lambda d: d["shape"].__setitem__(0, 60))
    (found,) = mmreplay.verify(path).findings
    assert found.file == "zarr.json"
    assert found.message == (
        "consolidated_metadata: ticks/rewards.shape[0]: expected 70, found 60, unlike its own "
        "zarr.json"
    )
    assert repair(path).lost == 0
    check_ticks(closed_vector, ended, path, 70)


def test_no_row_is_looked_for_where_a_copy_that_differs_has_it(closed_vector, ended):
    path = closed_vector.writer.path

    def change(document):
        document["chunk_grid"]["configuration"]["chunk_shape"][0] *= 2

    change_copy(path / "ticks" / "episode", change)
    (found,) = mmreplay.verify(path).findings
    assert "consolidated_metadata: ticks/episode.chunk_grid" in found.message
    assert repair(path).lost == 0
    check_ticks(closed_vector, ended, path, 70)


# ---------------------------------------------------------------- left by a crash


@pytest.mark.parametrize("frame", [LZ4, RAW], ids=["lz4", "raw"])
@pytest.mark.parametrize("lost", DOCUMENTS + PAGES)
def test_all_rows_of_a_crashed_lane_are_kept_without(crashed, ended, frame, lost):
    model = crashed(frame)
    path = model.writer.path
    lose(path / lost)
    done = repaired(path)
    assert (done.kept, done.lost, done.untrusted, done.at_least) == (N_TICKS, 0, 0, False)
    # Nothing else says what these were.
    assert [note[:25] for note in done.notes] == ["zarr.json cannot be read:"] * (
        lost == "zarr.json"
    )
    check_ticks(model, ended, path, N_TICKS)


@pytest.mark.parametrize("lost", ["ticks/zarr.json", "starts/.live/state", *PAGES])
def test_files_of_a_crashed_lane_that_are_no_longer_whole(crashed, ended, lost):
    model = crashed()
    lose(model.writer.path / lost, b"{")
    assert repaired(model.writer.path).lost == 0
    check_ticks(model, ended, model.writer.path, N_TICKS)


@pytest.mark.parametrize(
    "lost", ["ticks/frames/zarr.json", "starts/frames/zarr.json", "starts/.live"]
)
def test_what_only_the_files_of_uncompressed_frames_tell(crashed, ended, lost):
    model = crashed(RAW)
    lose(model.writer.path / lost)
    assert repaired(model.writer.path).lost == 0
    check_ticks(model, ended, model.writer.path, N_TICKS)


@pytest.mark.parametrize("frame", [LZ4, RAW], ids=["lz4", "raw"])
def test_without_the_state_of_the_ticks_those_of_the_last_flush_are_kept(crashed, ended, frame):
    model = crashed(frame)
    (model.writer.path / "ticks" / ".live" / "state").unlink()
    done = repaired(model.writer.path)
    assert (done.kept, done.lost, done.at_least) == (N_FLUSHED, 0, True)
    assert [note.startswith(UNKNOWN) for note in done.notes] == [True]
    check_ticks(model, ended, model.writer.path, N_FLUSHED)


@pytest.mark.parametrize("frame", [LZ4, RAW], ids=["lz4", "raw"])
def test_without_the_records_of_the_ticks_those_of_the_last_close_are_kept(crashed, ended, frame):
    model = crashed(frame, closed=True)
    lose(model.writer.path / "ticks" / ".live")
    done = repaired(model.writer.path)
    assert (done.kept, done.at_least) == (N_CLOSED, True)
    check_ticks(model, ended, model.writer.path, N_CLOSED)


@pytest.mark.parametrize("lost", ["ticks", "starts"])
def test_ticks_are_kept_up_to_what_was_in_a_lost_tail(crashed, ended, lost):
    model = crashed()
    path = model.writer.path
    logs = {log.path.name: log for log in VectorReader(path).logs}
    n_starts = len(model.episodes)
    stop = logs["ticks"].tail_start()
    if lost == "starts":
        n_starts = logs["starts"].tail_start()
        stop = int(np.argmax((model.columns("ticks")["episode"] >= n_starts).any(1)))
    assert 0 < stop < N_TICKS
    (path / lost / ".live" / "frames.tail").unlink()
    done = repaired(path)
    assert (done.kept, done.lost, done.at_least) == (stop, N_TICKS - stop, False)
    assert [note[:29] for note in done.notes] == ["starts: the newest ones are l"] * (
        lost == "starts"
    )
    check_ticks(model, ended, path, stop, n_starts)


@pytest.mark.parametrize("lost", [*DOCUMENTS, "starts/.live/state", "starts/.live"])
def test_rows_of_a_copy_after_its_last_flush_are_not_trusted(crashed, ended, tmp_path, lost):
    model = crashed(RAW)
    path = shutil.copytree(model.writer.path, tmp_path / "copy.zarr")
    lose(path / lost)
    done = repaired(path)
    assert (done.kept, done.untrusted) == (N_FLUSHED, N_TICKS - N_FLUSHED)
    n_starts = model.columns("ticks")["episode"][:N_FLUSHED].max() + 1
    check_ticks(model, ended, path, N_FLUSHED, n_starts)


def test_ticks_are_not_trusted_where_their_starts_are_not(crashed, ended):
    """As an fsync of starts that failed leaves them, the process killed before it said so twice."""
    model = crashed()
    path = model.writer.path
    State(path / "starts" / ".live" / "state", writable=True).distrust()
    (path / "ticks" / "rewards" / "zarr.json").unlink()
    done = repaired(path)
    assert (done.kept, done.untrusted) == (N_FLUSHED, N_TICKS - N_FLUSHED)
    n_starts = model.columns("ticks")["episode"][:N_FLUSHED].max() + 1
    check_ticks(model, ended, path, N_FLUSHED, n_starts)


@pytest.mark.parametrize("word", ["base", "tail_start"])
def test_a_state_page_of_ticks_that_says_what_cannot_be(crashed, ended, word):
    model = crashed()
    path = model.writer.path / "ticks" / ".live" / "state"
    words = np.memmap(path, "<u8", "r+")
    words[{"base": 2, "tail_start": 3}[word]] += 8
    words.flush()
    assert repaired(model.writer.path).lost == 0
    check_ticks(model, ended, model.writer.path, N_TICKS)


def test_a_log_of_a_crashed_lane_that_says_it_is_closed(crashed, ended):
    model = crashed()
    set_attributes(model.writer.path / "ticks" / "zarr.json", closed=True)
    assert repaired(model.writer.path).lost == 0
    check_ticks(model, ended, model.writer.path, N_TICKS)


def test_a_document_of_an_earlier_close_that_was_put_back(vector, kill, make, ended):
    model = vector(frame=LZ4)
    model.play(N_CLOSED)
    model.writer.close()
    path = model.writer.path
    earlier = (path / "zarr.json").read_bytes()
    model.reopened(make(append=True))
    model.play(N_TICKS - N_CLOSED)
    kill(model.writer)
    (path / "zarr.json").write_bytes(earlier)
    (path / "ticks" / "zarr.json").unlink()
    assert repaired(path).lost == 0
    check_ticks(model, ended, path, N_TICKS)


def test_a_log_of_another_lane_is_none_of_this_one(crashed, vector, kill):
    model, other = crashed(), vector(name="other.zarr", frame=LZ4)
    other.play(9)
    kill(other.writer)
    shutil.rmtree(model.writer.path / "starts")
    other.writer.path.joinpath("starts").rename(model.writer.path / "starts")
    shutil.rmtree(other.writer.path)
    assert_refused(model.writer.path, "starts: expected a log of this lane, uuid")


def test_a_log_of_a_newer_format_is_not_lost(crashed):
    path = crashed().writer.path
    set_attributes(path / "starts" / "zarr.json", sealed=True, format=2)
    before = contents(path)
    with pytest.raises(mmreplay.FormatError, match="a newer mmreplay may read it"):
        repair(path)
    assert contents(path) == before


@pytest.mark.parametrize("lost", [*DOCUMENTS, *PAGES, "ticks/.live/state"])
def test_a_crashed_lane_some_ticks_of_which_were_evicted(
    vector, kill, tmp_path, short_starts, lost
):
    model = vector(frame=LZ4, capacity=150)
    for _ in range(4):
        model.play(40)
        model.writer.flush()
    model.writer._background.finish_tasks()
    kill(model.writer)
    path, original = model.writer.path, tmp_path / "original.zarr"
    mmreplay.snapshot(path, original)
    lose(path / lost)
    assert repaired(path).lost == 0
    with mmreplay.open(original) as store:
        assert set(store.ids.tolist()) <= set(check_kept(path, original).tolist())
        assert store.lanes[0].base > 0
    assert attributes(path)["capacity"] == 150 or lost == "zarr.json"


def test_settings_of_a_lane_are_those_of_its_store_where_nothing_else_tells(vector, kill):
    model = vector(lane="many", frame=LZ4, capacity=10_000, metadata={"id": "Some-v0"})
    model.play(20)
    kill(model.writer)
    (model.writer.path / "zarr.json").unlink()
    done = repair(model.writer.path.parent)
    assert (done.kept, done.lost) == (20, 0)
    own = attributes(model.writer.path)
    assert (own["capacity"], own["env"]) == (10_000, {"id": "Some-v0"})


def test_a_closed_lane_without_its_own_document(closed_vector, ended):
    path = closed_vector.writer.path
    (path / "zarr.json").unlink()
    done = repaired(path)
    assert (done.kept, done.lost) == (70, 0)
    check_ticks(closed_vector, ended, path, 70)


@pytest.mark.parametrize(
    ("end", "lost"),
    [
        ("close", "zarr.json"),
        ("close", "ticks/rewards/zarr.json"),
        ("close, and damaged", "ticks/rewards/zarr.json"),
        ("kill", "zarr.json"),
        ("kill", "ticks/rewards/zarr.json"),
    ],
)
def test_priorities_and_random_state_are_kept(tmp_path, kill, end, lost):
    path = tmp_path / "store.zarr"
    settings = FIELDS | {"frame": LZ4, "lanes": 5, "flush_s": 0}
    buffer = mmreplay.PrioritizedReplayBuffer(path, **settings, stack=None)
    of_writer(buffer.writer).play(40)
    buffer.update_priorities(buffer.ids, 1 + np.arange(len(buffer)))
    buffer.sample(8)
    buffer.flush()
    ids, known = buffer.ids, buffer.priorities(buffer.ids)
    following = buffer.generator.bit_generator.state
    if end == "kill":
        kill(buffer)
    else:
        buffer.close()
    if "damaged" in end:
        flip(path / "ticks" / "priorities" / "c.0.0", 8 * 3)
        known[:] = known.max()  # as of new ones
    (path / lost).unlink()
    done = repair(path)
    assert (done.kept, done.lost) == (40, 0)
    assert any(note.startswith("priorities: ") for note in done.notes) == ("damaged" in end)
    with mmreplay.PrioritizedReplayBuffer(path, stack=None, flush_s=0) as again:
        assert again.ids.tolist() == ids.tolist()
        assert again.generator.bit_generator.state == following
        assert again.priorities(ids).tolist() == known.tolist()
