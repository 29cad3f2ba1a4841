"""Packing: one closed store from others, whole or not at all, and its sources as they were.

What each row holds is compared with the oracle in tests/property/test_pack.py.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    DiskFullError,
    EmptyBufferError,
    FailedStoreError,
    Field,
    MmreplayError,
    PrioritizedReplayBuffer,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    pack,
    verify,
)
from mmreplay.system import platform
from tests.support.disks.faults import ALLOCATING, SYNCING, faulty_disk
from tests.support.disks.trees import contents, flip, names
from tests.support.oracle.checks import check_copy
from tests.support.writers import attributes

ACTION = Field((), "int64", chunk=8)
LZ4 = Field((3,), "uint8", "lz4", chunk=4, shard=8)


def chunks(path):
    """The names and bytes of the chunk files below a directory."""
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("c.*")}


@pytest.fixture
def store(make, story):
    """Makes a closed store of 37 rows a lane: `store(name, **of_create)`."""

    def create(name="store.zarr", **changes):
        writer = make(name, **({"frame": LZ4, "action": ACTION} | changes))
        story.play_every_end(writer)
        writer.close()
        return writer.path

    return create


def test_frames_that_keep_their_codec_are_copied_as_they_are(store, tmp_path, monkeypatch):
    path = store()
    monkeypatch.setattr("mmreplay.format.compression.decode", None)
    monkeypatch.setattr("mmreplay.format.compression.encode", None)
    made = pack(path, tmp_path / "packed.zarr")
    assert chunks(tmp_path / "packed.zarr") == chunks(path)
    assert (made.lanes, made.rows, made.transitions, made.episodes) == (1, 37, 33, 3)
    assert (made.left_out, made.source_bytes > 0, made.bytes_on_disk > 0) == (0, True, True)


def test_inner_chunks_are_copied_as_they_are_into_longer_shards(store, tmp_path, monkeypatch):
    path = store()
    monkeypatch.setattr("mmreplay.format.compression.decode", None)
    monkeypatch.setattr("mmreplay.format.compression.encode", None)
    pack(path, tmp_path / "packed.zarr", shard_frames=32)
    monkeypatch.undo()
    assert len(list((tmp_path / "packed.zarr" / "frames").glob("c.*"))) == 2
    assert verify(tmp_path / "packed.zarr").findings == []


def test_a_copy_shares_no_file_with_its_source(store, make, story, tmp_path):
    live = make("live.zarr", frame=LZ4, action=ACTION)
    story.play_every_end(live)
    live.flush()
    for source in (store(), live.path):
        target = tmp_path / f"of-{source.name}"
        pack(source, target)
        files = [one for one in target.rglob("*") if one.is_file()]
        assert {one.stat().st_nlink for one in files} == {1}


def test_attributes_are_kept(make, story, tmp_path):
    about = {"id": "Test-v0", "seeds": [3]}
    writer = make(
        "run.zarr", lane="actor-3", capacity=90, padding="zero", metadata=about, frame=LZ4
    )
    story.play(writer, 9, "terminated")
    writer.close()
    pack(tmp_path / "run.zarr", tmp_path / "packed.zarr")
    pack([tmp_path / "run.zarr"] * 2, tmp_path / "twice.zarr")
    own, source = attributes(tmp_path / "packed.zarr" / "lane-00000"), attributes(writer.path)
    assert own.pop("uuid") != source.pop("uuid")
    assert own.pop("crc32c") != source.pop("crc32c")
    assert own == source
    lanes = [tmp_path / "twice.zarr" / name for name in ("lane-00000", "lane-00001")]
    assert [attributes(lane)["name"] for lane in lanes] == ["actor-3", "actor-3-2"]
    for lane in lanes:
        check_copy(lane)
    root = attributes(tmp_path / "packed.zarr")
    assert (root["kind"], root["env"], root["padding"]) == ("lanes", about, "zero")
    with mmreplay.create(tmp_path / "packed.zarr", lane="actor-3", append=True) as again:
        assert again.rows == 10


def test_several_environments_are_all_named(make, story, tmp_path):
    paths = [tmp_path / name for name in ("a.zarr", "b.zarr")]
    for path, env_id in zip(paths, ("Pong", "Tennis"), strict=True):
        about = {"id": env_id, "action_names": ["NOOP", env_id], "life_loss": False}
        writer = make(path.name, metadata=about, frame=LZ4)
        story.play(writer, 9, "terminated")
        writer.close()
    for sources, known in (
        (paths, {"id": "Pong, Tennis", "life_loss": False}),
        (paths[1:] * 2, about),
    ):
        target = tmp_path / f"{len(known)}.zarr"
        pack(sources, target)
        with mmreplay.open(target) as store:
            assert store.info()["env"] == known


def test_priorities_and_random_state_stay_with_all_rows(tmp_path, quick_disk):
    with PrioritizedReplayBuffer(
        tmp_path / "store.zarr", frame=LZ4, action=ACTION, stack=None, flush_s=0
    ) as buffer:
        buffer.reset([0, 0, 0])
        for t in range(30):
            buffer.step(t, 1.0, np.full(3, t, np.uint8), truncated=t == 29)
        batch = buffer.sample(8)
        buffer.update_priorities(batch.id, np.arange(1.0, 9.0))
    pack(tmp_path / "store.zarr", tmp_path / "all.zarr", "zstd")
    pack(tmp_path / "store.zarr", tmp_path / "some.zarr", episodes=[0])
    twins = [
        PrioritizedReplayBuffer(tmp_path / name, stack=None, flush_s=0)
        for name in ("store.zarr", "all.zarr")
    ]
    first, second = (twin.sample(16) for twin in twins)
    assert np.array_equal(first.id, second.id)
    assert np.array_equal(first.weight, second.weight)
    for twin in twins:
        twin.close()
    assert not (tmp_path / "some.zarr" / "priorities").exists()
    assert "generator" not in attributes(tmp_path / "some.zarr")
    assert verify(tmp_path / "all.zarr").findings == []
    for name in ("all.zarr", "some.zarr"):
        check_copy(tmp_path / name)


def test_many_environments_and_their_priorities(vector, tmp_path):
    model = vector(frame=LZ4)
    model.play(60)
    model.writer.close()
    with PrioritizedReplayBuffer(model.writer.path, stack=None, flush_s=0) as buffer:
        buffer.update_priorities(buffer.ids[:50], np.arange(1.0, 51.0))
    pack(model.writer.path, tmp_path / "packed.zarr")
    assert chunks(tmp_path / "packed.zarr") == chunks(model.writer.path)
    assert verify(tmp_path / "packed.zarr").findings == []
    check_copy(tmp_path / "packed.zarr")


def test_sources_stand_side_by_side_with_one_layout(store, make, story, tmp_path):
    """Frames of another codec are compressed as the first source's are."""
    zstd = Field((3,), "uint8", "zstd", chunk=2, shard=4)
    raw = Field((3,), "uint8", "raw", chunk=8)
    paths = [store("a.zarr"), store("b.zarr", frame=zstd), store("c.zarr", frame=raw, n_lanes=2)]
    target = tmp_path / "packed.zarr"
    made = pack(paths, target)
    assert (made.lanes, made.transitions) == (4, 4 * 33)
    assert verify(target).findings == []
    lanes = sorted(target.glob("lane-*"))
    sources = [paths[0], paths[1], paths[2] / "lane-00000", paths[2] / "lane-00001"]
    for lane, source in zip(lanes, sources, strict=True):
        assert json.loads((lane / "frames" / "zarr.json").read_text()) == json.loads(
            (lanes[0] / "frames" / "zarr.json").read_text()
        )
        story.copy(source, lane)
    with mmreplay.open(target) as copy:
        story.check(copy)


