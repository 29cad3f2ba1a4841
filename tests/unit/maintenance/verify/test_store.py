"""`verify`: what was changed is found and named; what a writer is just doing is not."""

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field, FormatError, StoreNotFoundError, verify
from mmreplay.format.compression import crc32c
from mmreplay.format.layout import digest
from tests.support.disks.faults import kill
from tests.support.disks.trees import flip
from tests.support.processes.threads import Beside

ACTION = Field((), "uint8", chunk=8)
LOG_PROB = {"log_prob": Field((), "float32", chunk=8)}


@pytest.fixture(scope="module")
def made_once():
    """Closed stores that a test may copy, by a name."""
    return {}


@pytest.fixture
def copy_of(made_once, tmp_path, tmp_path_factory):
    """A copy, in the test's folder, of a store that is made once: `copy_of(name, make_it)`."""

    def copy(name, make_it):
        if name not in made_once:
            path = make_it()
            made_once[name] = path.rename(tmp_path_factory.mktemp("once") / path.name)
        return shutil.copytree(made_once[name], tmp_path / made_once[name].name)

    return copy


@pytest.fixture
def closed_store(copy_of, make, story, kinds):
    """A closed store of 37 rows: `closed_store(kind)`."""

    def create(kind):
        def make_it():
            writer = make(frame=kinds[kind], action=ACTION, extras=LOG_PROB)
            story.play_every_end(writer)
            writer.close()
            return writer.path

        return copy_of(kind, make_it)

    return create


@pytest.fixture
def closed(kind, closed_store):
    """A closed store of 37 rows, of each kind of frames."""
    return closed_store(kind)


@pytest.fixture
def lz4_store(closed_store):
    return closed_store("lz4")


@pytest.fixture
def evicted(copy_of, make, story, kinds):
    """A closed store whose oldest rows are gone."""

    def make_it():
        writer = make(frame=kinds["lz4"], action=ACTION, capacity=20)
        for _ in range(20):
            story.play(writer, 9, "terminated")
        writer.close()
        return writer.path

    return copy_of("evicted", make_it)


def texts(report):
    return [str(one) for one in report.findings]


def messages(path, file):
    """What is found, which must all be about one file."""
    report = verify(path)
    assert {one.file for one in report.findings} == {file}, texts(report)
    return [one.message for one in report.findings]


def forge(lane, array, chunk, change):
    """Change a raw chunk file, and give it the checksum that it should have then."""
    file = next((lane / array).glob(f"c.{chunk}*"))
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)
    sums = lane / "checksums" / array / "c.0"
    table = np.frombuffer(sums.read_bytes(), "<u4").copy()
    table[chunk] = crc32c(np.frombuffer(data, np.uint8))
    sums.write_bytes(table.tobytes())


def edit(path, change):
    """Change a zarr.json."""
    document = json.loads(path.read_text())
    change(document)
    own = document["attributes"].get("mmreplay")
    if own is not None:  # as by somebody who knows of its checksum
        own["crc32c"] = digest(own)
    path.write_text(json.dumps(document))


# ---------------------------------------------------------------- sound stores


def test_a_closed_store_is_sound(closed):
    report = verify(closed)
    assert (report.findings, report.warnings) == ([], [])
    assert report.sound
    assert (report.path, report.state, report.lanes, report.rows) == (str(closed), "closed", 1, 37)
    files = [path for path in closed.rglob("*") if path.is_file()]
    # The checksums are read once more: for what lies past them.
    assert report.files >= len(files)
    assert report.bytes >= sum(path.stat().st_size for path in files)


def test_an_empty_store_is_sound(make):
    writer = make()
    assert verify(writer.path).sound
    writer.close()
    report = verify(writer.path)
    assert report.sound
    assert report.rows == 0


def test_a_store_with_evicted_rows_is_sound(evicted):
    report = verify(evicted)
    assert (report.findings, report.warnings) == ([], [])
    assert report.rows < 200


def test_a_store_that_was_opened_and_closed_again_is_sound(make, story, evicted):
    writer = make(append=True)
    story.lanes[writer.path] = [{}] * writer.rows
    story.reset(writer)
    assert verify(evicted).sound
    story.play(writer, 5, reset=False)
    writer.close()
    report = verify(evicted)
    assert (report.findings, report.warnings) == ([], [])


