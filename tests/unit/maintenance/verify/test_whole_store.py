"""`verify`: sound stores, stores of many lanes, and any byte of any file."""

import gc
import os
import random
import shutil
import tracemalloc

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import FailedStoreError, Field, FormatError, StoreNotFoundError, verify
from tests.support.disks.trees import flip
from tests.support.effort import by_effort
from tests.support.tampering.findings import messages, texts

ACTION = Field((), "uint8", chunk=8)


def test_a_closed_store_is_sound(closed):
    report = verify(closed)
    assert (report.findings, report.warnings) == ([], [])
    assert report.sound
    assert (report.path, report.state, report.lanes, report.rows) == (str(closed), "closed", 1, 33)
    files = [path for path in closed.rglob("*") if path.is_file()]
    assert report.files == len(files)
    assert report.bytes == sum(path.stat().st_size for path in files)


def test_a_store_that_is_moved_meanwhile_is_read_where_it_is(closed, make):
    """Another has its path by then."""
    other = make("other.zarr")
    other.close()

    def move(*_):
        if other.path.exists():
            closed.rename(closed.with_name("moved.zarr"))
            other.path.rename(closed)

    report = verify(closed, move)
    assert (report.findings, report.rows) == ([], 33)


def test_a_store_that_is_removed_meanwhile_is_not_said_to_be_damaged(closed):
    with pytest.raises(FailedStoreError, match="this store was removed while it was open"):
        verify(closed, lambda *_: shutil.rmtree(closed, ignore_errors=True))


def test_an_empty_store_is_sound(make):
    writer = make()
    assert verify(writer.path).sound
    writer.close()
    report = verify(writer.path)
    assert report.sound
    assert report.rows == 0


def test_an_evicted_and_a_reopened_store_are_sound(make, story, evicted):
    report = verify(evicted)
    assert (report.findings, report.warnings) == ([], [])
    assert report.rows < 200
    writer = make(append=True)
    story.lanes[writer.path] = [{"step": 1}] * writer.rows
    story.reset(writer)
    assert verify(evicted).sound
    story.play(writer, 5, reset=False)
    writer.close()
    report = verify(evicted)
    assert (report.findings, report.warnings) == ([], [])


def test_verify_writes_nothing_and_its_progress_ends_at_the_total(lz4_store):
    def state():
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in lz4_store.rglob("*")
        }

    before, seen = state(), []
    verify(lz4_store, lambda done, total: seen.append((done, total)))
    assert state() == before
    assert {total for _, total in seen} == {seen[0][1]}
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_memory_is_that_of_a_chunk_not_of_the_store(make):
    frame = Field((1 << 16,), "uint8", "raw", chunk=16)
    writer = make(frame=frame)
    writer.reset(np.zeros(1 << 16, np.uint8))
    for row in range(12 * 16):
        writer.step(0, 0.0, np.full(1 << 16, row, np.uint8))
    writer.close()
    gc.collect()  # else what others left goes at some moment of this
    tracemalloc.start()
    assert verify(writer.path).sound
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 16 * (1 << 16)  # eight chunks of twelve


def test_a_path_without_a_store_is_an_error_not_a_finding(tmp_path):
    with pytest.raises(StoreNotFoundError, match="there is no store here"):
        verify(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FormatError, match="expected a directory, found a file"):
        verify(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError, match=r"no zarr\.json in it"):
        verify(tmp_path / "folder")
    zarr.create_group(tmp_path / "group")
    with pytest.raises(FormatError, match="a zarr group, but no mmreplay store"):
        verify(tmp_path / "group")