@pytest.mark.parametrize(
    "options", [{}, {"shard_frames": 64}, {"codec": "zstd"}, {"codec": "raw"}], ids=str
)
def test_what_was_evicted_stays_away(make, story, tmp_path, options):
    writer = make(frame=LZ4, action=ACTION, capacity=40)
    story.play(writer, 200, "terminated")
    writer.close()
    base, target = writer.base, tmp_path / "packed.zarr"
    pack(writer.path, target, **options)
    assert base > 64
    assert verify(target).findings == []
    story.copy(writer.path, target)
    with mmreplay.open(target) as copy, mmreplay.open(writer.path) as source:
        assert copy.lanes[0].base == base
        assert np.array_equal(copy.ids, source.ids)
        story.check(copy, start=base)


def test_episodes_of_raw_and_of_compressed_frames(store, tmp_path):
    raw = Field((3,), "uint8", "raw", chunk=8)
    made = pack(
        [store("a.zarr", frame=raw), store("b.zarr")], tmp_path / "packed.zarr", episodes=[1, 5]
    )
    assert (made.lanes, made.episodes, made.left_out) == (2, 2, 4)
    with mmreplay.open(tmp_path / "packed.zarr") as copy:
        assert copy.episodes["length"].tolist() == [11, 13]
        assert copy.info()["fields"]["frames"]["codec"] == "raw"


