"""`repair` where little is left to go by: what is known is kept, and all else is said."""

import json
import os
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import CorruptStoreError, Field, FormatError, repair, verify
from mmreplay.format import layout
from mmreplay.reading import lane_reader
from tests.support.disks.trees import contents, names

FRAMES = {
    "raw": Field((3,), "uint8", "raw", chunk=8),
    "lz4": Field((3,), "uint8", "lz4", chunk=4, shard=8),
    "dict": {
        "pixels": Field((2, 3), "uint8", "zstd", chunk=4, shard=16),
        "speed": Field((2,), "float32", "raw", chunk=16),
    },
}
LOST = "zarr.json cannot be read: capacity, padding, env, name and random state"
UNKNOWN = ".live cannot be read whole, so nothing tells how many rows there were"
UNSURE = "zarr.json does not match its crc32c"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """A reader does not wait for a damaged file to become whole."""
    monkeypatch.setattr(lane_reader, "_PATIENCE_S", 0)


@pytest.fixture
def open_store(make, story):
    """The writer of a store of 85 rows a lane, of which the first 66 are flushed."""

    def create(kind="lz4", **given):
        writer = make(
            frame=FRAMES[kind],
            action=Field((), "int64", chunk=8),
            extras={"log_prob": Field((2,), "float32", chunk=8)},
            padding="zero",
            metadata={"id": "Doubts-v0"},
            **given,
        )
        for n_steps, end in ((9, "terminated"), (14, "truncated"), (18, "terminated"), (21, "")):
            story.play(writer, n_steps, end)
        writer.flush()
        story.play(writer, 18, reset=True)
        return writer

    return create


@pytest.fixture(scope="module")
def closed_stores():
    """What `closed_store` has made before, by its arguments."""
    return {}


@pytest.fixture
def closed_store(open_store, closed_stores, tmp_path, tmp_path_factory):
    """The path of such a store, closed; made once, then copied."""

    def create(kind="lz4", **given):
        path, key = tmp_path / "store.zarr", (kind, *given.items())
        if key not in closed_stores:
            open_store(kind, **given).close()
            closed_stores[key] = path.rename(tmp_path_factory.mktemp("closed") / "store.zarr")
        return shutil.copytree(closed_stores[key], path)

    return create


@pytest.fixture
def killed_store(open_store, kill):
    """The path of such a store as a kill left it, with all checksums of finished chunk files."""

    def create(kind="lz4", **given):
        writer = open_store(kind, **given)
        writer._background.submit(lambda: None).result()
        kill(writer)
        return writer.path

    return create


def edit(path, *, sealed=False, **changes):
    """Change attributes, and their crc32c if `sealed`."""
    document = json.loads(path.read_text())
    own = document["attributes"]["mmreplay"]
    own.update(changes)
    if sealed:
        own["crc32c"] = layout.digest(own)
    path.write_text(json.dumps(document))