@pytest.mark.parametrize("place", ["", "frames/c.0.0", "checksums"])
def test_a_file_without_read_permission_is_an_error_not_a_finding(lz4_store, place, monkeypatch):
    real = os.access

    def access(path, mode, **more):
        return os.fspath(path) != str(lz4_store / place) and real(path, mode, **more)

    before = sorted(lz4_store.parent.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", access)
        with pytest.raises(StoreNotFoundError, match="may not be read: Permission denied"):
            verify(lz4_store)
    assert sorted(lz4_store.parent.rglob("*")) == before
    assert verify(lz4_store).sound


def everything(path):
    """All that a store says: its rows, what can be sampled, and what zarr reads."""
    out: list[object] = []
    with mmreplay.open(path) as store:
        for lane in store.lanes:
            out += [lane.rows, lane.first, lane.base]
        out += [store.ids.tobytes(), store.episodes.tobytes(), store.padding]
        batch = store.transitions(store.ids, stack=3, n_step=2)
        out += [batch.reward.tobytes(), batch.discount.tobytes()]
        now = batch.observation
        out += [one.tobytes() for one in (now.values() if isinstance(now, dict) else [now])]
        out += [one.tobytes() for one in batch.extras.values()]
    for name, member in sorted(zarr.open_group(path, mode="r").members(max_depth=None)):
        if isinstance(member, zarr.Array):
            out.append((name, member.shape, str(member.dtype), member[...].tobytes()))
    return out


def damage(data, generator):
    """One byte changed: in one bit, or to anything else."""
    at = generator.randrange(len(data))
    one_bit = data[at] ^ (1 << generator.randrange(8))
    data[at] = one_bit if generator.random() < 0.5 else generator.randrange(256)


@pytest.mark.parametrize("kind", ["raw", "dict", "lanes"])
def test_any_byte_changed_in_any_file_is_found_or_harmless(closed_store, make, story, kinds, kind):
    if kind == "lanes":
        writer = make(n_lanes=2, frame=kinds["zstd"], capacity=30)
        for _ in range(5):
            story.play(writer, 7, "truncated")
        writer.close()
        closed = writer.path
        files = [closed / "zarr.json", *sorted(closed.glob("lane-*/zarr.json"))]
    else:
        closed = closed_store(kind)
        files = sorted(path for path in closed.rglob("*") if path.is_file())
    before = everything(closed)
    generator = random.Random(kind)
    for _ in range(by_effort(6, 50, 500)):
        path = generator.choice(files)
        whole = path.read_bytes()
        data = bytearray(whole)
        damage(data, generator)
        path.write_bytes(data)
        try:
            report = verify(closed)
            found = report.findings + report.warnings
            assert found or everything(closed) == before, (path, data)
        except FormatError:
            assert path == closed / "zarr.json"  # it does not even look like a store
        finally:
            path.write_bytes(whole)


@pytest.fixture
def lanes(copy_of, make, story, kinds):
    """A closed store of three lanes."""

    def make_it():
        writers = [make("run.zarr", lane=name, frame=kinds["lz4"], action=ACTION) for name in "abc"]
        for writer in writers:
            story.play_every_end(writer)
            writer.close()
        return writers[0].path.parent

    return copy_of("lanes", make_it)


def test_a_finding_names_its_lane(lanes):
    flip(lanes / "lane-00001" / "rewards" / "c.1", 3)
    (finding,) = verify(lanes).findings
    assert (finding.lane, finding.file) == ("lane-00001", "lane-00001/rewards/c.1")
    (lanes / "zarr.json").write_bytes(b"{")
    assert {one.file for one in verify(lanes).findings} == {"zarr.json", "lane-00001/rewards/c.1"}


def test_a_lane_that_is_missing(lanes):
    shutil.rmtree(lanes / "lane-00001")
    assert texts(verify(lanes)) == [
        "lane-00001: expected a lane of this number, as there are later ones; it is missing"
    ]


def test_a_lane_that_is_a_copy_of_another(lanes):
    shutil.rmtree(lanes / "lane-00002")
    shutil.copytree(lanes / "lane-00001", lanes / "lane-00002")
    name, uuid = messages(lanes, "lane-00002/zarr.json")
    assert name == "name: expected one of its own, found 'b' as in lane-00001"
    assert uuid.startswith("uuid: expected one of its own")


def test_a_lane_with_another_schema_than_its_store(lanes, make, story, kinds):
    other = make("other.zarr", lane="d", frame=kinds["raw"], action=Field((2,), chunk=8))
    story.play_every_end(other)
    other.close()
    shutil.rmtree(lanes / "lane-00002")
    shutil.copytree(other.path, lanes / "lane-00002")
    (found,) = messages(lanes, "lane-00002/zarr.json")
    assert found.startswith("schema: expected that of the store, found {")


def test_a_foreign_file_between_the_lanes(lanes):
    (lanes / "notes.txt").write_text("x")
    (lanes / ".lane-00003.tmp").mkdir()
    assert [one.file for one in verify(lanes).findings] == ["notes.txt"]


def test_a_store_in_the_place_of_a_lane(lanes, make):
    shutil.rmtree(lanes / "lane-00002")
    other = make("other.zarr", lane="d")
    other.close()
    shutil.copytree(other.path.parent, lanes / "lane-00002")
    assert messages(lanes, "lane-00002/zarr.json")[0] == "expected a lane, found a store of lanes"