def test_a_packed_store_can_be_written(store, story, tmp_path):
    path = store(capacity=30)
    pack(path, tmp_path / "packed.zarr", "zstd:3", shard_frames=16)
    before = contents(path)
    story.copy(path, tmp_path / "packed.zarr")
    with mmreplay.create(tmp_path / "packed.zarr", append=True, flush_s=0) as writer:
        story.play(writer, 40, "terminated")
        base = writer.base
    with mmreplay.open(tmp_path / "packed.zarr") as again:
        story.check(again, start=base)
    assert contents(path) == before


def test_workers_and_progress(store, tmp_path):
    path, seen = store(), []
    pack(path, tmp_path / "one.zarr", "zstd", workers=1, progress=lambda *both: seen.append(both))
    pack(path, tmp_path / "many.zarr", "zstd", workers=7)
    assert chunks(tmp_path / "one.zarr") == chunks(tmp_path / "many.zarr")
    done, total = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == total[-1] > 37 * 3


# ---------------------------------------------------------------- processes

PROCESSES = """
import json, os, signal, sys, threading
import numpy as np, mmreplay
from mmreplay.maintenance import packed_log
from mmreplay.system import forks, worker_processes

path, target = sys.argv[1:3]
parent, children, fork, encode = os.getpid(), [], os.fork, packed_log.compression.encode

def counted():
    pid = fork()
    if pid:
        children.append(pid)
    return pid

def in_a_child(do):
    # Once a child is at work on a shard; this process waits for it.
    def changed(codec, part):
        if os.getpid() == parent:
            signal.sigtimedwait([], 0.01)
        else:
            do()
        return encode(codec, part)
    packed_log.compression.encode = changed

def check_ended():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise AssertionError("a child is left")

os.fork = counted
"""


@pytest.fixture
def large(tmp_path, quick_disk):
    """A closed store of 74 MB of frames, of many shards, in two lanes."""
    path = tmp_path / "store.zarr"
    frame = Field((64, 64), "uint8", "lz4", chunk=16, shard=1024)
    frames = np.arange(8 * 64 * 64).reshape(8, 64, 64).astype(np.uint8)
    for lane in ("a", "b"):
        with mmreplay.create(path, frame, Field((), "int64"), lane=lane, append=True) as writer:
            writer.reset(frames[0])
            for t in range(9_000):
                writer.step(t, 1.0, frames[t % 8], t % 100 == 99)
                if t % 100 == 99:
                    writer.reset(frames[1])
    return path


needs_fork = pytest.mark.skipif(not platform.LINUX, reason="forks on Linux only")


@needs_fork
def test_processes_write_what_one_thread_writes(large, tmp_path, child):
    code = """
for kind, options in {"all": {"codec": "zstd"}, "some": {"episodes": range(1, 175)}}.items():
    for workers in (1, 2, 4) if kind == "all" else (1, 4):
        seen = []
        mmreplay.pack(path, f"{target}-{kind}-{workers}", workers=workers,
                      progress=lambda *both: seen.append(both), **options)
        assert len(children) == workers - 1
        done, total = zip(*seen)
        assert list(done) == sorted(done) and done[-1] == total[-1] and len(seen) > 15
        check_ended()
        children.clear()
mmreplay.pack(path, f"{target}-as-it-is", workers=4)
assert not children  # to copy
assert forks.lineage() == () and forks._n_children == 0
"""
    child(PROCESSES + code, large, tmp_path / "packed")
    for several, one in (("all-2", "all-1"), ("all-4", "all-1"), ("some-4", "some-1")):
        packed = tmp_path / f"packed-{several}"
        assert chunks(packed) == chunks(tmp_path / f"packed-{one}")
        assert verify(packed).findings == []


@needs_fork
def test_threads_where_there_are_some_already(large, tmp_path, child):
    code = """
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
mmreplay.pack(path, target, "zstd", workers=4)
end.set()
thread.join()
assert not children
"""
    child(PROCESSES + code, large, tmp_path / "packed.zarr")
    assert verify(tmp_path / "packed.zarr").findings == []


