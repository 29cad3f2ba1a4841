"""`repair`: what is sound is kept, what is not is named, and the damaged store stays as it was."""

import json
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    Field,
    LockedError,
    PrioritizedReplayBuffer,
    SchemaError,
    StoreNotFoundError,
    repair,
    verify,
)
from mmreplay.reading import lane_reader
from mmreplay.storage import lane_metadata
from tests.support.disks.trees import contents, flip, names
from tests.support.tampering.damage import lane_directories

ACTION = Field((), "int64", chunk=8)
EXTRAS = {"log_prob": Field((2,), "float32", chunk=8)}
ROWS = 85


@pytest.fixture
def open_store(make, story, kinds):
    """The writer of a store of 85 rows a lane and round."""

    def create(kind="lz4", lanes=None, *, capacity=None, rounds=1):
        writer = make(
            frame=kinds[kind], action=ACTION, extras=EXTRAS, lanes=lanes, capacity=capacity
        )
        for _ in range(rounds):
            story.play(writer, 9, "terminated")
            story.play(writer, 14, "truncated")
            story.play(writer, 18, "terminated")
            story.play(writer, 22, "truncated")
            story.play(writer, 17)
        return writer

    return create


@pytest.fixture(scope="module")
def closed_stores():
    """The stores that `closed_store` has made, and their story, by its arguments."""
    return {}


@pytest.fixture
def closed_store(open_store, closed_stores, story, tmp_path, tmp_path_factory):
    """The path of such a store, closed; made once, then copied with its story."""

    def create(*arguments, name="store.zarr", **given):
        path, key = tmp_path / "store.zarr", (*arguments, *given.items())
        if key not in closed_stores:
            open_store(*arguments, **given).close()
            sound = path.rename(tmp_path_factory.mktemp("closed") / "store.zarr")
            rows = {lane.relative_to(path): rows for lane, rows in story.lanes.items()}
            closed_stores[key] = sound, rows
        sound, rows = closed_stores[key]
        target = tmp_path / name
        for lane in rows:
            story.lanes[target / lane] = [dict(row) for row in rows[lane]]
        return shutil.copytree(sound, target)

    return create


@pytest.fixture
def killed_store(open_store, kill):
    """The path of such a store as a kill left it, with all checksums of finished chunk files."""

    def create(*arguments, **given):
        writer = open_store(*arguments, **given)
        writer.flush()
        for one in getattr(writer, "writers", (writer,)):
            one._background.submit(lambda: None).result()
        kill(writer)
        return writer.path

    return create


def transitions(path, ids=None):
    with mmreplay.open(path) as store:
        wanted = store.ids if ids is None else ids
        return wanted, store.transitions(wanted, stack=3, n_step=1)


def arrays(batch):
    found = {"action": batch.action, "reward": batch.reward, "flag": batch.non_terminal}
    observation = (
        batch.observation if isinstance(batch.observation, dict) else {"": batch.observation}
    )
    following = batch.next_observation
    following = following if isinstance(following, dict) else {"": following}
    found |= {f"observation {key}": one for key, one in observation.items()}
    found |= {f"next {key}": one for key, one in following.items()}
    return found | batch.extras


def check_kept(path, original):
    """Whatever can be sampled of a store is what the original has at the same ids."""
    assert verify(path).findings == []
    ids, kept = transitions(path)
    if len(ids):
        _, known = transitions(original, ids)
        for name, one in arrays(kept).items():
            assert one.tobytes() == arrays(known)[name].tobytes(), name
    return ids


# ---------------------------------------------------------------- files


def note(array, which="its rows"):
    return (
        f"{array}: {which} had no checksum any more; they are kept as they stand, and may not be "
        f"what was written"
    )