def test_a_replay_buffer_is_sound_with_its_random_state(tmp_path, quick_disk, kinds):
    fields = {"frame": kinds["lz4"], "action": ACTION}
    with mmreplay.ReplayBuffer(tmp_path / "buffer.zarr", capacity=30, **fields) as buffer:
        buffer.reset(np.zeros(3, np.uint8))
        for _ in range(40):
            buffer.step(0, 1.0, np.ones(3, np.uint8))
        buffer.sample(8)
        buffer.flush()
        assert verify(tmp_path / "buffer.zarr").sound
    document = json.loads((tmp_path / "buffer.zarr" / "zarr.json").read_text())
    assert "generator" in document["attributes"]["mmreplay"]
    report = verify(tmp_path / "buffer.zarr")
    assert (report.findings, report.warnings) == ([], [])


def test_a_store_of_many_lanes_is_sound(make, story, kinds):
    writer = make(lanes=3, frame=kinds["lz4"])
    for one in writer.writers:
        story.play_every_end(one)
    assert verify(writer.path).sound
    writer.close()
    report = verify(writer.path)
    assert (report.findings, report.warnings) == ([], [])
    assert (report.lanes, report.rows) == (3, 3 * 37)


def test_verify_writes_nothing(lz4_store):
    def state():
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in lz4_store.rglob("*")
        }

    before = state()
    verify(lz4_store)
    assert state() == before


def test_progress_ends_at_the_total(lz4_store):
    seen = []
    verify(lz4_store, lambda done, total: seen.append((done, total)))
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


def test_the_report_as_json(lz4_store):
    flip(lz4_store / "rewards" / "c.1", 3)
    report = verify(lz4_store)
    document = json.loads(json.dumps(report.to_json()))
    assert document.pop("bytes") == report.bytes
    assert document.pop("files") == report.files
    (finding,) = document.pop("findings")
    assert finding.pop("message").startswith("checksum: expected crc32c ")
    assert finding == {"lane": "", "array": "rewards", "file": "rewards/c.1", "rows": [8, 16]}
    assert document == {
        "path": str(lz4_store),
        "sound": False,
        "state": "closed",
        "lanes": 1,
        "rows": 37,
        "untrusted": 0,
        "warnings": [],
    }


# ---------------------------------------------------------------- any byte of any file


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


@pytest.mark.parametrize("kind", ["raw", "dict"])
def test_any_byte_changed_in_any_file_is_found_or_harmless(closed_store, kind):
    closed = closed_store(kind)
    before = everything(closed)
    generator = random.Random(kind)
    files = sorted(path for path in closed.rglob("*") if path.is_file())
    for _ in range(30):
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


def test_any_byte_changed_in_a_store_of_lanes_is_found_or_harmless(make, story, kinds):
    writer = make(lanes=2, frame=kinds["zstd"], capacity=30)
    for _ in range(5):
        story.play(writer, 7, "truncated")
    writer.close()
    before = everything(writer.path)
    generator = random.Random(0)
    files = [writer.path / "zarr.json", *writer.path.glob("lane-*/zarr.json")]
    for _ in range(20):
        path = generator.choice(files)
        whole = path.read_bytes()
        data = bytearray(whole)
        damage(data, generator)
        path.write_bytes(data)
        report = verify(writer.path)
        assert report.findings + report.warnings or everything(writer.path) == before, (path, data)
        path.write_bytes(whole)


# ---------------------------------------------------------------- files


def test_a_cut_file_is_named_with_its_rows(lz4_store):
    (file,) = (lz4_store / "rewards").glob("c.2")
    file.write_bytes(file.read_bytes()[:-1])
    (finding,) = verify(lz4_store).findings
    assert str(finding).startswith("rewards/c.2, rows 16 to 23: expected 32 bytes, found 31")
    assert (finding.array, finding.rows) == ("rewards", (16, 24))


@pytest.mark.parametrize("size", [0, 1, 20, -1])
def test_a_cut_shard_is_found(lz4_store, size):
    shard = lz4_store / "frames" / "c.1.0"
    shard.write_bytes(shard.read_bytes()[:size])
    assert messages(lz4_store, "frames/c.1.0")


