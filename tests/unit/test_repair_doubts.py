"""`repair` where little is left to go by: what can be proved is kept, and all else is said."""

import json
import os
import random
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import CorruptStoreError, Field, FormatError, format, reader, repair, verify
from mmreplay.integrity.attributes import read_attributes

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
MENDED = "zarr.json: one flipped bit in it was put right"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody will make it whole."""
    monkeypatch.setattr(reader, "_PATIENCE_S", 0)


@pytest.fixture(params=FRAMES)
def kind(request):
    return request.param


@pytest.fixture
def store_of(make, story):
    """A store of 85 rows a lane, of which the first 66 are flushed: `store_of(kind, **given)`."""

    def create(kind="lz4", *, close=True, **given):
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
        if close:
            writer.close()
        else:  # what is to be done beside, such as checksums, is done
            writer._background.submit(lambda: None).result()
        return writer

    return create


def edit(path, *, sealed=False, **changes):
    """Change attributes, and their crc32c if `sealed`."""
    document = json.loads(path.read_text())
    own = document["attributes"]["mmreplay"]
    own.update(changes)
    if sealed:
        own["crc32c"] = format.digest(own)
    path.write_text(json.dumps(document))


def attributes(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["mmreplay"]


def contents(path):
    return {
        str(one.relative_to(path)): one.read_bytes() if one.is_file() else None
        for one in path.rglob("*")
    }


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


def check_prefix(path, known):
    """A repaired store has the first rows of what there was; its newest is a final row."""
    assert verify(path).findings == []
    (base, found), (_, rows) = columns(path), known
    for name, column in found.items():
        stop = len(column) - (name in {"actions", "rewards"})
        assert column[base:stop].tobytes() == rows[name][base:stop].tobytes(), name


def repaired(path, known):
    """Repair; what is damaged stays as it was."""
    before = contents(path)
    done = repair(path)
    assert contents(path.with_name(f"{path.name}.damaged")) == before
    check_prefix(path, known)
    return done


# ---------------------------------------------------------------- how far it was written


@pytest.mark.parametrize("capacity", [None, 30])
def test_a_closed_lane_that_says_it_is_open(store_of, kind, capacity):
    path = store_of(kind, capacity=capacity).path
    known = columns(path)
    edit(path / "zarr.json", closed=False)
    files = {one.file for one in verify(path).findings}
    assert {"zarr.json", ".live"} <= files
    done = repaired(path, known)
    assert (done.lost, done.at_least) == (0, False)
    assert len(columns(path)[1]["rewards"]) == 85
    assert [one.partition(":")[0] for one in done.notes] == [UNSURE]


def test_damage_in_a_closed_lane_that_says_it_is_open(store_of, kind):
    """Its last chunk files have checksums, as those of a closed lane have."""
    path = store_of(kind).path
    known = columns(path)
    edit(path / "zarr.json", closed=False)
    file = path / "rewards" / "c.10"
    file.write_bytes(bytes([1]) + file.read_bytes()[1:])
    done = repaired(path, known)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (80, 5, [(80, 85)])


@pytest.mark.parametrize("capacity", [None, 20])
@pytest.mark.parametrize("lost", [".live", "state and checkpoint"])
def test_an_open_lane_that_lost_what_it_kept_beside(store_of, kill, kind, capacity, lost):
    """What is proved by checksums is kept: whole chunk files, without a hole."""
    writer = store_of(kind, close=False, capacity=capacity)
    path = writer.path
    kill(writer)
    known = columns(path)
    if lost == ".live":
        shutil.rmtree(path / ".live")
    else:
        for name in ("state", "checkpoint"):
            os.truncate(path / ".live" / name, 50)
    assert ".live" in {one.file for one in verify(path).findings}
    done = repaired(path, known)
    assert (done.at_least, done.lost) == (True, 0)
    assert done.notes[0].startswith(UNKNOWN)
    rows = len(columns(path)[1]["rewards"])
    assert 64 <= rows <= 85
    assert rows % 8 == 0


def test_a_lane_that_was_reopened_keeps_at_least_the_rows_of_its_last_close(
    store_of, make, story, kill
):
    path = store_of("lz4").path
    writer = make(append=True)
    story.play(writer, 1)
    kill(writer)
    known = columns(path)
    shutil.rmtree(path / ".live")
    done = repaired(path, known)
    assert (done.kept, done.at_least) == (85, True)


@pytest.mark.parametrize("chunk", [5, 9])
def test_rows_that_no_checksum_speaks_of_are_not_kept(store_of, kill, chunk):
    writer = store_of("raw", close=False)
    path = writer.path
    kill(writer)
    known = columns(path)
    shutil.rmtree(path / ".live")
    (path / "rewards" / f"c.{chunk}").write_bytes(bytes(64))
    done = repaired(path, known)
    assert (done.kept, done.at_least) == (8 * chunk, True)


def test_nothing_is_proved(make, story, kill, tmp_path):
    writer = make()
    story.play(writer, 5)
    kill(writer)
    shutil.rmtree(writer.path / ".live")
    before = contents(writer.path)
    with pytest.raises(CorruptStoreError, match="nobody knows how far"):
        repair(writer.path)
    assert contents(writer.path) == before
    assert [one.name for one in tmp_path.iterdir()] == ["store.zarr"]


def test_a_crashed_lane_that_says_it_is_closed(store_of, kill):
    writer = store_of("lz4", close=False)
    path = writer.path
    kill(writer)
    known = columns(path)
    edit(path / "zarr.json", closed=True)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least) == (85, 0, False)


# ---------------------------------------------------------------- a damaged state page


@pytest.fixture
def page_of(store_of, kill):
    """A store of 85 rows left by a kill, and what changes a word of its state page."""

    def create(kind, **given):
        writer = store_of(kind, close=False, **given)
        kill(writer)

        def change(word, value):
            with (writer.path / ".live" / "state").open("r+b") as file:
                file.seek(8 * word)
                old = int.from_bytes(file.read(8), "little")
                file.seek(8 * word)
                file.write(value(old).to_bytes(8, "little"))

        return writer.path, change

    return create


def test_a_page_without_its_magic_is_damage(page_of, kind):
    path, change = page_of(kind)
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
    done = repaired(path, known)
    assert 66 <= done.kept <= 80  # flushed, or in chunk files that were finished
    assert (done.at_least, done.lost) == (True, 0)
    assert done.notes[0].startswith(UNKNOWN)


@pytest.mark.parametrize("capacity", [None, 20])
@pytest.mark.parametrize("value", [1, 64, 1 << 63])
def test_a_base_that_cannot_be_is_not_believed(page_of, kind, capacity, value):
    path, change = page_of(kind, capacity=capacity)
    known = columns(path)
    change(2, lambda base: base ^ value)
    assert any(".live" in one.file for one in verify(path).findings)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least, done.notes) == (85 - known[0], 0, False, [])
    assert attributes(path)["capacity"] == capacity


@pytest.mark.parametrize("value", [1, 32, 128, 1 << 63])
@pytest.mark.parametrize("kind", ["lz4", "dict"])
def test_a_tail_start_that_cannot_be_is_not_believed(page_of, kind, value):
    path, change = page_of(kind)
    known = columns(path)
    change(3, lambda start: start ^ value)
    assert ".live/state" in {one.file for one in verify(path).findings}
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least, done.notes) == (85, 0, False, [])


@pytest.mark.parametrize("value", [1 << 12, 1 << 39, 1 << 40])
def test_more_rows_than_there_can_be(page_of, kind, value):
    path, change = page_of(kind)
    known = columns(path)
    change(4, lambda committed: committed ^ value)
    assert any(".live" in one.file for one in verify(path).findings)
    done = repaired(path, known)
    assert 66 <= done.kept <= 80
    assert (done.at_least, done.lost) == (True, 0)
    assert done.notes[0].startswith(UNKNOWN)


def test_fewer_rows_than_were_flushed(page_of, kind):
    path, change = page_of(kind)
    known = columns(path)
    change(4, lambda committed: committed ^ 64)
    (finding,) = verify(path).findings
    assert finding.message == (
        "committed: expected at least the head of the checkpoint, 66, found 21"
    )
    done = repaired(path, known)
    assert 66 <= done.kept <= 80
    assert done.at_least


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


def test_rows_of_a_tail_that_is_lost_are_counted(store_of, kill):
    writer = store_of("lz4", close=False)
    path = writer.path
    kill(writer)
    known = columns(path)
    (path / ".live" / "frames.tail").unlink()
    done = repaired(path, known)
    assert (done.kept + done.lost, done.at_least, done.notes) == (85, False, [])
    assert done.lost in (5, 13)


def test_without_the_state_nobody_knows_how_many_are_lost(store_of, kill):
    """The checkpoint is of the last flush; chunk files that were finished since prove more."""
    writer = store_of("raw", close=False)
    path = writer.path
    kill(writer)
    known = columns(path)
    (path / ".live" / "state").unlink()
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least) == (80, 0, True)
    assert done.notes[0].startswith(UNKNOWN)


def test_untrusted_rows_of_a_damaged_store_are_counted(store_of, kill, tmp_path):
    writer = store_of("raw", close=False)
    kill(writer)
    path = tmp_path / "copy.zarr"
    shutil.copytree(writer.path, path)
    (path / "rewards" / "c.3").unlink()
    done = repair(path)
    assert (done.kept, done.lost, done.untrusted, done.at_least) == (24, 42, 19, False)


@pytest.mark.parametrize("own", [[1, 2], "text", None, {"crc32c": []}, {"format": [3]}])
def test_attributes_that_are_something_else(store_of, own):
    path = store_of("raw").path
    known = columns(path)
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"mmreplay": own}}
    (path / "zarr.json").write_text(json.dumps(document))
    assert "zarr.json" in {one.file for one in verify(path).findings}
    if isinstance(own, dict) and "format" in own:
        with pytest.raises(FormatError, match="a newer mmreplay"):
            repair(path)
    else:
        assert repaired(path, known).notes[0].startswith(LOST)


def test_a_lane_that_is_gone_had_nobody_knows_how_many_rows(store_of):
    path = store_of("lz4", lanes=3).path
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert (done.lost, done.at_least) == (0, True)


@pytest.mark.parametrize("array", ["rewards", "resets", "frames"])
def test_a_flipped_bit_in_any_checksum_costs_no_row(store_of, array):
    path = store_of("raw").path
    known = columns(path)
    file = path / "checksums" / array / "c.0"
    sound = file.read_bytes()
    for chunk in (0, 5, 10):
        data = bytearray(sound)
        data[4 * chunk + 2] ^= 8
        file.write_bytes(data)
        done = repaired(path, known)
        assert (done.kept, done.lost, done.notes) == (85, 0, [])
        shutil.rmtree(path)
        shutil.move(done.before, path)
        file.write_bytes(sound)


# ---------------------------------------------------------------- attributes


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_flipped_bit_in_attributes_is_put_right(store_of, lanes):
    path = store_of("lz4", lanes=lanes, capacity=70).path
    files = sorted([path / "zarr.json", *path.glob("lane-00001/zarr.json")])
    sound = {file: file.read_bytes() for file in files}
    luck = random.Random(lanes)
    for _ in range(12):
        file = luck.choice(files)
        data = bytearray(sound[file])
        data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        file.write_bytes(data)
        if json_of(data) != json_of(sound[file]):
            done = repair(path)
            assert (done.changed, done.lost) == (True, 0)
            where = "" if file.parent == path else "lane-00001: "
            assert done.notes == [] or done.notes[0].startswith(where + MENDED)
            old, new = json.loads(sound[file])["attributes"]["mmreplay"], attributes(file.parent)
            for name in ("capacity", "padding", "env", "rows", "first", "closed", "schema"):
                assert new.get(name) == old.get(name), name
            shutil.rmtree(path)
            shutil.move(done.before, path)
        file.write_bytes(sound[file])
    assert verify(path).findings == []


def json_of(data):
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_another_format_whose_crc32c_does_not_fit_is_damage(store_of):
    path = store_of().path
    known = columns(path)
    edit(path / "zarr.json", format=3)
    found = [one.message for one in verify(path).findings]
    assert any("expected format 1, found 3" in one for one in found)
    assert any("expected crc32c" in one for one in found)
    done = repaired(path, known)
    assert (done.kept, done.lost) == (85, 0)
    assert attributes(path)["padding"] == "zero"


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_newer_format_is_not_repaired(store_of, tmp_path, lanes):
    path = store_of(lanes=lanes).path
    edit(path / "zarr.json", sealed=True, format=2)
    before = contents(path)
    with pytest.raises(FormatError, match="a newer mmreplay may read it"):
        repair(path)
    assert contents(path) == before
    assert [one.name for one in tmp_path.iterdir()] == ["store.zarr"]


def test_attributes_that_cannot_be_read_are_told(store_of):
    path = store_of().path
    known = columns(path)
    (path / "zarr.json").write_text("{")
    done = repaired(path, known)
    assert (done.lost, done.at_least, len(done.notes)) == (0, False, 1)
    assert done.notes[0].startswith(LOST)
    assert "now capacity is None, padding 'reset'" in done.notes[0]
    assert done.to_json()["notes"] == done.notes


def test_attributes_of_a_lane_come_from_its_store(store_of):
    path = store_of(lanes=2).path
    (path / "lane-00001" / "zarr.json").write_text("{")
    done = repair(path)
    assert done.lost == 0
    assert done.notes[0].startswith(f"lane-00001: {LOST}")
    assert "padding 'zero', and env as those of the store" in done.notes[0]
    own = attributes(path / "lane-00001")
    assert (own["padding"], own["env"]) == ("zero", {"id": "Doubts-v0"})


def test_attributes_of_a_store_come_from_its_lanes(store_of):
    path = store_of(lanes=2).path
    (path / "zarr.json").write_text("{")
    done = repair(path)
    assert done.lost == 0
    assert len(done.notes) == 1
    assert done.notes[0].startswith("zarr.json of the store is damaged: capacity, padding, env")
    assert done.notes[0].endswith("are now those of lane-00000")
    assert attributes(path)["padding"] == "zero"


def test_the_checkpoint_of_a_lane_without_attributes(store_of, kill, tmp_path):
    """Its uuid is in it, too: it is not that of another lane."""
    writer = store_of("raw", close=False)
    kill(writer)
    known = columns(writer.path)
    path = tmp_path / "copy.zarr"  # so that nobody trusts the state
    shutil.copytree(writer.path, path)
    (path / "zarr.json").unlink()
    done = repaired(path, known)
    assert (done.kept, done.untrusted, done.at_least) == (66, 19, False)


def test_a_lane_that_tells_nothing_does_not_take_the_others_with_it(make, story, kill):
    writer = make(lanes=3)
    story.play(writer, 5, "terminated")
    kill(writer)
    shutil.rmtree(writer.path / "lane-00001" / ".live")
    done = repair(writer.path)
    assert [(one.kept, one.missing) for one in done.lanes] == [(6, False), (0, True), (6, False)]
    assert (done.lost, done.at_least, len(done.notes)) == (0, True, 1)
    assert done.notes[0].startswith("lane-00001: nothing tells what was in it: ")
    assert verify(writer.path).findings == []


def test_attributes_too_long_to_try_every_bit(make, story):
    writer = make(metadata={"text": "x" * 5_000})
    story.play(writer, 5)
    writer.close()
    file = writer.path / "zarr.json"
    file.write_bytes(file.read_bytes().replace(b"xx", b"xy", 1))
    found = read_attributes(writer.path, "lane")
    assert (found.sure, found.mended) == (False, False)
    assert found.own["env"]["text"].startswith("xy")
    assert repair(writer.path).notes[0].startswith(UNSURE)


def test_a_schema_that_its_crc32c_proves_wins_over_an_array(store_of):
    path = store_of("raw").path
    known = columns(path)
    file = path / "frames" / "zarr.json"
    file.write_text(file.read_text().replace('"uint8"', '"int8"'))
    done = repaired(path, known)
    assert (done.kept, done.lost) == (85, 0)
    assert np.array_equal(columns(path)[1]["frames"], known[1]["frames"])