@pytest.mark.parametrize(
    ("array", "how"), [("rewards", "directory"), ("frames", "file"), ("rewards", "cut")]
)
def test_rows_that_lost_their_checksums_are_kept_and_reported(closed_store, array, how):
    path, original = closed_store("lz4"), closed_store("lz4", name="original.zarr")
    file = next((path / "checksums" / array).rglob("c.0"))
    if how == "directory":
        shutil.rmtree(path / "checksums" / array)
    elif how == "file":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:8])
    done = repair(path)
    assert (done.kept, done.lost, done.notes) == (ROWS, 0, [note(array)])
    assert len(check_kept(path, original)) == 80
    assert repair(path).changed is False


def test_only_kept_rows_without_a_checksum_are_reported(closed_store):
    path = closed_store("lz4")
    for array, chunks in (("actions", (0, 2, 3, 8)), ("frames", (1,)), ("rewards", (7,))):
        with (path / "checksums" / array / "c.0").open("r+b") as file:
            for chunk in chunks:
                file.seek(4 * chunk)
                file.write(bytes(4))
    flip(path / "resets" / "c.6")  # rows 48 to 55
    done = repair(path)
    assert done.kept == 48
    assert done.notes == [note("actions", "rows 0 to 7, 16 to 31"), note("frames", "rows 8 to 15")]
    assert list(done.lanes[0].notes) == done.notes


def test_a_crashed_lane_that_lost_its_checksums(killed_store, monkeypatch):
    monkeypatch.setattr(lane_reader, "_PATIENCE_S", 0)
    path = killed_store("lz4")
    shutil.rmtree(path / "checksums" / "rewards")
    (path / "checksums" / "actions" / "zarr.json").unlink()  # the checksums are there
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS, 0)
    assert done.notes == [note("rewards", "rows 0 to 79")]


def test_damage_past_the_last_row_costs_no_row(closed_store):
    path, original = closed_store("dict"), closed_store("dict", name="original.zarr")
    for name in ("actions", "resets", "extras/log_prob"):
        flip(next((path / name).glob("c.10*")), -1)
    assert len(verify(path).findings) >= 3
    done = repair(path)
    assert (done.changed, done.kept, done.lost) == (True, ROWS, 0)
    assert len(check_kept(path, original)) == 80


# ---------------------------------------------------------------- whole episodes


@pytest.mark.parametrize("kind", ["raw", "dict"])
def test_skip_damaged_cuts_out_the_damaged_episode_only(closed_store, story, tmp_path, kind):
    path = closed_store(kind)
    flip(path / "actions" / "c.3")  # rows 24 to 31: in the third episode, of rows 25 to 43
    before, rows = contents(path), story.lanes[path]
    done = repair(path, skip_damaged=True)
    (lane,) = done.lanes
    assert lane.damaged == [(24, 32)]
    # Rows 0 to 23 are the first two episodes but for the last row of the second.
    assert (lane.kept, lane.lost, lane.beyond, lane.renumbered) == (24 + 41, 20, 0, True)
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert verify(path).findings == []
    with mmreplay.open(path) as store:
        found = store.rewards[:]
        assert store.resets[:].tolist() == [one["reset"] for one in rows[:24] + rows[44:]]
    expected = [story.reward(row) * one["step"] for row, one in enumerate(rows)]
    expected[23] = 0  # the newest row before the damage became a final row
    assert found.tolist() == expected[:24] + expected[44:]


def test_the_rows_that_skip_damaged_would_keep_are_counted(closed_store):
    path = closed_store()
    flip(path / "rewards" / "c.0")
    done = repair(path)
    (lane,) = done.lanes
    assert (lane.kept, lane.lost, lane.beyond) == (0, ROWS, ROWS - 10)
    assert len(mmreplay.open(path)) == 0
    again = repair(done.before, skip_damaged=True)
    assert (again.kept, again.beyond) == (ROWS - 10, 0)
    assert len(mmreplay.open(done.before)) == 80 - 9