def attributes(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["mmreplay"]


def columns(path):
    with mmreplay.open(path) as store:
        view = store.lanes[0]
        columns = {name: getattr(view, name) for name in ("actions", "rewards", "resets")}
        columns |= (
            {f"frames {key}": one for key, one in view.frames.items()}
            if isinstance(view.frames, dict)
            else {"frames": view.frames}
        )
        return view.base, {name: one[:] for name, one in columns.items()}


def repaired(path, known):
    """Repair; the store has the first rows that are known, and what is damaged stays as it was."""
    before = contents(path)
    done = repair(path)
    assert contents(path.with_name(f"{path.name}.damaged")) == before
    assert verify(path).findings == []
    (base, found), (_, rows) = columns(path), known
    for name, column in found.items():
        stop = len(column) - (name in {"actions", "rewards"})  # the newest is a final row
        assert column[base:stop].tobytes() == rows[name][base:stop].tobytes(), name
    return done


def assert_refused(path, match):
    """Repair raises an error of ours and changes nothing."""
    before = contents(path)
    with pytest.raises(CorruptStoreError, match=match):
        repair(path)
    assert contents(path) == before
    assert names(path.parent) == [path.name]


# ---------------------------------------------------------------- the only copy is lost


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_repair_refuses_when_the_only_layout_of_compressed_frames_is_lost(closed_store, how):
    path = closed_store("dict")
    known = columns(path)
    lost = path / "frames" / "pixels" / "zarr.json"
    document = lost.read_text()
    lost.unlink() if how == "missing" else lost.write_text("{")
    assert_refused(
        path, r"frames/pixels/zarr\.json: lost, and it was the only copy .* put this file"
    )
    # As the error says, that of another store with these fields will do.
    lost.write_text(document.replace("85", "12"))
    assert (repaired(path, known).kept, verify(path).sound) == (85, True)


def test_the_layout_of_raw_frames_follows_from_the_size_of_their_files(closed_store):
    path = closed_store("raw")
    known = columns(path)
    (path / "frames" / "zarr.json").unlink()
    (path / "frames" / "c.3.0").write_bytes(b"short")
    done = repaired(path, known)
    assert (done.kept, done.lanes[0].damaged) == (24, [(24, 32)])


def test_the_layout_of_compressed_frames_is_also_in_the_store_of_their_lane(closed_store):
    path = closed_store("dict", lanes=2)
    (path / "lane-00001" / "frames" / "pixels" / "zarr.json").unlink()
    done = repair(path)
    assert (done.kept, done.lost) == (170, 0)


@pytest.mark.parametrize("lost", [".live", "state and checkpoint"])
@pytest.mark.parametrize("kind", ["raw", "lz4"])
def test_repair_refuses_a_lane_that_was_never_closed_and_lost_its_records(killed_store, kind, lost):
    path = killed_store(kind)
    if lost == ".live":
        shutil.rmtree(path / ".live")
    else:
        for name in ("state", "checkpoint"):
            os.truncate(path / ".live" / name, 50)
    assert ".live" in {finding.file for finding in verify(path).findings}
    assert_refused(path, r"nobody knows how far .* if a backup .* put that back and repair again")


def test_a_lane_that_cannot_be_repaired_does_not_take_the_others_with_it(make, story, kill):
    writer = make(lanes=3)
    story.play(writer, 5, "terminated")
    kill(writer)
    shutil.rmtree(writer.path / "lane-00001" / ".live")
    done = repair(writer.path)
    assert [(lane.kept, lane.missing) for lane in done.lanes] == [(6, False), (0, True), (6, False)]
    assert (done.lost, done.at_least, len(done.notes)) == (0, True, 1)
    assert done.notes[0].startswith("lane-00001: nothing tells what was in it: ")
    assert verify(writer.path).findings == []


# ---------------------------------------------------------------- how far it was written


@pytest.mark.parametrize("capacity", [None, 30])
def test_a_closed_lane_that_says_it_is_open(closed_store, capacity):
    path = closed_store("dict", capacity=capacity)
    known = columns(path)
    edit(path / "zarr.json", closed=False)
    assert {"zarr.json", ".live"} <= {finding.file for finding in verify(path).findings}
    done = repaired(path, known)
    assert (done.lost, done.at_least) == (0, False)
    assert len(columns(path)[1]["rewards"]) == 85
    assert [note.partition(":")[0] for note in done.notes] == [UNSURE]


def test_damage_in_a_closed_lane_that_says_it_is_open(closed_store):
    """Its last chunk files have checksums, as those of a closed lane have."""
    path = closed_store("dict")
    known = columns(path)
    edit(path / "zarr.json", closed=False)
    file = path / "rewards" / "c.10"
    file.write_bytes(bytes([1]) + file.read_bytes()[1:])
    done = repaired(path, known)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (80, 5, [(80, 85)])


@pytest.mark.parametrize("n_steps", [1, 30])
@pytest.mark.parametrize("own", ["sound", "damaged"])
def test_a_reopened_lane_without_live_keeps_the_rows_of_its_last_close(
    closed_store, make, story, kill, n_steps, own
):
    path = closed_store("lz4")
    writer = make(append=True)
    story.lanes[writer.path] = [{}] * writer.rows
    story.play(writer, n_steps)
    kill(writer)
    known = columns(path)
    shutil.rmtree(path / ".live")
    if own == "damaged":
        edit(path / "zarr.json", padding="reset")
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least) == (85, 0, True)


def test_a_crashed_lane_that_says_it_is_closed(killed_store):
    path = killed_store()
    known = columns(path)
    edit(path / "zarr.json", closed=True)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least) == (85, 0, False)


# ---------------------------------------------------------------- a damaged state page


@pytest.fixture
def page_of(killed_store):
    """A store of 85 rows left by a kill, and what changes a word of its state page."""

    def create(kind="dict", **given):
        path = killed_store(kind, **given)

        def change(word, value):
            with (path / ".live" / "state").open("r+b") as file:
                file.seek(8 * word)
                old = int.from_bytes(file.read(8), "little")
                file.seek(8 * word)
                file.write(value(old).to_bytes(8, "little"))

        return path, change

    return create


def assert_rows_of_the_last_flush(done):
    assert (done.kept, done.lost, done.at_least) == (66, 0, True)
    assert done.notes[0].startswith(UNKNOWN)