@needs_fork
@pytest.mark.parametrize(
    ("does", "raises", "text"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "FailedStoreError", "was ended by signal 9"),
        ("os.kill(parent, signal.SIGINT)", "KeyboardInterrupt", ""),
        ("os.open('/none', 0)", "FileNotFoundError", "/none"),
    ],
)
def test_what_happens_to_a_child_leaves_nothing(large, tmp_path, child, does, raises, text):
    code = f"""
in_a_child(lambda: {does})
try:
    mmreplay.pack(path, target, "zstd", workers=3)
except BaseException as error:
    print(type(error).__name__, error)
assert len(children) == 2
check_ended()
"""
    shown = child(PROCESSES + code, large, tmp_path / "packed.zarr")
    assert shown.startswith(raises)
    assert text in shown
    assert names(tmp_path) == ["store.zarr"]


@needs_fork
def test_damage_that_a_child_finds_is_told_with_its_path(large, tmp_path, child):
    flip(large / "lane-00001" / "frames" / "c.3.0.0")
    code = """
in_a_child(lambda: None)
try:
    mmreplay.pack(path, target, "zstd", workers=2)
except mmreplay.CorruptStoreError as error:
    print(error)
assert len(children) == 1
check_ended()
"""
    shown = child(PROCESSES + code, large, tmp_path / "packed.zarr")
    with pytest.raises(CorruptStoreError) as caught:
        pack(large, tmp_path / "packed.zarr", "zstd", workers=1)
    assert shown == str(caught.value)
    assert "lane-00001/frames/c.3.0.0: inner chunk 0" in shown
    assert names(tmp_path) == ["store.zarr"]


@needs_fork
def test_a_pack_that_is_killed_leaves_no_process_and_the_next_one_no_directory(large, tmp_path):
    code = """
in_a_child(lambda: (print(os.getpid(), flush=True), os.kill(parent, signal.SIGKILL)))
mmreplay.pack(path, target, "zstd", workers=2)
"""
    command = [sys.executable, "-c", PROCESSES + code, str(large), str(tmp_path / "packed.zarr")]
    # The output ends with the last process that has it.
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout
    assert len(names(tmp_path)) == 2
    pack(large, tmp_path / "packed.zarr")
    assert names(tmp_path) == ["packed.zarr", "store.zarr"]


# ---------------------------------------------------------------- refused


def test_what_differs_is_named(store, tmp_path):
    first = store("a.zarr")
    others = {
        r"frames: expected \(3,\) uint8, found \(4,\) uint8": {"frame": Field((4,), "uint8")},
        r"actions: expected \(\) int64, found \(2,\) int64": {"action": Field((2,), "int64")},
        r"rewards: expected \(\) float32, found \(\) float64": {"reward_dtype": "float64"},
        r"extras/x: found, and expected no such field": {"extras": {"x": Field(())}},
    }
    for number, (text, changes) in enumerate(others.items()):
        other = store(f"{number}.zarr", **changes)
        with pytest.raises(SchemaError, match=rf"{number}\.zarr: {text}, as in .*a\.zarr"):
            pack([first, other], tmp_path / "packed.zarr")
    with pytest.raises(SchemaError, match="expected extras/x, found no such field"):
        pack([other, first], tmp_path / "packed.zarr")
    assert not (tmp_path / "packed.zarr").exists()


def test_targets_and_sources_that_cannot_be(store, tmp_path):
    path = store()
    (tmp_path / "file").write_text("mine")
    before = names(tmp_path)
    for target in (path, tmp_path / "file"):
        with pytest.raises(StoreExistsError, match="there is something already"):
            pack(path, target)
    with pytest.raises(SchemaError, match=r"lies within the store .*store\.zarr"):
        pack(path, path / "frames" / "packed.zarr")
    with pytest.raises(StoreNotFoundError, match="no such directory"):
        pack(path, tmp_path / "nowhere" / "packed.zarr")
    with pytest.raises(StoreNotFoundError, match="there is no store here"):
        pack([path, tmp_path / "nothing.zarr"], tmp_path / "packed.zarr")
    with pytest.raises(SchemaError, match="expected a store or more, found none"):
        pack([], tmp_path / "packed.zarr")
    with pytest.raises(SchemaError, match="sources: expected a path"):
        pack(None, tmp_path / "packed.zarr")
    with pytest.raises(SchemaError, match="workers"):
        pack(path, tmp_path / "packed.zarr", workers=0)
    assert names(tmp_path) == before


def test_no_episode_is_wanted(store, tmp_path):
    path = store()
    before = names(tmp_path)
    with pytest.raises(EmptyBufferError, match="none of 3 whole episodes is wanted"):
        pack(path, tmp_path / "packed.zarr", min_return=1e9)
    assert names(tmp_path) == before