@pytest.mark.parametrize("array", ["frames", "resets"])
def test_a_missing_chunk_file_is_found_though_zarr_reads_zeros(lz4_store, array):
    file = next((lz4_store / array).glob("c.2*"))
    file.unlink()
    assert messages(lz4_store, f"{array}/{file.name}") == ["expected this chunk file, found none"]
    assert not zarr.open_group(lz4_store, mode="r")[array][16:24].any()


def test_an_evicted_chunk_file_is_not_missing_but_the_next_one_is(evicted):
    oldest = min((evicted / "rewards").glob("c.*"), key=lambda path: int(path.name[2:]))
    oldest.unlink()
    assert messages(evicted, f"rewards/{oldest.name}") == ["expected this chunk file, found none"]


@pytest.mark.parametrize("array", ["frames", "rewards"])
def test_chunk_files_of_two_places_swapped(make, array):
    """Also shards whose inner chunks are of equal lengths, as of frames that are mere noise."""
    generator = np.random.default_rng(0)
    writer = make(frame=Field((64,), "uint8", "lz4", chunk=4, shard=8), action=ACTION)
    writer.reset(np.zeros(64, np.uint8))
    for row in range(1, 30):
        writer.step(0, float(row), generator.integers(256, size=64, dtype=np.uint8))
    writer.close()
    one, two = (next((writer.path / array).glob(f"c.{chunk}*")) for chunk in (0, 1))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    files = [one.file for one in verify(writer.path).findings]
    assert files == [f"{array}/{one.name}", f"{array}/{two.name}"]


def test_a_damaged_inner_chunk_is_named_with_its_rows(lz4_store):
    flip(lz4_store / "frames" / "c.1.0", 17)
    found = verify(lz4_store).findings
    assert [one.message.partition(":")[0] for one in found] == ["checksum", "inner chunk 0"]
    assert [one.rows for one in found] == [(8, 16), (8, 12)]


def test_damaged_inner_chunks_side_by_side_are_one_finding(lz4_store):
    shard = lz4_store / "frames" / "c.1.0"
    size = shard.stat().st_size
    flip(shard, 20)
    flip(shard, size - 4 - 32 - 10)
    inner = verify(lz4_store).findings[-1]
    assert inner.message.endswith("; and 1 more behind it")
    assert inner.rows == (8, 16)


def test_a_shard_that_says_what_it_should_not(lz4_store, make, story):
    """With a whole-file checksum that fits: the shard's own checks have to find it."""
    other = make("other.zarr", frame=Field((3,), "uint8", "lz4", chunk=2, shard=8))
    story.play_every_end(other)
    other.close()
    shard = lz4_store / "frames" / "c.0.0"
    shutil.copy(other.path / "frames" / "c.0.0", shard)
    sums = lz4_store / "checksums" / "frames" / "c.0"
    theirs = (other.path / "checksums" / "frames" / "c.0").read_bytes()
    sums.write_bytes(theirs[:4] + sums.read_bytes()[4:])
    (text,) = messages(lz4_store, "frames/c.0.0")
    assert "index" in text


def test_a_wrong_checksum_is_found(lz4_store):
    for at in (4, 5):
        flip(lz4_store / "checksums" / "rewards" / "c.0", at)
    (text,) = messages(lz4_store, "rewards/c.1")
    assert text.startswith("checksum: expected crc32c ")


def test_a_chunk_file_without_a_checksum_is_found_in_a_closed_store(lz4_store):
    for array in ("rewards", "frames"):
        sums = lz4_store / "checksums" / array / "c.0"
        sums.write_bytes(bytes(4) + sums.read_bytes()[4:])
    expected = "expected a checksum, as every file of a closed lane has; found 0"
    report = verify(lz4_store)
    assert {one.file: one.message for one in report.findings} == {
        "rewards/c.0": expected,
        "frames/c.0.0": expected,
    }
    assert report.warnings == []


def test_repair_gives_a_checksum_to_what_has_none_and_keeps_all_rows(lz4_store):
    (lz4_store / "checksums" / "frames" / "c.0").unlink()
    assert not verify(lz4_store).sound
    assert mmreplay.repair(lz4_store).lost == 0
    report = verify(lz4_store)
    assert (report.findings, report.warnings, report.rows) == ([], [], 37)