def test_a_state_page_without_its_magic_is_damage(page_of):
    path, change = page_of()
    known = columns(path)
    change(0, lambda magic: magic ^ 1 << 40)
    (finding,) = verify(path).findings
    assert finding.message.startswith("state: expected a page that begins with MMRSTATE")
    before = contents(path)
    for use in (mmreplay.open, lambda path: mmreplay.create(path, append=True)):
        with pytest.raises(CorruptStoreError, match=r"\.live/state: expected .* `mmreplay repair`"):
            use(path)
    assert before.keys() <= contents(path).keys()
    for name in ("state", "checkpoint"):  # not all: who tried is noted
        assert (path / ".live" / name).read_bytes() == before[f".live/{name}"]
    assert_rows_of_the_last_flush(repaired(path, known))


@pytest.mark.parametrize(("capacity", "bit"), [(None, 0), (20, 6), (20, 63)])
def test_a_base_that_cannot_be_is_not_believed(page_of, capacity, bit):
    path, change = page_of(capacity=capacity)
    known = columns(path)
    change(2, lambda base: base ^ 1 << bit)
    assert any(".live" in finding.file for finding in verify(path).findings)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least, done.notes) == (85 - known[0], 0, False, [])
    assert attributes(path)["capacity"] == capacity


@pytest.mark.parametrize(("kind", "bit"), [("dict", 0), ("dict", 7), ("lz4", 5), ("lz4", 63)])
def test_a_tail_start_that_cannot_be_is_not_believed(page_of, kind, bit):
    path, change = page_of(kind)
    known = columns(path)
    change(3, lambda start: start ^ 1 << bit)
    assert ".live/state" in {finding.file for finding in verify(path).findings}
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least, done.notes) == (85, 0, False, [])


@pytest.mark.parametrize(("kind", "bit"), [("raw", 12), ("dict", 40)])
def test_a_head_past_all_chunk_files_is_not_believed(page_of, kind, bit):
    path, change = page_of(kind)
    known = columns(path)
    change(4, lambda committed: committed ^ 1 << bit)
    assert any(".live" in finding.file for finding in verify(path).findings)
    assert_rows_of_the_last_flush(repaired(path, known))


def test_a_head_before_the_last_flush_is_not_believed(page_of):
    path, change = page_of()
    known = columns(path)
    change(4, lambda committed: committed ^ 64)
    (finding,) = verify(path).findings
    assert finding.message == (
        "committed: expected at least the head of the checkpoint, 66, found 21"
    )
    assert_rows_of_the_last_flush(repaired(path, known))


@pytest.mark.parametrize("kind", ["raw", "dict"])
def test_a_page_whose_checkpoint_lost_its_newest_slot(page_of, kind):
    """Then the page is all that tells of base and tail_start."""
    path, _ = page_of(kind, capacity=20)
    known = columns(path)
    file = path / ".live" / "checkpoint"
    data = bytearray(file.read_bytes())
    newest = max((0, 4096), key=lambda slot: data[slot + 40])
    data[newest + 48] ^= 1
    file.write_bytes(data)
    (path / "rewards" / "c.10").unlink()
    done = repaired(path, known)
    assert (done.kept, done.lost) == (80 - known[0], 5)
    assert done.lanes[0].damaged == [(80, 85)]


# ---------------------------------------------------------------- what is lost is counted


def test_rows_of_a_lost_tail_are_counted(killed_store):
    path = killed_store()
    known = columns(path)
    (path / ".live" / "frames.tail").unlink()
    done = repaired(path, known)
    assert (done.kept + done.lost, done.at_least, done.notes) == (85, False, [])
    assert done.lost in (5, 13)


def test_without_the_state_the_rows_of_the_last_flush_are_kept(killed_store):
    path = killed_store("raw")
    known = columns(path)
    (path / ".live" / "state").unlink()
    assert_rows_of_the_last_flush(repaired(path, known))


def test_untrusted_rows_of_a_damaged_store_are_counted(killed_store, tmp_path):
    path = shutil.copytree(killed_store("raw"), tmp_path / "copy.zarr")
    (path / "rewards" / "c.3").unlink()
    done = repair(path)
    assert (done.kept, done.lost, done.untrusted, done.at_least) == (24, 42, 19, False)


def test_how_many_rows_a_missing_lane_had_is_not_known(closed_store):
    path = closed_store("lz4", lanes=3)
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert (done.lost, done.at_least) == (0, True)


def test_a_flipped_bit_in_a_checksum_costs_no_row(closed_store):
    path = closed_store("raw")
    known = columns(path)
    for array, chunk in (("rewards", 0), ("resets", 5), ("frames", 5), ("frames", 10)):
        file = path / "checksums" / array / "c.0"
        data = bytearray(file.read_bytes())
        data[4 * chunk + 2] ^= 8
        file.write_bytes(data)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.notes) == (85, 0, [])