@pytest.mark.parametrize("array", ["frames", "rewards"])
@pytest.mark.parametrize("options", [{}, {"codec": "zstd"}, {"episodes": [0, 2]}], ids=str)
def test_damaged_rows_are_not_packed(store, tmp_path, array, options):
    path = store()
    file = path / array / "c.0" if array == "rewards" else path / array / "c.0.0"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptStoreError, match="mmreplay verify"):
        pack(path, tmp_path / "packed.zarr", **options)
    assert names(tmp_path) == ["store.zarr"]


def test_a_file_without_a_checksum_is_not_packed(store, tmp_path):
    path = store()
    (path / "checksums" / "frames" / "c.0").unlink()
    with pytest.raises(CorruptStoreError, match="mmreplay repair"):
        pack(path, tmp_path / "packed.zarr")


# ---------------------------------------------------------------- cut off, or changed meanwhile


@pytest.mark.parametrize("options", [{}, {"codec": "zstd"}], ids=str)
def test_a_full_disk_leaves_nothing(store, tmp_path, options):
    path = store()
    before, n_failed = contents(path), 0
    for at in range(1, 1000, 7):
        with faulty_disk() as disk:
            disk.fail(ALLOCATING, errno.ENOSPC, at=at, forever=True)
            try:
                pack(path, tmp_path / "packed.zarr", **options)
            except DiskFullError:
                n_failed += 1
            else:
                break
        assert names(tmp_path) == ["store.zarr"]
    assert n_failed > 5
    assert contents(path) == before
    assert verify(tmp_path / "packed.zarr").findings == []


def test_a_failing_disk_leaves_nothing(store, tmp_path):
    path, n_failed = store(), 0
    for at in range(1, 1000, 11):
        with faulty_disk() as disk:
            disk.fail({"write", "mkdir", "rename"} | SYNCING, errno.EIO, at=at)
            try:
                pack(path, tmp_path / "packed.zarr")
            except FailedStoreError:
                n_failed += 1
            failed = disk.hits
        # What the last sync is for has its name already.
        assert "packed.zarr" not in names(tmp_path) or verify(tmp_path / "packed.zarr").sound
        shutil.rmtree(tmp_path / "packed.zarr", ignore_errors=True)
        assert names(tmp_path) == ["store.zarr"]
        if not failed:
            break
    assert n_failed > 3


def test_interrupted_it_leaves_nothing(store, tmp_path):
    path = store()

    def interrupt(done, _):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(path, tmp_path / "packed.zarr", "zstd", progress=interrupt)
    assert names(tmp_path) == ["store.zarr"]


def test_a_source_that_is_opened_meanwhile_is_packed_as_it_is_then(store, story, tmp_path):
    path, writers = store(), []

    def write(*_):
        if not writers:
            writers.append(mmreplay.create(path, append=True, flush_s=0))
            story.play(writers[0], 11, "terminated")

    target = tmp_path / "packed.zarr"
    pack(path, target, progress=write)
    story.copy(path, target)
    writers[0].close()
    with mmreplay.open(target) as copy:
        assert len(copy) == 33 + 11
        story.check(copy)


def test_a_source_that_is_removed_meanwhile_is_missed(store, tmp_path):
    path = store()
    with pytest.raises(MmreplayError, match=r"was removed while it was open|no store here"):
        pack(path, tmp_path / "packed.zarr", progress=lambda *_: shutil.rmtree(path, True))
    assert names(tmp_path) == []


def test_a_source_that_evicts_meanwhile(make, story, tmp_path):
    writer, bases = make(frame=LZ4, action=ACTION, capacity=100), []
    story.play(writer, 200, "terminated")
    writer.flush()

    def write(*_):
        if len(bases) < 5:
            story.play(writer, 60, "terminated")
            writer.flush()
            bases.append(writer.base)

    pack([writer.path, writer.path], tmp_path / "packed.zarr", progress=write)
    assert verify(tmp_path / "packed.zarr").findings == []
    assert len(set(bases)) > 3
    with mmreplay.open(tmp_path / "packed.zarr") as copy:
        assert len(copy) == 200


def test_what_another_that_died_has_left_is_swept_up(store, tmp_path):
    path = store()
    left = tmp_path / ".packed.zarr.0123abcd.tmp"
    left.mkdir()
    (left / "something").write_text("")
    pack(path, tmp_path / "packed.zarr")
    assert names(tmp_path) == ["packed.zarr", "store.zarr"]
    assert os.access(path, os.R_OK)