@pytest.mark.parametrize("kind", ["raw", "dict"])
def test_a_store_with_evicted_rows(closed_store, kind):
    given = {"capacity": 120, "rounds": 4}
    path = closed_store(kind, **given)
    original = closed_store(kind, name="original.zarr", **given)
    first, head = mmreplay.open(path).lanes[0].first, mmreplay.open(path).lanes[0].rows
    flip(path / "actions" / f"c.{(head - 20) // 8}")
    done = repair(path)
    ids = check_kept(path, original)
    assert ids[0] == mmreplay.open(original).ids[0] >= first
    assert done.lanes[0].damaged[0][0] == (head - 20) // 8 * 8
    # So little of it that nothing could be sampled: the ids begin anew.
    flip(original / "actions" / f"c.{first // 8 - 4}")
    done = repair(original)
    assert (done.kept, len(mmreplay.open(original))) == (0, 0)
    assert verify(original).sound


def test_damage_in_evicted_rows_of_a_shard_costs_no_row(closed_store):
    given = {"capacity": 36, "rounds": 4}
    path = closed_store("lz4", **given)
    original = closed_store("lz4", name="original.zarr", **given)
    base = mmreplay.open(path).lanes[0].base
    shard = path / "frames" / f"c.{base // 8}.0"
    assert base % 8 >= 4  # its first inner chunk, of four rows, is gone
    flip(shard, 17)
    assert any("inner chunk 0" in one.message for one in verify(path).findings)
    done = repair(path)
    assert (done.changed, done.lost) == (True, 0)
    assert np.array_equal(check_kept(path, original), mmreplay.open(original).ids)
    assert verify(path).warnings == []


def test_episodes_between_two_damaged_chunks_of_a_shard_are_kept(make, story):
    frame = Field((3,), "uint8", "lz4", chunk=4, shard=64)
    writer = make(frame=frame, action=ACTION)
    for _ in range(12):
        story.play(writer, 7, "terminated")
    writer.close()
    shard = writer.path / "frames" / "c.0.0"
    data = shard.read_bytes()
    table = np.frombuffer(data[-(16 * 16 + 4) : -4], "<u8").reshape(16, 2)
    for inner in (4, 10):  # rows 16 to 19 and 40 to 43: in the third and the sixth episode
        flip(shard, int(table[inner, 0]) + 9)
    spans = [one.rows for one in verify(writer.path).findings]
    assert spans == [(0, 64), (16, 20), (40, 44)]
    done = repair(writer.path, skip_damaged=True)
    assert done.lanes[0].damaged == [(16, 20), (40, 44)]
    assert done.lost == 2 * 8


def test_shards_that_were_exchanged_are_both_lost(closed_store):
    """Also where one is the last, short one, so that the other seems to lack inner chunks."""
    path, original = closed_store("lz4"), closed_store("lz4", name="original.zarr")
    one, two = path / "frames" / "c.3.0", path / "frames" / f"c.{ROWS // 8}.0"
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    assert any("found another" in one.message for one in verify(path).findings)
    done = repair(path)
    assert done.lanes[0].damaged[0] == (24, 32)
    assert done.kept == 24
    check_kept(path, original)


def test_the_episode_right_before_damage_is_whole(make, story):
    writer = make(action=ACTION)
    for _ in range(6):
        story.play(writer, 7, "terminated")  # eight rows each, as a chunk file
    writer.close()
    flip(writer.path / "rewards" / "c.1")
    flip(writer.path / "rewards" / "c.3")
    flip(writer.path / "resets" / "c.5")
    done = repair(writer.path, skip_damaged=True)
    assert done.lanes[0].damaged == [(8, 16), (24, 32), (40, 48)]
    # Row 24 begins an episode, say the reset bits; of row 40 they cannot.
    assert (done.kept, done.lost) == (8 + 8, 4 * 8)