# ---------------------------------------------------------------- attributes


@pytest.mark.parametrize("own", [[1, 2], None, {"crc32c": []}])
def test_attributes_that_are_something_else(closed_store, own):
    path = closed_store("raw")
    known = columns(path)
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"mmreplay": own}}
    (path / "zarr.json").write_text(json.dumps(document))
    assert "zarr.json" in {finding.file for finding in verify(path).findings}
    assert repaired(path, known).notes[0].startswith(LOST)


def test_another_format_whose_crc32c_does_not_fit_is_damage(closed_store):
    path = closed_store()
    known = columns(path)
    edit(path / "zarr.json", format=3)
    messages = [finding.message for finding in verify(path).findings]
    assert any("expected format 1, found 3" in message for message in messages)
    assert any("expected crc32c" in message for message in messages)
    done = repaired(path, known)
    assert (done.kept, done.lost) == (85, 0)
    assert done.notes[0].startswith(LOST)


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("number", [2, [3]])
def test_a_newer_format_is_not_repaired(closed_store, tmp_path, lanes, number):
    path = closed_store(lanes=lanes)
    edit(path / "zarr.json", sealed=True, format=number)
    before = contents(path)
    with pytest.raises(FormatError, match="a newer mmreplay may read it"):
        repair(path)
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_attributes_that_cannot_be_read_are_reported(closed_store):
    path = closed_store()
    known = columns(path)
    (path / "zarr.json").write_text("{")
    done = repaired(path, known)
    assert (done.lost, done.at_least, len(done.notes)) == (0, False, 1)
    assert done.notes[0].startswith(LOST)
    assert "now capacity is None, padding 'reset'" in done.notes[0]
    assert done.to_json()["notes"] == done.notes


def test_a_flipped_bit_in_an_attribute_is_kept_and_reported(closed_store):
    path = closed_store()
    known = columns(path)
    edit(path / "zarr.json", env={"id": "Doubtr-v0"})
    done = repaired(path, known)
    assert (done.kept, done.lost, len(done.notes)) == (85, 0, 1)
    assert done.notes[0].startswith(UNSURE)
    assert attributes(path)["env"] == {"id": "Doubtr-v0"}


def test_attributes_of_a_lane_come_from_its_store(closed_store):
    path = closed_store(lanes=2)
    (path / "lane-00001" / "zarr.json").write_text("{")
    done = repair(path)
    assert done.lost == 0
    assert done.notes[0].startswith(f"lane-00001: {LOST}")
    assert "padding 'zero', and env as those of the store" in done.notes[0]
    own = attributes(path / "lane-00001")
    assert (own["padding"], own["env"]) == ("zero", {"id": "Doubts-v0"})


@pytest.mark.parametrize("how", ["cut", "one bit"])
def test_attributes_of_a_store_come_from_its_lanes(closed_store, how):
    path = closed_store(lanes=2)
    if how == "cut":
        (path / "zarr.json").write_text("{")
    else:
        edit(path / "zarr.json", capacity=70)
    done = repair(path)
    assert done.lost == 0
    assert len(done.notes) == 1
    assert done.notes[0].startswith("zarr.json of the store is damaged: capacity, padding, env")
    assert done.notes[0].endswith("are now those of lane-00000")
    assert (attributes(path)["padding"], attributes(path)["capacity"]) == ("zero", None)


def test_the_checkpoint_of_a_lane_without_attributes_still_counts(killed_store, tmp_path):
    """The lane's uuid is in it, too: it is not that of another lane."""
    original = killed_store("raw")
    known = columns(original)
    path = shutil.copytree(original, tmp_path / "copy.zarr")  # where the state is not trusted
    (path / "zarr.json").unlink()
    done = repaired(path, known)
    assert (done.kept, done.untrusted, done.at_least) == (66, 19, False)


def test_a_schema_that_its_crc32c_proves_wins_over_an_array(closed_store):
    path = closed_store("raw")
    known = columns(path)
    file = path / "frames" / "zarr.json"
    file.write_text(file.read_text().replace('"uint8"', '"int8"'))
    done = repaired(path, known)
    assert (done.kept, done.lost) == (85, 0)
    assert np.array_equal(columns(path)[1]["frames"], known[1]["frames"])


def test_repair_refuses_when_a_damaged_schema_and_an_array_contradict_each_other(closed_store):
    path = closed_store("raw")
    document = path / "zarr.json"
    document.write_text(document.read_text().replace('"dtype": "uint8"', '"dtype": "int8"', 1))
    assert_refused(path, "contradict each other, and nothing tells which is right")