def test_a_copy_of_a_crashed_store_says_which_rows_it_does_not_trust(tmp_path):
    writer = mmreplay.create(
        tmp_path / "s.zarr", mmreplay.Field((3,)), mmreplay.Field((), "int64"), flush_s=0
    )
    writer.reset(np.zeros(3, "u1"))
    writer.flush()
    for _ in range(5):
        writer.step(0, 0.0, np.zeros(3, "u1"))
    kill(writer)
    copy = shutil.copytree(tmp_path / "s.zarr", tmp_path / "copy.zarr")
    assert verify(tmp_path / "s.zarr").untrusted == 0
    report = verify(copy)
    assert (report.sound, report.rows, report.untrusted) == (True, 1, 5)
    assert "speaks of 5 rows" in report.warnings[0].message
    with mmreplay.open(copy) as store:
        assert store.info()["live"]["untrusted_rows"] == 5
    assert mmreplay.repair(copy).untrusted == 5
    assert verify(copy).rows == 1


def test_the_checksums_of_an_array_are_missing(lz4_store):
    (lz4_store / "checksums" / "rewards" / "c.0").unlink()
    assert len(verify(lz4_store).findings) == 5  # each of its chunk files


def test_checksums_that_cannot_be_read_are_named_once(lz4_store):
    (lz4_store / "checksums" / "rewards" / "c.0").write_bytes(b"short")
    assert messages(lz4_store, "checksums/rewards/c.0") == [
        "expected 4,096 bytes, found 5: the file was cut or replaced"
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("frames/c.99.0", "expected no chunk file for rows 792 to 799, found one"),
        ("frames/c.0", "expected chunk files only, found something else"),
        ("rewards/notes.txt", "expected chunk files only, found something else"),
        ("checksums/rewards/c.1", "expected no chunk file for rows 1,024 to 2,047, found one"),
        ("episodes/starts/c.7", "expected no chunk file"),
        ("notes.txt", "expected arrays and groups of the schema only, found something else"),
        ("extras/notes.txt", "expected arrays and groups of the schema only"),
    ],
)
def test_a_file_too_many_is_named(lz4_store, path, text):
    (lz4_store / path).write_bytes(b"x")
    (found,) = messages(lz4_store, path)
    assert found.startswith(text)


def test_a_folder_too_many_is_named(lz4_store):
    (lz4_store / "more").mkdir()
    assert messages(lz4_store, "more")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_the_place_of_a_chunk_hangs_nothing(lz4_store):
    file = lz4_store / "rewards" / "c.0"
    file.unlink()
    os.mkfifo(file)
    assert messages(lz4_store, "rewards/c.0") == ["expected a regular file, found something else"]


def test_no_link_is_followed(lz4_store, tmp_path):
    file = lz4_store / "rewards" / "c.0"
    file.rename(tmp_path / "away")
    file.symlink_to(tmp_path / "away")
    (text,) = messages(lz4_store, "rewards/c.0")
    assert text.startswith("expected a regular file, found a link")
    shutil.move(lz4_store / "resets", tmp_path / "resets")
    (lz4_store / "resets").symlink_to(tmp_path / "resets")
    assert "resets: expected a directory, found a link or a file" in texts(verify(lz4_store))


def test_litter_in_a_closed_store_is_a_warning(lz4_store):
    (lz4_store / "zarr.json.12ab.tmp").write_bytes(b"{")
    (lz4_store / "frames" / "c.0.0.12ab.tmp").write_bytes(b"")
    (lz4_store / ".live").mkdir()
    report = verify(lz4_store)
    assert report.sound
    assert [one.file for one in report.warnings] == [
        "zarr.json.12ab.tmp",
        "frames/c.0.0.12ab.tmp",
        ".live",
    ]


# ---------------------------------------------------------------- rules for rows


def test_a_final_row_with_a_reward(lz4_store):
    # Rows 0 to 9 are the first episode: row 9 is its final one.
    def change(data):
        data[4:8] = np.float32(1).tobytes()

    forge(lz4_store, "rewards", 1, change)
    (finding,) = verify(lz4_store).findings
    assert str(finding) == (
        "rewards/c.1, row 9: final rows: expected zeros, found other values in row 9"
    )