def test_an_episode_after_the_damage_is_copied_in_pieces(make, story, monkeypatch, kinds):
    monkeypatch.setattr("mmreplay.maintenance.copy_lane._STEP_BYTES", 100)
    extras = {"log_prob": Field((), "float32", chunk=8)}
    writer = make(frame=kinds["dict"], action=ACTION, extras=extras)
    story.play(writer, 15, "terminated")
    story.play(writer, 47, "truncated")
    writer.close()
    with mmreplay.open(writer.path) as store:
        expected = store.trajectory(1)
        before = [
            expected.action.copy(),
            expected.reward.copy(),
            expected.extras["log_prob"].copy(),
        ]
        frames = {key: one.copy() for key, one in expected.observation.items()}
    flip(writer.path / "rewards" / "c.1")
    assert repair(writer.path, skip_damaged=True).kept == 8 + 48
    with mmreplay.open(writer.path) as store:
        found = store.trajectory(1)
        assert found.truncated
        for left, right in zip(
            before, (found.action, found.reward, found.extras["log_prob"]), strict=True
        ):
            assert np.array_equal(left, right)
        for key, one in frames.items():
            assert np.array_equal(one, found.observation[key])


@pytest.mark.parametrize("what", ["document", "actions", "priorities", "all", "own document"])
def test_priorities_are_kept(tmp_path, what, kinds):
    path = tmp_path / "store.zarr"
    with PrioritizedReplayBuffer(path, frame=kinds["raw"], action=ACTION, flush_s=0) as buffer:
        buffer.reset(np.zeros(3, np.uint8))
        for step in range(60):
            buffer.step(0, 0.0, np.full(3, step, np.uint8))
        ids = buffer.ids
        buffer.update_priorities(ids, 1.0 + ids)
        known = buffer.priorities(ids)
    if what == "document":
        (path / "rewards" / "zarr.json").unlink()
    elif what == "actions":
        flip(path / "actions" / "c.5")
    elif what == "all":
        shutil.rmtree(path / "priorities")
    elif what == "own document":
        (path / "priorities" / "zarr.json").write_text("{")
    else:
        flip(path / "priorities" / "c.0", 8 * 3)
    done = repair(path)
    kept = what in {"document", "actions"}
    assert [one.partition(":")[0] for one in done.notes] == ([] if kept else ["priorities"])
    assert done.changed
    assert done.lost == (61 - 40 if what == "actions" else 0)
    with PrioritizedReplayBuffer(path, flush_s=0) as again:
        found = again.priorities(again.ids)
        assert again.stored_state["sampler"]["largest"] == known.max()
    if kept:
        assert np.array_equal(found, known[: len(found)])
    else:  # whichever of them it was, the file is not what was written
        assert (found == known.max()).all()


# ---------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("kind", "lanes", "which"),
    [
        ("raw", None, "its own"),
        ("raw", None, "all others"),
        ("zstd", None, "its own"),
        ("dict", 2, "its own"),
        ("dict", 2, "all others"),
    ],
)
def test_lost_documents_are_written_again(closed_store, story, tmp_path, kind, lanes, which):
    path = closed_store(kind, lanes)
    lane = lane_directories(path)[-1]
    for number, document in enumerate(sorted(lane.rglob("zarr.json"))):
        if (document.parent == lane) == (which == "its own"):
            document.write_text("{") if number % 2 else document.unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS * (lanes or 1), 0)
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert verify(path).findings == []
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize(("chunk", "rows"), [(4, (32, 40)), (10, (80, ROWS))])
def test_damage_in_an_array_without_its_document_is_found(closed_store, chunk, rows):
    path = closed_store("lz4")
    (path / "rewards" / "zarr.json").unlink()
    flip(path / "rewards" / f"c.{chunk}")
    done = repair(path)
    assert done.lanes[0].damaged == [rows]
    assert verify(path).sound


def edit(path, **changes):
    document = json.loads(path.read_text())
    document["attributes"]["mmreplay"].update(changes)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("changes", [{"rows": 84}, {"rows": 1000}, {"first": 70}, {"padding": 3}])
def test_a_wrong_number_in_the_attributes(closed_store, story, changes):
    path = closed_store()
    edit(path / "zarr.json", **changes)
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS, 0)
    with mmreplay.open(path) as store:
        story.check(store)


