"""A lane of many environments, read-only: closed, live, left by a crash, or damaged."""

import json
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.reading import log_reader
from mmreplay.reading.lane_ticks import LaneTicks
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.state_page import COMMITTED, State
from mmreplay.system import platform
from tests.support.oracle.handmade_vectors import episodes_of
from tests.support.oracle.vector_pair import FIELDS, of_writer

WIDTH = 3


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(log_reader, "_PATIENCE_S", 0)


def edit(path, change):
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def own(document):
    return document["attributes"]["mmreplay"]


def assert_reads(lane):
    """Every column is as it was written, from the oldest tick kept on."""
    with mmreplay.open(lane.path) as store:
        view, base, ticks = store.lanes[0], lane.base["ticks"], lane.ticks
        frames = view.frames
        found = {"actions": view.actions, "rewards": view.rewards, "ends": view.ends}
        found |= {"non_terminals": view.non_terminals, "episode": view.episode}
        found |= {f"extras/{name}": one for name, one in view.extras.items()}
        found |= (
            {f"frames/{key}": one for key, one in frames.items()}
            if isinstance(frames, dict)
            else {"frames": frames}
        )
        assert found.keys() == ticks.keys() - {"count"}
        for path, column in found.items():
            assert column.shape == ticks[path].shape, path
            assert column.dtype == ticks[path].dtype, path
            assert column[base:].tobytes() == ticks[path][base:].tobytes(), path
            assert not column[:base].any()


@pytest.mark.parametrize("closed", [(), ("starts",), ("starts", "ticks"), ("ticks",)])
@pytest.mark.parametrize("kind", ["raw", "lz4", "dict"])
def test_any_mix_of_open_and_closed_logs_reads_as_it_was_written(vector, kind, closed):
    lane = vector(kind)
    if closed:
        lane.close(closed)
    assert_reads(lane)
    reader = VectorReader(lane.path)
    assert (reader.head, reader.base, reader.width) == (60, 0, WIDTH)
    assert reader.is_closed == (len(closed) == 2)
    assert reader.is_live == ("ticks" not in closed)


def test_a_row_that_only_the_starts_have_is_no_tick(vector):
    lane = vector()
    known = lane.ticks["rewards"]
    lane.play(5)
    lane.commit(ticks=False)
    with mmreplay.open(lane.path) as store:
        assert np.array_equal(store.rewards[:], known)
        lane.commit()
        assert np.array_equal(store.rewards[:], lane.ticks["rewards"])


def test_the_ticks_word_is_taken_before_that_of_the_starts(vector, monkeypatch):
    lane = vector(n_ticks=2)
    reader = VectorReader(lane.path)
    order = []
    real = log_reader.LogReader.poll

    def poll(self):
        order.append(self.path.name)
        return real(self)

    monkeypatch.setattr(log_reader.LogReader, "poll", poll)
    assert reader.poll()
    assert order == ["ticks", "starts"]


def test_steps_that_come_while_a_lane_is_opened_have_their_starts(make, monkeypatch):
    pair = of_writer(make("store.zarr", **(FIELDS | {"lanes": WIDTH})))
    check = VectorReader._check_codecs

    def act_and_check(reader):
        pair.play(3)
        check(reader)

    monkeypatch.setattr(VectorReader, "_check_codecs", act_and_check)
    reader = VectorReader(pair.writer.path)
    assert (reader.head, reader.starts.head) == (3, len(pair.episodes))


@pytest.mark.parametrize("log", ["ticks", "starts"])
def test_a_session_that_is_over_in_either_log_is_noticed(vector, log):
    lane = vector()
    reader = VectorReader(lane.path)
    assert reader.poll()
    assert not reader.replaced()
    lane.states[log].renew()
    assert not reader.poll()
    assert reader.replaced()
    reader.load()
    assert reader.poll()
    reader.leave_session()
    assert not reader.poll()


def test_a_store_that_is_closed_while_it_is_read_goes_on(vector):
    lane = vector("lz4")
    with mmreplay.open(lane.path) as store:
        assert store.lanes[0].rows == 60
        lane.play(5)
        lane.close()
        assert np.array_equal(store.lanes[0].rewards[:], lane.ticks["rewards"])
        assert store.live.readers[0].is_closed


@pytest.mark.parametrize("at", range(1, 26, 3))
@pytest.mark.parametrize("logs", [("starts",), ("starts", "ticks")])
def test_a_lane_that_is_closed_between_any_two_reads_of_the_opening_opens(
    vector, between_reads, at, logs
):
    lane = vector("lz4", n_ticks=30)
    lane.play(3)
    with between_reads(lane.path, at, lambda: lane.close(logs)) as store:
        assert store.rewards[:].tolist() == lane.ticks["rewards"][: len(store.rewards)].tolist()
        assert [tuple(one)[:3] for one in store.episodes.tolist()] == [
            one[:3] for one in episodes_of(lane)
        ][: len(store.episodes)]
        assert len(store.rewards) == (33 if "ticks" in logs else 30)


def test_a_crashed_lane_of_another_boot_reads_to_its_checkpoint(vector, monkeypatch):
    lane = vector("lz4", n_ticks=10)
    monkeypatch.setattr(platform, "boot_id", lambda: b"another boot id!")
    reader = VectorReader(lane.path)
    assert (reader.head, reader.is_live, reader.untrusted) == (0, False, 10)
    with mmreplay.open(lane.path) as store:
        assert len(store) == len(store.episodes) == 0


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("log", ["ticks", "starts"])
def test_a_log_that_is_missing_is_named(vector, log):
    lane = vector()
    lane.close()
    shutil.rmtree(lane.path / log)
    with pytest.raises(
        FormatError, match=f"{log}: missing; a lane of many environments has its logs"
    ):
        mmreplay.open(lane.path)