@pytest.mark.parametrize(("array", "byte"), [("actions", 1), ("extras/log_prob", 7)])
def test_a_final_row_with_an_action_or_an_extra(lz4_store, array, byte):
    forge(lz4_store, array, 1, lambda data: data.__setitem__(byte, 1))
    found = verify(lz4_store).findings
    assert [one.message.partition(":")[0] for one in found] == ["final rows"]
    assert found[0].rows == (9, 10)


def test_the_last_row_of_a_closed_store_is_final(lz4_store):
    forge(lz4_store, "actions", 4, lambda data: data.__setitem__(4, 1))
    assert verify(lz4_store).findings[0].rows == (36, 37)


def test_a_final_row_with_another_flag_than_the_row_before(lz4_store):
    forge(lz4_store, "non_terminals", 1, lambda data: data.__setitem__(1, 1))
    (finding,) = verify(lz4_store).findings
    assert finding.rows == (9, 10)
    assert finding.message.startswith("final rows: expected the flag of the row before")


def test_the_flag_of_a_final_row_is_compared_across_chunk_files(make, story):
    writer = make(action=ACTION)
    story.play(writer, 8, "terminated")  # row 8 is final, and the first of its chunk file
    story.play(writer, 3)
    writer.close()
    forge(writer.path, "non_terminals", 1, lambda data: data.__setitem__(0, 1))
    assert verify(writer.path).findings[0].rows == (8, 9)


@pytest.mark.parametrize(("array", "what"), [("non_terminals", "flags"), ("resets", "reset bits")])
def test_a_flag_that_is_neither_0_nor_1(lz4_store, array, what):
    forge(lz4_store, array, 0, lambda data: data.__setitem__(3, 2))
    assert verify(lz4_store).findings[0].message == (
        f"{what}: expected 0 or 1, found other values in row 3"
    )


def test_a_bool_that_is_neither_0_nor_1(make, story, kinds):
    writer = make(frame=kinds["dict"])
    story.play_every_end(writer)
    writer.close()
    forge(writer.path, "frames/seen", 0, lambda data: data.__setitem__(3, 2))
    assert messages(writer.path, "frames/seen/c.0") == [
        "bools: expected 0 or 1, found other values in row 3"
    ]


def test_a_store_whose_first_row_is_no_reset(lz4_store):
    forge(lz4_store, "resets", 0, lambda data: data.__setitem__(0, 0))
    found = texts(verify(lz4_store))
    assert found[0] == (
        "resets/c.0, row 0: expected a reset in row 0, the first of all, found none"
    )


