"""A store that was pushed and pulled is the same store, and little is sent twice."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

import mmreplay
from mmreplay import CorruptStoreError, LockedError, SchemaError, StoreExistsError
from tests.support.archives import KINDS, Requests, assert_same, begin, contents, write
from tests.support.numbered_steps import ACTION, CODECS, play
from tests.support.writers import go_on


@pytest.fixture(params=["memory", "file"])
def target(request, tmp_path):
    """Something to push to; each time it is asked for the same."""
    return MemoryStore() if request.param == "memory" else f"file://{tmp_path}/archive"


@pytest.fixture
def requests(monkeypatch):
    return Requests(monkeypatch)


def sizes(target):
    store = target if isinstance(target, MemoryStore) else obstore.store.from_url(target)
    return {one["path"]: one["size"] for some in obstore.list(store) for one in some}


def forget(target):
    store = target if isinstance(target, MemoryStore) else obstore.store.from_url(target)
    obstore.delete(store, ["mmreplay.json"])


# ---------------------------------------------------------------- the same store


@pytest.mark.parametrize("kind", KINDS)
def test_a_pulled_store_has_every_transition(kind, target):
    write("a.zarr", kind)
    pushed = mmreplay.push("a.zarr", target)
    pulled = mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")
    assert pushed.objects == pushed.sent_objects > pushed.lanes
    assert pulled.bytes == pulled.received_bytes == pushed.bytes
    assert (pulled.lanes, pulled.transitions) == (pushed.lanes, len(contents("a.zarr")[0][0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_live_store_is_pushed_as_a_snapshot_of_it(kind, target):
    writer, width = begin("a.zarr", kind, 95)
    for number in range(2):
        mmreplay.push("a.zarr", target)
        mmreplay.pull(target, "b.zarr")
        mmreplay.snapshot("a.zarr", f"c{number}.zarr")
        assert_same(f"c{number}.zarr", "b.zarr")
        play(writer, 60, width, reset=False)
    writer.close()
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


@pytest.mark.parametrize("kind", ["lz4, one", "raw, vector", "zstd, named"])
def test_a_store_that_was_pulled_after_a_loss_is_continued_and_pushed_to_the_same_url(kind, target):
    lost, width = begin("a.zarr", kind, 95)
    mmreplay.push("a.zarr", target)
    for _ in range(2):  # the machine is lost, and so is the next one
        mmreplay.pull(target, "b.zarr")
        writer = go_on(Path("b.zarr"))
        play(writer, 60, width)
        sent = mmreplay.push("b.zarr", target)
        writer.close()
        assert sent.sent_objects < sent.objects  # what was there stays
        mmreplay.pull(target, "c.zarr")
        assert len(contents("c.zarr")[0][0]) > 95
        shutil.rmtree("b.zarr")
    play(lost, 10, width)
    with pytest.raises(StoreExistsError, match="another store"):
        mmreplay.push("a.zarr", target)


def test_what_changes_in_place_is_in_the_archive(target):
    frame = mmreplay.Field((84, 84), "uint8", shard=16)
    with mmreplay.PrioritizedReplayBuffer(
        "a.zarr", 500, None, frame=frame, action=ACTION
    ) as buffer:
        for t in range(120):
            if t % 30 == 0:
                buffer.reset(np.full((84, 84), t, np.uint8))
            buffer.step(0, 1.0, np.full((84, 84), t + 1, np.uint8), terminated=t % 30 == 29)
        batch = buffer.sample(32)
        buffer.update_priorities(batch.id, np.arange(32) + 1.0)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")
    for name in ("c.0", "zarr.json"):
        with (
            open(f"a.zarr/priorities/{name}", "rb") as a,
            open(f"b.zarr/priorities/{name}", "rb") as b,
        ):
            assert a.read() == b.read()


def test_fields_of_episodes_are_in_the_archive(target):
    fields = {"task": mmreplay.Text(16)}
    with mmreplay.create("a.zarr", CODECS["raw"], ACTION, episode=fields) as writer:
        for number in range(3):
            writer.reset(np.zeros(3, np.uint8), task=f"task {number}")
            writer.step(0, 0.0, np.zeros(3, np.uint8), terminated=True)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert mmreplay.load("b.zarr").episodes["task"].tolist() == ["task 0", "task 1", "task 2"]
    mmreplay.tag("a.zarr", task="another")
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert mmreplay.load("b.zarr").episodes["task"].tolist() == ["another"] * 3


def test_an_array_that_is_not_of_the_schema_goes_with_the_rest(target):
    write("a.zarr")
    os.makedirs("a.zarr/derived/td_error")
    for name in ("zarr.json", "c.0", "c.1"):
        with open(f"a.zarr/derived/td_error/{name}", "wb") as file:
            file.write(name.encode())
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert sorted(os.listdir("b.zarr/derived/td_error")) == ["c.0", "c.1", "zarr.json"]
    assert not any("derived" in key for key in sizes(target))


# ---------------------------------------------------------------- only what is new


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_sent_when_nothing_changed(kind, closed, target, requests):
    writer, _ = begin("a.zarr", kind)
    if closed:
        writer.close()
    first = mmreplay.push("a.zarr", target)
    before = sizes(target)
    requests.names.clear()
    second = mmreplay.push("a.zarr", target)
    assert requests.names == ["get"]
    assert (second.sent_objects, second.sent_bytes, second.bytes) == (0, 0, first.bytes)
    assert sizes(target) == before
    writer.close()


def test_only_what_is_new_is_sent_and_received(target):
    writer, _ = begin("a.zarr", "zstd, named", 200)
    first = mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    before = os.stat("b.zarr/lane-00000/frames/c.0.0").st_ino
    play(writer.writers[0], 40, reset=False)
    second = mmreplay.push("a.zarr", target)
    assert 0 < second.sent_objects < first.sent_objects / 2
    assert not any(
        key.startswith("lane-00001") for key in set(sizes(target)) - set(first_keys(target))
    )
    pulled = mmreplay.pull(target, "b.zarr")
    assert pulled.received_bytes < pulled.bytes
    assert os.stat("b.zarr/lane-00000/frames/c.0.0").st_ino == before  # linked
    writer.close()
    assert mmreplay.push("a.zarr", target).sent_objects == 2  # the rest of each lane
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def first_keys(target):
    return sizes(target)


def test_a_pull_of_what_is_there_receives_nothing_and_changes_nothing(target, requests):
    write("a.zarr")
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    before = os.stat("b.zarr").st_ino
    requests.names.clear()
    assert mmreplay.pull(target, "b.zarr").received_bytes == 0
    assert requests.names == ["get"]
    assert os.stat("b.zarr").st_ino == before


def test_a_mirror_follows_lanes_that_come(target):
    mmreplay.create("a.zarr", CODECS["raw"], ACTION, lane="first").close()
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    with mmreplay.create("a.zarr", CODECS["raw"], ACTION, lane="second") as writer:
        play(writer, 30)
    mmreplay.push("a.zarr", target)
    assert mmreplay.pull(target, "b.zarr").lanes == 2
    assert_same("a.zarr", "b.zarr")


# ---------------------------------------------------------------- eviction and the grace period


def test_evicted_chunks_go_after_the_grace_period(target):
    writer, _ = begin("a.zarr", "raw, one", 100, capacity=80)
    mmreplay.push("a.zarr", target)
    old = set(sizes(target))
    play(writer, 200, reset=False)
    writer.flush()
    for grace_s in (0, 3600):  # with 0, what a push no longer needs is removed by the next one
        kept = mmreplay.push("a.zarr", target, grace_s=grace_s)
        assert (kept.removed_objects, old - set(sizes(target))) == (0, set())
        mmreplay.pull(target, "b.zarr")
        play(writer, 8, reset=False)
    assert mmreplay.push("a.zarr", target, grace_s=0).removed_objects > 10
    gone = old - set(sizes(target))
    assert any(key.startswith("rewards/") for key in gone)
    writer.close()
    mmreplay.push("a.zarr", target, grace_s=0)
    mmreplay.pull(target, "c.zarr")
    assert_same("a.zarr", "c.zarr")
    last = mmreplay.push("a.zarr", target, grace_s=0)
    assert len(sizes(target)) == last.objects + 1


def test_a_push_that_sends_nothing_removes_what_is_due(target):
    writer, _ = begin("a.zarr", "raw, one", 100)
    mmreplay.push("a.zarr", target)
    writer.close()
    mmreplay.push("a.zarr", target)
    done = mmreplay.push("a.zarr", target, grace_s=0)
    assert (done.sent_objects, done.removed_objects) == (0, 1)
    assert len(sizes(target)) == done.objects + 1


def test_objects_of_others_are_left_alone(target):
    write("a.zarr")
    mmreplay.push("a.zarr", target)
    store = target if isinstance(target, MemoryStore) else obstore.store.from_url(target)
    others = ["notes.txt", "mail@example", "another/frames/c.0.0@01234567", "another/mmreplay.json"]
    for key in others:
        obstore.put(store, key, b"mine")
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 30)
    mmreplay.push("a.zarr", target, grace_s=0)
    mmreplay.push("a.zarr", target, grace_s=0)
    assert set(others) <= set(sizes(target))


def test_what_a_push_left_that_was_cut_off_is_used_or_removed(target, requests):
    write("a.zarr")
    with requests.cut_after(20), pytest.raises(mmreplay.FailedStoreError):
        mmreplay.push("a.zarr", target)
    n_left = len(sizes(target))
    done = mmreplay.push("a.zarr", target)
    assert done.sent_objects == done.objects - n_left < done.objects
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 100)
    n_before = len(sizes(target))
    with requests.cut_after(8), pytest.raises(mmreplay.FailedStoreError):
        mmreplay.push("a.zarr", target)
    assert len(sizes(target)) > n_before
    write("b.zarr", n_steps=8)  # another store, so that none of it is needed
    forget(target)
    mmreplay.push("b.zarr", target, grace_s=0)
    done = mmreplay.push("b.zarr", target, grace_s=0)
    assert len(sizes(target)) == done.objects + 1


# ---------------------------------------------------------------- cut off


def test_a_push_cut_off_at_any_request_leaves_the_last_archive(target, requests):
    writer, _ = begin("a.zarr", "lz4, one", 60, capacity=70)
    mmreplay.push("a.zarr", target)
    mmreplay.snapshot("a.zarr", "old.zarr")
    play(writer, 60, reset=False)
    writer.flush()
    most = 0
    while True:
        with requests.cut_after(most):
            try:
                mmreplay.push("a.zarr", target, grace_s=0)
                break
            except mmreplay.FailedStoreError:
                pass
        mmreplay.pull(target, f"b{most}.zarr")
        with mmreplay.open(f"b{most}.zarr") as store:
            is_new = len(store) != len(contents("old.zarr")[0][0])
        if not is_new:
            assert_same("old.zarr", f"b{most}.zarr")
        else:  # only what is not needed any more was still to be removed
            assert requests.names[-1] == "put"
        most += 1
    assert most > 3
    writer.close()


def test_a_pull_cut_off_at_any_request_goes_on(target, requests):
    write("a.zarr", "lz4, one", 30)
    pushed = mmreplay.push("a.zarr", target)
    for most in range(pushed.objects + 1):
        with requests.cut_after(most), pytest.raises(mmreplay.FailedStoreError):
            mmreplay.pull(target, "b.zarr")
        assert not os.path.exists("b.zarr")
        pulled = mmreplay.pull(target, "b.zarr")
        # The manifest, and perhaps the rest, are read again.
        assert pulled.bytes - pulled.received_bytes > 0 or most < 3
        assert os.listdir(".b.zarr.pull") == ["mark"]
        assert_same("a.zarr", "b.zarr")
        shutil.rmtree("b.zarr")


def test_a_pull_over_a_mirror_that_is_cut_off_leaves_the_mirror(target, requests):
    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    os.rename("a.zarr", "old.zarr")
    write("a.zarr", "zstd, one", n_steps=90)
    forget(target)
    pushed = mmreplay.push("a.zarr", target)
    for most in range(0, pushed.objects // 2, 6):
        with requests.cut_after(most), pytest.raises(mmreplay.FailedStoreError):
            mmreplay.pull(target, "b.zarr")
        assert_same("old.zarr", "b.zarr")
        shutil.rmtree(".b.zarr.pull/new", ignore_errors=True)  # else it goes on there
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


@pytest.mark.parametrize("place", ["mark", "exchange", "end"])
def test_a_mirror_that_was_just_replaced_by_a_pull_that_died_is_still_one(
    place, target, monkeypatch
):
    from mmreplay.archive import pull
    from mmreplay.system import durable_writes

    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 50)
    mmreplay.push("a.zarr", target)

    class DeadError(Exception):
        pass

    def die(*_):
        raise DeadError

    with monkeypatch.context() as patch:
        if place == "mark":
            patch.setattr(durable_writes, "exchange", die)
        elif place == "exchange":
            exchange = durable_writes.exchange
            patch.setattr(durable_writes, "exchange", lambda *two: exchange(*two) and die())
        else:
            write_mark = pull._Mirror._write_mark
            patch.setattr(
                pull._Mirror,
                "_write_mark",
                lambda self, archive, *more: (
                    write_mark(self, archive, *more) if archive == -1 else die()
                ),
            )
        with pytest.raises(DeadError):
            mmreplay.pull(target, "b.zarr")
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")
    assert os.listdir(".b.zarr.pull") == ["mark"]


def test_without_an_exchange_of_names_a_mirror_is_replaced_too(target, monkeypatch):
    from mmreplay.system import durable_writes

    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 50)
    mmreplay.push("a.zarr", target)
    monkeypatch.setattr(durable_writes, "exchange", lambda *two: False)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


# ---------------------------------------------------------------- several at once


def test_of_two_pushes_at_once_the_later_one_is_refused(target, monkeypatch):
    from mmreplay.archive.objects import Objects

    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 50)
    exchange = Objects.exchange

    def overtaken(self, *arguments):
        monkeypatch.setattr(Objects, "exchange", exchange)
        mmreplay.push("a.zarr", target)
        exchange(self, *arguments)

    monkeypatch.setattr(Objects, "exchange", overtaken)
    with pytest.raises(LockedError, match="another push ended while this one ran"):
        mmreplay.push("a.zarr", target, grace_s=0)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def test_of_two_first_pushes_the_later_one_is_refused(target, monkeypatch):
    from mmreplay.archive.objects import Objects

    write("a.zarr", n_steps=40)
    write("other.zarr", n_steps=90)  # whose manifest is longer
    exchange = Objects.exchange

    def overtaken(self, *arguments):
        monkeypatch.setattr(Objects, "exchange", exchange)
        mmreplay.push("other.zarr", target)
        exchange(self, *arguments)

    monkeypatch.setattr(Objects, "exchange", overtaken)
    with pytest.raises(LockedError):
        mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert_same("other.zarr", "b.zarr")


def test_a_manifest_that_was_sent_twice_is_ours(target, monkeypatch):
    """The answer to a request may be lost after it was carried out: obstore sends it again."""
    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    with mmreplay.create("a.zarr", append=True) as writer:
        play(writer, 50)
    put = obstore.put

    def twice(store, key, *arguments, **more):
        answer = put(store, key, *arguments, **more)
        return put(store, key, *arguments, **more) if key == "mmreplay.json" else answer

    monkeypatch.setattr(obstore, "put", twice)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def test_two_pulls_to_one_path_are_not_at_once(target, monkeypatch):
    from mmreplay.archive import pull

    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    fill = pull._fill

    def second(*arguments):
        monkeypatch.setattr(pull, "_fill", fill)
        with pytest.raises(LockedError, match="another pull"):
            mmreplay.pull(target, "b.zarr")
        return fill(*arguments)

    monkeypatch.setattr(pull, "_fill", second)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


@pytest.mark.parametrize("kind", ["lz4, one", "raw, vector", "zstd, named"])
def test_every_push_of_a_store_that_is_written_meanwhile_is_sound(kind, target):
    writer, width = begin("a.zarr", kind, 20, capacity=500)
    ended = threading.Event()

    def write_on():
        while not ended.is_set():
            play(writer, 7, width)
            writer.flush()
            time.sleep(0.1)

    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        for number in range(5):
            mmreplay.push("a.zarr", target, grace_s=60)
            mmreplay.pull(target, "b.zarr")
            report = mmreplay.verify("b.zarr")
            assert (report.findings, report.state) == ([], "closed"), number
    finally:
        ended.set()
        thread.join()
    writer.close()
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def test_a_closed_store_that_is_opened_while_it_is_pushed_is_pushed_again(target, monkeypatch):
    from mmreplay.archive import push

    write("a.zarr", "lz4, one", 60)
    as_pieces, opened = push._as_pieces, []

    def late(*arguments):
        out = as_pieces(*arguments)
        if not opened:
            opened.append(go_on(mmreplay.load("a.zarr").paths[0]))
            play(opened[0], 30)
        return out

    monkeypatch.setattr(push, "_as_pieces", late)
    mmreplay.push("a.zarr", target)
    opened[0].close()
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def test_a_reader_of_a_mirror_goes_on_while_it_is_replaced(target):
    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    mmreplay.pull(target, "b.zarr")
    with mmreplay.load("b.zarr", stack=None) as data:
        data.sample(8)
        with mmreplay.create("a.zarr", append=True) as writer:
            play(writer, 50)
        mmreplay.push("a.zarr", target)
        mmreplay.pull(target, "b.zarr")
        assert len(data.refresh()) == len(contents("a.zarr")[0][0])
        assert data.sample(8).id.size == 8


# ---------------------------------------------------------------- refusals


def test_a_pull_replaces_nothing_that_a_pull_has_not_made(target):
    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    with pytest.raises(StoreExistsError, match="not what a pull left"):
        mmreplay.pull(target, "a.zarr")
    with open("file", "w") as file:
        file.write("mine")
    with pytest.raises(StoreExistsError):
        mmreplay.pull(target, "file")
    mmreplay.pull(target, "b.zarr")
    with mmreplay.create("b.zarr", append=True) as writer:
        play(writer, 10)
        with pytest.raises(LockedError):
            mmreplay.pull(target, "b.zarr")
    with pytest.raises(StoreExistsError):
        mmreplay.pull(target, "b.zarr")
    assert len(contents("b.zarr")[0][0]) == len(contents("a.zarr")[0][0]) + 10


def test_an_archive_of_another_store_is_not_replaced(target):
    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    before = sizes(target)
    write("b.zarr", "lz4, named", n_steps=40)
    mmreplay.snapshot("a.zarr", "c.zarr")
    for path in ("b.zarr", "c.zarr"):
        with pytest.raises(StoreExistsError, match="another store"):
            mmreplay.push(path, target)
    assert sizes(target) == before
    forget(target)
    mmreplay.push("b.zarr", target)
    with mmreplay.create("b.zarr", CODECS["lz4"], ACTION, lane="more") as writer:
        play(writer, 10)
    mmreplay.push("b.zarr", target)


def test_a_damaged_chunk_is_not_pushed(target):
    write("a.zarr", "raw, one")
    with open("a.zarr/frames/c.2.0", "r+b") as file:
        file.write(b"damage")
    with pytest.raises(CorruptStoreError, match="does not match its checksum"):
        mmreplay.push("a.zarr", target)
    assert "mmreplay.json" not in sizes(target)


def test_a_damaged_object_is_not_pulled(target):
    write("a.zarr", "raw, one")
    mmreplay.push("a.zarr", target)
    store = target if isinstance(target, MemoryStore) else obstore.store.from_url(target)
    for key in [next(one for one in sizes(target) if one.startswith("frames/")), rest_of(target)]:
        data = bytes(obstore.get(store, key).bytes())
        for other in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), data + b"x", b""):
            obstore.put(store, key, other)
            with pytest.raises((CorruptStoreError, mmreplay.FailedStoreError)):
                mmreplay.pull(target, "b.zarr")
            assert not os.path.exists("b.zarr")
        obstore.put(store, key, data)
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def rest_of(target):
    return next(one for one in sizes(target) if one.startswith("rest@"))


def test_a_chunk_that_was_damaged_while_a_pull_waited_is_received_again(target, requests):
    write("a.zarr", "raw, one")
    mmreplay.push("a.zarr", target)
    with requests.cut_after(60), pytest.raises(mmreplay.FailedStoreError):
        mmreplay.pull(target, "b.zarr")
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(".b.zarr.pull/new")
        for name in names
        if name.startswith("c.")
    ]
    assert len(found) > 10
    for path in found[:3]:
        with open(path, "r+b") as file:
            file.write(b"damage")
    mmreplay.pull(target, "b.zarr")
    assert_same("a.zarr", "b.zarr")


def test_an_object_that_others_have_removed_is_said(target):
    write("a.zarr", n_steps=40)
    mmreplay.push("a.zarr", target)
    store = target if isinstance(target, MemoryStore) else obstore.store.from_url(target)
    obstore.delete(store, [rest_of(target)])
    with pytest.raises(mmreplay.FailedStoreError, match="it is gone"):
        mmreplay.pull(target, "b.zarr")


@pytest.mark.parametrize("call", [mmreplay.open, mmreplay.load, mmreplay.verify])
def test_what_takes_a_path_names_pull(call):
    with pytest.raises(mmreplay.StoreNotFoundError, match="mmreplay pull s3://bucket/pong PATH"):
        call("s3://bucket/pong")


def test_urls_that_are_none_are_refused(tmp_path):
    write("a.zarr", n_steps=20)
    for url in ("nowhere", "foo://bucket/pong", 7, None):
        with pytest.raises(SchemaError, match="url"):
            mmreplay.push("a.zarr", url)
    with pytest.raises(mmreplay.StoreNotFoundError, match="no archive"):
        mmreplay.pull(MemoryStore(), "b.zarr")
    with pytest.raises(mmreplay.StoreNotFoundError):
        mmreplay.pull(f"file://{tmp_path}/nowhere", "b.zarr")
    with pytest.raises(SchemaError, match="page"):
        mmreplay.push("a.zarr", MemoryStore(), page="page")
    with pytest.raises(SchemaError, match="grace_s"):
        mmreplay.push("a.zarr", MemoryStore(), grace_s=-1)
    assert sorted(os.listdir()) == ["a.zarr"]


def test_an_archive_of_a_newer_mmreplay_is_refused(target):
    write("a.zarr", n_steps=20)
    mmreplay.push("a.zarr", target)
    store = target if isinstance(target, MemoryStore) else obstore.store.from_url(target)
    obstore.put(store, "mmreplay.json", json.dumps({"archive": 2}).encode())
    for call in (lambda: mmreplay.pull(target, "b.zarr"), lambda: mmreplay.push("a.zarr", target)):
        with pytest.raises(mmreplay.FormatError, match="newer"):
            call()


# ---------------------------------------------------------------- load


def test_load_pulls_into_its_cache(tmp_path):
    write("a.zarr")
    write("other.zarr", n_steps=30)
    url = f"file://{tmp_path}/pong"
    mmreplay.push("a.zarr", url)
    with mmreplay.load(url, cache="cache", stack=None) as data:
        assert len(data) == 100
        (path,) = data.paths
        assert path.parent == tmp_path / "cache"
        assert path.name.startswith("pong-")
    with mmreplay.load([url, "other.zarr"], cache="cache", stack=None) as data:
        assert len(data) == 130
    assert_same("a.zarr", path)


def test_one_of_several_processes_that_load_an_archive_receives_it(tmp_path):
    write("a.zarr")
    url = f"file://{tmp_path}/pong"
    mmreplay.push("a.zarr", url)
    lengths = []

    def load():
        with mmreplay.load(url, cache="cache", stack=None) as data:
            lengths.append(len(data))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert lengths == [100] * 4