@pytest.mark.parametrize("log", ["ticks", "starts"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: own(d).update(uuid="0" * 32), "found one of another lane"),
        (lambda d: own(d).update(kind="vector", capacity=None, padding="reset", width=3), "a log"),
    ],
)
def test_a_log_of_something_else_is_refused(vector, log, change, match):
    lane = vector()
    lane.close()
    edit(lane.path / log / "zarr.json", change)
    with pytest.raises(FormatError, match=match):
        mmreplay.open(lane.path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: own(d).update(width=4), r"expected rows of \(4, 3\) uint8"),
        (lambda d: own(d).update(width=0), "width: expected 1 to"),
        (lambda d: own(d)["schema"]["frame"].update(shape=[4]), "as the schema says"),
        (lambda d: own(d).update(kind="lane", rows=1, first=0, closed=True), r"missing|as the"),
    ],
)
def test_another_width_or_schema_is_refused(vector, change, match):
    lane = vector()
    lane.close()
    edit(lane.path / "zarr.json", change)
    with pytest.raises(FormatError, match=match):
        mmreplay.open(lane.path)


def test_frames_of_ticks_and_starts_have_one_kind_of_codec(vector, tmp_path):
    lane, other = vector("lz4"), vector("raw", name="other.zarr")
    lane.close()
    other.close()
    shutil.rmtree(lane.path / "starts" / "frames")
    shutil.copytree(other.path / "starts" / "frames", lane.path / "starts" / "frames")
    with pytest.raises(FormatError, match="expected ticks and starts both raw, or both compressed"):
        mmreplay.open(lane.path)


def test_more_cells_than_ids_are_refused(vector):
    lane = vector("raw", width=4, n_ticks=3)
    lane.states["ticks"].words[COMMITTED] = 1 << 38
    with pytest.raises(CorruptStoreError, match="expected fewer than 2"):
        VectorReader(lane.path)


def test_a_log_is_no_store(vector):
    lane = vector()
    with pytest.raises(FormatError, match="a log of a lane of many environments"):
        mmreplay.open(lane.path / "ticks")


# ---------------------------------------------------------------- cells


def test_cells_are_missing_where_their_ticks_are(vector):
    lane = vector(n_ticks=100, capacity=5)
    cells = VectorReader(lane.path).cells
    path = lane.path / "ticks" / "rewards" / "c.0.0"
    assert isinstance(cells.missing(path, 8 * WIDTH), CorruptStoreError)
    lane.evict(30)
    assert isinstance(cells.missing(path, 30 * WIDTH), EvictedError)
    assert isinstance(cells.missing(path, 30 * WIDTH + 1), CorruptStoreError)


@pytest.mark.parametrize("kind", ["raw", "lz4"])
def test_evicted_ticks_read_as_zeros(vector, kind):
    lane = vector(kind, n_ticks=120, capacity=50)
    lane.evict(40)
    assert_reads(lane)
    lane.close()
    assert_reads(lane)


def test_one_environment_is_a_vector_lane_as_well(vector):
    lane = vector("lz4", width=1)
    assert_reads(lane)


def test_a_frame_of_any_shape_is_a_frame_after_a_step(tmp_path, vector):
    lane = vector("dict", width=2)
    with mmreplay.open(lane.path) as store:
        speed = store.frames["speed"]
        assert speed.shape == (60, 2, 2)
        assert np.array_equal(speed[5, 1], lane.ticks["frames/speed"][5, 1])


def test_a_lane_that_is_closed_again_while_it_is_opened_is_read_as_it_is_then(vector, monkeypatch):
    lane = vector()
    lane.close()
    real, left = LaneTicks.refresh, [1]

    def refresh(self):
        if left[0]:
            left[0] -= 1
            edit(lane.path / "ticks" / "zarr.json", lambda d: own(d).update(rows=59))
        real(self)

    monkeypatch.setattr(LaneTicks, "refresh", refresh)
    with mmreplay.open(lane.path) as store:
        assert store.lanes[0].rows == 59


# ---------------------------------------------------------------- which logs are trusted


@pytest.fixture
def distrusted(make, kill):
    """A lane of 10 ticks that are durable and 20 that are not; the state of its starts is lost."""
    model = of_writer(make(**FIELDS, lanes=WIDTH))
    model.play(10)
    model.writer.flush()
    model.play(20)
    path = model.writer.path
    kill(model.writer)
    reader = VectorReader(path)
    assert (reader.head, reader.is_live) == (30, True)
    State(path / "starts" / ".live" / "state", writable=True).distrust()
    return path


def test_ticks_are_trusted_only_with_their_starts_as_an_opening_for_writing_does(distrusted, make):
    reader = VectorReader(distrusted)
    assert (reader.head, reader.is_live, reader.untrusted) == (10, False, 20)
    assert reader.poll()
    with mmreplay.open(distrusted) as store:
        found, episodes = store.rewards[:].tolist(), store.episodes.tolist()
        assert len(found) == 10
    writer = make(append=True)
    assert writer.rows == 10
    writer.close()
    with mmreplay.open(distrusted) as store:
        assert store.rewards[:].tolist() == found
        assert store.episodes.tolist() == episodes


def test_a_reader_follows_once_starts_that_were_not_trusted_are_recovered(distrusted, make):
    frames, ends = np.zeros((WIDTH, 3), "f4"), np.zeros(WIDTH, bool)
    with mmreplay.open(distrusted) as store:
        assert len(store.rewards) == 10
        writer = make(append=True)
        writer.reset(frames)
        writer.step([1] * WIDTH, [2] * WIDTH, frames, ends, ends, x=[0] * WIDTH)
        assert store.rewards[10].tolist() == [2] * WIDTH