@pytest.mark.parametrize("row", [4, 10])
def test_reset_bits_that_are_not_those_of_the_index(lz4_store, row):
    forge(lz4_store, "resets", row // 8, lambda data: data.__setitem__(row % 8, 1 - data[row % 8]))
    found = verify(lz4_store).findings
    assert "episodes/starts" in {one.file for one in found}
    index = next(one for one in found if one.file == "episodes/starts")
    assert index.message.startswith("expected the ")


def test_an_index_that_is_not_that_of_the_reset_bits(lz4_store):
    (file,) = (lz4_store / "episodes" / "starts").glob("c.*")
    starts = np.frombuffer(file.read_bytes(), "<i8").copy()
    assert starts[:4].tolist() == [0, 10, 22, 23]
    starts[1] = 11
    file.write_bytes(starts.tobytes())
    assert messages(lz4_store, "episodes/starts") == [
        "expected the 4 rows with a reset bit, found 4, and at entry 1 row 11 for row 10"
    ]


def test_an_index_that_is_missing(lz4_store):
    (file,) = (lz4_store / "episodes" / "starts").glob("c.*")
    file.unlink()
    assert messages(lz4_store, f"episodes/starts/{file.name}") == [
        "expected this chunk file, found none"
    ]


@pytest.mark.parametrize("array", ["rewards", "frames"])
def test_rows_past_the_last_one_are_zero(make, story, array):
    writer = make(action=ACTION)
    story.play(writer, 9)
    writer.close()
    forge(writer.path, array, 1, lambda data: data.__setitem__(-1, 1))
    file = next((writer.path / array).glob("c.1*")).name
    assert messages(writer.path, f"{array}/{file}") == [
        "expected zeros past the last of 10 rows, found 1 other bytes"
    ]


def test_first_is_what_the_capacity_says(evicted):
    first = json.loads((evicted / "zarr.json").read_text())["attributes"]["mmreplay"]["first"]
    edit(evicted / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(first=first - 1))
    assert any(one.message.startswith("first: expected ") for one in verify(evicted).findings)


def test_first_without_a_capacity_is_0(lz4_store):
    edit(lz4_store / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(first=2))
    assert messages(lz4_store, "zarr.json") == [
        "first: expected 0 where no capacity is set, found 2"
    ]


def test_a_capacity_that_was_raised_after_eviction_is_a_warning(evicted):
    edit(evicted / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(capacity=25))
    report = verify(evicted)
    assert report.sound
    assert report.warnings[0].message.startswith("older rows were evicted, though 20 transitions")


# ---------------------------------------------------------------- metadata


@pytest.mark.parametrize("file", ["zarr.json", "rewards/zarr.json", "checksums/frames/zarr.json"])
def test_a_damaged_document_is_named(lz4_store, file):
    for data in (b"", b"{", b"[]", b"\xff\xfe", b'{"zarr_format": 3}'):
        (lz4_store / file).write_bytes(data)
        assert messages(lz4_store, file)


def test_missing_documents_are_named(lz4_store):
    lost = ("frames", "extras", "extras/log_prob", "checksums", "episodes/starts")
    for folder in lost:
        (lz4_store / folder / "zarr.json").unlink()
    assert sorted(texts(verify(lz4_store))) == sorted(f"{name}/zarr.json: missing" for name in lost)


def test_the_other_columns_are_checked_when_one_has_no_metadata(lz4_store):
    (lz4_store / "actions" / "zarr.json").unlink()
    flip(lz4_store / "rewards" / "c.1", 3)
    assert {one.file for one in verify(lz4_store).findings} == {"actions/zarr.json", "rewards/c.1"}


@pytest.mark.parametrize(
    ("file", "change", "text"),
    [
        ("rewards", {"shape": [36]}, "shape: expected 37 rows, found 36"),
        ("rewards", {"data_type": "int32"}, "expected rows of () float32, found () int32"),
        ("rewards", {"fill_value": 1}, "fill_value: expected 0, found 1"),
        ("checksums/rewards", {"shape": [4]}, "shape: expected 5 rows, found 4"),
        ("extras", {"consolidated_metadata": {}}, "consolidated_metadata: unknown to format 1"),
        ("episodes", {"node_type": "array"}, "node_type: expected 'group', found 'array'"),
    ],
)
def test_a_document_that_says_something_else(lz4_store, file, change, text):
    edit(lz4_store / file / "zarr.json", lambda document: document.update(change))
    assert text in messages(lz4_store, f"{file}/zarr.json")


def test_a_document_with_very_many_mistakes(lz4_store):
    keys = {f"k{n:05}": 0 for n in range(9_999)}
    edit(lz4_store / "extras" / "zarr.json", lambda document: document.update(keys))
    found = messages(lz4_store, "extras/zarr.json")
    assert found == [*(f"k{n:05}: unknown to format 1" for n in range(8)), "9,991 more such"]


def test_a_users_own_attributes_and_dimension_names_are_welcome(lz4_store):
    edit(
        lz4_store / "rewards" / "zarr.json",
        lambda d: d.update(attributes={"unit": "points"}, dimension_names=["row"]),
    )
    edit(lz4_store / "zarr.json", lambda d: d["attributes"].update(title="mine"))
    assert verify(lz4_store).sound


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda own: own.pop("versions"), "attributes.mmreplay: versions is missing"),
        (lambda own: own.update(colour=1), "attributes.mmreplay: 'colour' is unknown to format 1"),
        (lambda own: own.update(generator={"a": 1}), "generator: expected a random state as text"),
        (lambda own: own.update(generator="{}"), "generator: expected a random state as text"),
        (lambda own: own.update(env=[]), "env: expected an object, found []"),
        (lambda own: own["schema"].update(more=1), "schema: expected "),
    ],
)
def test_attributes_that_say_something_else(lz4_store, change, text):
    edit(lz4_store / "zarr.json", lambda document: change(document["attributes"]["mmreplay"]))
    assert any(one.startswith(text) for one in messages(lz4_store, "zarr.json"))