def test_the_document_of_a_store_of_many_lanes(closed_store, story):
    path = closed_store("dict", 2)
    (path / "zarr.json").write_text('{"zarr_format": 3')
    assert repair(path).lost == 0
    assert verify(path).sound
    with mmreplay.open(path) as store:
        story.check(store)
    mmreplay.create(path, append=True, lane="new").close()
    assert verify(path).sound


def test_a_missing_lane_leaves_the_ids_of_others_alone(closed_store):
    path, original = closed_store("lz4", 3), closed_store("lz4", 3, name="original.zarr")
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert [(one.lane, one.kept, one.missing) for one in done.lanes] == [
        ("lane-00000", ROWS, False),
        ("lane-00001", 0, True),
        ("lane-00002", ROWS, False),
    ]
    assert len(check_kept(path, original)) == 160


def test_a_lane_that_is_a_copy_of_another_is_kept_and_reported(closed_store):
    path = closed_store(lanes=3)
    shutil.copytree(path / "lane-00001", path / "lane-00003")
    done = repair(path)
    assert (done.kept, done.lost) == (4 * ROWS, 0)
    (text,) = done.notes
    assert text.startswith(
        "lane-00003: was a copy of lane-00001 when it was made (the same uuid): rows that both "
        "have are in the store twice; if it has none of its own, take it out with `rm -r "
    )
    assert f"`rm -r {path}/lane-00003`" in text
    uuids = {lane_metadata.read_metadata(path / f"lane-0000{n}")["uuid"] for n in range(4)}
    assert len(uuids) == 4
    shutil.rmtree(path / "lane-00003")
    assert verify(path).sound


def test_no_error_names_the_directory_of_the_repair(closed_store, monkeypatch):
    path = closed_store("lz4")
    (path / "zarr.json").write_text("{")  # so that a stand-in is made

    def fail(where, *_):
        raise CorruptStoreError(f"{where}/rewards/c.0: gone; {where.parent / 'spare-'}/x: as well")

    with monkeypatch.context() as patch:
        patch.setattr(
            "mmreplay.maintenance.repair.lane.copy_lane", lambda _, target, *__, **___: fail(target)
        )
        with pytest.raises(CorruptStoreError) as error:
            repair(path)
    assert str(error.value) == f"{path}/rewards/c.0: gone; {path}/x: as well"
    with monkeypatch.context() as patch:
        patch.setattr(
            "mmreplay.maintenance.repair.lane.stand_in", lambda _, spare, *__, **___: fail(spare)
        )
        with pytest.raises(CorruptStoreError) as error:
            repair(path)
    assert ".repair.tmp" not in str(error.value)


def test_repair_refuses_a_store_without_any_document(closed_store, tmp_path):
    path = closed_store()
    for one in path.rglob("zarr.json"):
        one.write_text("{")
    before = contents(path)
    with pytest.raises(CorruptStoreError, match=r"cannot be repaired: .*what a row holds"):
        repair(path)
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_a_damaged_random_state_is_left_out(closed_store, story):
    path = closed_store()
    edit(path / "zarr.json", generator="{}")
    assert repair(path).lost == 0
    with mmreplay.open(path) as store:
        story.check(store)
    assert "generator" not in mmreplay.open(path).live.readers[0].metadata


# ---------------------------------------------------------------- not closed