def test_attributes_are_compared_with_their_checksum(lz4_store):
    file = lz4_store / "zarr.json"
    sound = file.read_text()
    changed = sound.replace('"env": {}', '"env": {"id": "mine"}')
    assert changed != sound
    file.write_text(changed)
    (text,) = messages(lz4_store, "zarr.json")
    assert text.startswith("attributes.mmreplay: expected crc32c '")
    document = json.loads(changed)
    del document["attributes"]["mmreplay"]["crc32c"]
    file.write_text(json.dumps(document))  # as of a store that was written before there was any
    assert verify(lz4_store).sound


def test_rows_that_are_not_those_of_the_arrays(lz4_store):
    edit(lz4_store / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(rows=36))
    report = verify(lz4_store)
    assert "frames/zarr.json: shape: expected 36 rows, found 37" in texts(report)


def test_what_is_no_store_is_an_error_not_a_finding(tmp_path):
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


# ---------------------------------------------------------------- many lanes


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


def test_a_damaged_store_document_still_lets_the_lanes_be_checked(lanes):
    (lanes / "zarr.json").write_bytes(b"{")
    flip(lanes / "lane-00001" / "rewards" / "c.1", 3)
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
    found = texts(verify(lanes))
    assert any("schema: expected that of the store" in text for text in found)
    assert any(
        text.startswith("lane-00002/frames/zarr.json: expected the layout") for text in found
    )


def test_something_else_between_the_lanes(lanes):
    (lanes / "notes.txt").write_text("x")
    (lanes / ".lane-00003.tmp").mkdir()
    report = verify(lanes)
    assert [one.file for one in report.findings] == ["notes.txt"]
    assert [one.file for one in report.warnings] == [".lane-00003.tmp"]


def test_a_store_in_the_place_of_a_lane(lanes, make):
    shutil.rmtree(lanes / "lane-00002")
    other = make("other.zarr", lane="d")
    other.close()
    shutil.copytree(other.path.parent, lanes / "lane-00002")
    assert messages(lanes, "lane-00002/zarr.json")[0] == "expected a lane, found a store of lanes"


# ---------------------------------------------------------------- live and crashed


def test_a_live_store_is_sound_and_its_damage_is_found(make, story, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play_every_end(writer)
    report = verify(writer.path)
    assert (report.state, report.findings, report.warnings) == ("live", [], [])
    assert report.rows == 37
    flip(writer.path / "frames" / "c.1.0", 17)
    assert {one.file for one in verify(writer.path).findings} == {"frames/c.1.0"}
    flip(writer.path / "frames" / "c.1.0", 17)
    (writer.path / "rewards" / "c.2").unlink()
    assert {one.file for one in verify(writer.path).findings} == {"rewards/c.2"}


def test_a_writer_at_work_is_never_taken_for_damage(make, story, kinds):
    """It appends, seals, evicts, closes and opens again all the time."""
    writer = make(frame=kinds["dict"], action=ACTION, capacity=50, flush_s=0.02)
    path, n_reopened = writer.path, 0

    def write(going):
        nonlocal writer, n_reopened
        generator = random.Random(0)
        while going():
            story.play(writer, generator.randrange(1, 30), "terminated")
            if generator.random() < 0.03:
                writer.close()
                writer = make(append=True, flush_s=0.02)
                n_reopened += 1

    n_verified = 0
    with Beside(write):
        while n_verified < 5 or n_reopened < 2:
            report = verify(path)
            assert (report.findings, report.warnings) == ([], [])
            n_verified += 1
    writer.close()
    assert verify(path).sound


WRITER = """
import sys
import numpy as np
import mmreplay
from mmreplay import Field

frame = Field((3,), "uint8", "lz4", chunk=4, shard=16)
writer = mmreplay.create(sys.argv[1], frame=frame, action=Field((), "uint8", chunk=8), append=True,
                         capacity=100, flush_s=0.02)
row = 0
while True:
    if not row % 30:
        writer.reset(np.full(3, row % 251, np.uint8))
    row += 1
    writer.step(1, 1.0, np.full(3, row % 251, np.uint8), row % 30 == 0)
    if row == 200:
        print("running", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing to kill with")
def test_what_a_killed_writer_left_is_sound_and_its_damage_is_found(tmp_path):
    path = tmp_path / "store.zarr"
    for _ in range(2):  # the second one recovers
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline()
            assert verify(path).sound
            process.kill()
        report = verify(path)
        assert (report.state, report.findings) == ("crashed", [])
        assert report.rows > 100
    # Not of the oldest: the kill may have come before those below base were unlinked.
    file = sorted((path / "actions").glob("c.*"), key=lambda one: int(one.name[2:]))[-2]
    file.unlink()
    assert [one.file for one in verify(path).findings] == [f"actions/{file.name}"]


def test_a_crashed_store_after_a_reboot_is_sound(make, story, kill, kinds):
    """The state page is not trusted then, and the checkpoint says what there is."""
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    writer.flush()
    story.play(writer, 25, "terminated")
    kill(writer)
    state = writer.path / ".live" / "state"
    data = bytearray(state.read_bytes())
    data[56:72] = bytes(16)  # the boot id
    state.write_bytes(data)
    report = verify(writer.path)
    assert (report.state, report.rows, report.findings) == ("crashed", 16, [])


@pytest.mark.parametrize("file", ["state", "checkpoint"])
def test_a_crashed_store_that_cannot_be_recovered(make, story, kill, file, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    kill(writer)
    (writer.path / ".live" / file).write_bytes(b"")
    report = verify(writer.path)
    assert report.state == "unknown"
    assert [one.file for one in report.findings] == [".live"]


def test_a_checkpoint_that_was_cut_is_found_though_half_of_it_can_be_read(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    writer.flush()
    story.play(writer, 9)
    writer.flush()
    kill(writer)
    checkpoint = writer.path / ".live" / "checkpoint"
    os.truncate(checkpoint, 4096)
    (finding,) = verify(writer.path).findings
    assert (finding.file, finding.message) == (
        ".live/checkpoint",
        "expected 8,192 bytes, found 4,096",
    )
    assert mmreplay.repair(writer.path).kept == len(story.lanes[writer.path])
    assert verify(writer.path).sound


@pytest.mark.parametrize("place", ["", "frames/c.0.0", "checksums"])
def test_what_may_not_be_read_is_not_taken_for_damaged(lz4_store, place, monkeypatch):
    real = os.access

    def access(path, mode, **more):
        return os.fspath(path) != str(lz4_store / place) and real(path, mode, **more)

    before = sorted(lz4_store.parent.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", access)
        for look in (verify, mmreplay.repair):
            with pytest.raises(StoreNotFoundError, match="may not be read: Permission denied"):
                look(lz4_store)
    assert sorted(lz4_store.parent.rglob("*")) == before
    assert verify(lz4_store).sound


def test_litter_of_a_crash_is_a_warning(make, story, kill, kinds):
    writer = make(frame=kinds["lz4"], action=ACTION)
    story.play(writer, 15)
    (writer.path / "frames" / "c.9.0.12ab.tmp").write_bytes(b"")
    (writer.path / ".live" / "more").write_bytes(b"")
    assert not verify(writer.path).warnings[1:]  # the writer may be writing that
    kill(writer)
    report = verify(writer.path)
    assert report.sound
    assert [one.file for one in report.warnings] == ["frames/c.9.0.12ab.tmp", ".live/more"]


@pytest.mark.parametrize("array", ["frames", "actions"])
def test_a_flipped_bit_in_a_checksum_is_told_from_one_in_its_file(lz4_store, array):
    flip(lz4_store / "checksums" / array / "c.0", 2)
    (finding,) = verify(lz4_store).findings
    assert finding.message == (
        "expected a checksum that fits, found one in which a single bit differs"
    )
    assert mmreplay.repair(lz4_store).lost == 0
    report = verify(lz4_store)
    assert (report.findings, report.warnings, report.rows) == ([], [], 37)