def test_a_sound_store_is_left_alone(closed_store, tmp_path, lanes):
    path = closed_store("lz4", lanes)
    before = contents(path)
    done = repair(path)
    assert (done.changed, done.before, done.lanes, done.findings) == (False, None, [], [])
    assert done.kept == mmreplay.open(path).info()["kept_rows"] > 0
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_a_store_left_by_a_crash_is_closed(killed_store, story, tmp_path, lanes):
    path = killed_store("dict", lanes)
    done = repair(path)
    assert (done.changed, done.before, done.lost) == (True, None, 0)
    assert done.kept == mmreplay.open(path).info()["kept_rows"] > 0
    assert verify(path).state == "closed"
    assert names(tmp_path) == ["store.zarr"]
    for rows in story.lanes.values():
        rows[-1]["step"] = False
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize("kind", ["raw", "dict"])
def test_a_damaged_store_left_by_a_crash(killed_store, tmp_path, kind):
    path = killed_store(kind)
    original = shutil.copytree(path, tmp_path / "original.zarr")
    (path / "actions" / "c.6").unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (48, ROWS - 48, [(48, 56)])
    assert contents(tmp_path / "store.zarr.damaged") == before
    check_kept(path, original)


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        ("state", "missing"),
        ("state", "zeros"),
        ("checkpoint", "short"),
        ("checkpoint", "zeros"),
        ("frames.tail", "missing"),
        ("frames.tail", "short"),  # nothing tells that one of zeros is damaged
        ("rewards/zarr.json", "short"),
    ],
)
def test_a_damaged_file_of_an_open_lane(killed_store, tmp_path, monkeypatch, lost, how):
    monkeypatch.setattr(lane_reader, "_PATIENCE_S", 0)  # nothing will make it whole
    path, original = killed_store("lz4"), tmp_path / "original.zarr"
    mmreplay.snapshot(path, original)
    file = path / (lost if "/" in lost else f".live/{lost}")
    if how == "missing":
        file.unlink()
    elif how == "short":
        file.write_bytes(file.read_bytes()[:100])
    else:
        file.write_bytes(bytes(file.stat().st_size))
    repair(path)
    ids = check_kept(path, original)
    least = ROWS - 16 if lost.endswith("tail") else ROWS
    with mmreplay.open(path) as store:
        assert store.lanes[0].rows >= least
    assert len(ids) >= least - 6


def test_repair_refuses_a_store_that_is_being_written(open_store, tmp_path):
    writer = open_store()
    before = names(tmp_path)
    with pytest.raises(LockedError, match="open for writing already"):
        repair(writer.path)
    assert names(tmp_path) == before


def test_a_lane_of_a_store_is_not_repaired_by_itself(closed_store):
    path = closed_store("lz4", 3)
    with pytest.raises(SchemaError, match="this is a lane of"):
        repair(path / "lane-00001")


def test_no_store(tmp_path):
    with pytest.raises(StoreNotFoundError):
        repair(tmp_path / "nothing.zarr")
    assert names(tmp_path) == []


def test_a_link_to_a_store_stays_one(closed_store, tmp_path):
    path = closed_store()
    flip(path / "rewards" / "c.4")
    (tmp_path / "link.zarr").symlink_to(path)
    done = repair(tmp_path / "link.zarr")
    assert done.before == f"{path}.damaged"
    assert (tmp_path / "link.zarr").is_symlink()
    assert verify(tmp_path / "link.zarr").sound


def test_progress_goes_up_to_the_total(closed_store):
    path = closed_store()
    flip(path / "rewards" / "c.4")
    told = []
    repair(path, progress=lambda done, total: told.append(done / total))
    assert told[-1] == 1
    assert max(told) == 1
    assert told[0] < 0.5


def test_a_capacity_that_a_flipped_bit_made_smaller_takes_no_row_away(tmp_path, quick_disk):
    path = tmp_path / "s.zarr"
    with mmreplay.create(
        path, Field((8,), codec="raw", chunk=8), Field((), "int64", chunk=16), capacity=900
    ) as writer:
        writer.reset(np.zeros(8, "uint8"))
        for t in range(300):
            writer.step(t, float(t), np.full(8, t % 250, "uint8"))
    text = (path / "zarr.json").read_text()
    assert '"capacity": 900' in text
    (path / "zarr.json").write_text(text.replace('"capacity": 900', '"capacity": 100'))
    done = repair(path)
    assert (done.kept, done.lost) == (301, 0)
    assert verify(path).sound
    with mmreplay.open(path) as store:
        assert len(store) == 300
        assert store.lanes[0].rewards[:300].tolist() == list(range(300))
