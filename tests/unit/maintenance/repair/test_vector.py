"""`repair` of lanes of many environments: sound ticks before the damage, whole episodes after it."""

import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, repair, verify
from tests.support.disks.trees import contents, flip, names
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.oracle.vectors import assert_closed_lane_matches
from tests.support.tampering.repairs import assert_refused, check_kept
from tests.support.writers import drain

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)


@pytest.fixture
def closed(vector):
    """The model of a closed lane of 70 ticks, with short chunk files."""
    model = vector(frame=LZ4)
    model.play(70)
    model.writer.close()
    return model


def assert_kept(model, ended, path, n_ticks, n_starts=None):
    """The lane holds the first of its ticks, and is sound."""
    model = ended(model)
    model.cut(n_ticks, len(model.episodes) if n_starts is None else n_starts)
    assert verify(path).findings == []
    assert_closed_lane_matches(model, path)


def test_a_sound_lane_is_left_alone(closed):
    before = contents(closed.writer.path)
    done = repair(closed.writer.path)
    assert (done.changed, done.lanes, done.kept) == (False, [], 70)
    assert contents(closed.writer.path) == before


def test_a_lane_left_by_a_crash_is_closed(vector, kill, ended):
    model = vector(frame=LZ4)
    model.play(70)
    kill(model.writer)
    done = repair(model.writer.path)
    assert (done.changed, done.kept, done.before) == (True, 70, None)
    assert_kept(model, ended, model.writer.path, 70)


@pytest.mark.parametrize("kind", ["index", "chunk file that is missing", "raw chunk file"])
def test_ticks_are_kept_up_to_the_damage(closed, ended, kind):
    path = closed.writer.path
    if kind == "index":
        flip(path / "ticks" / "frames" / "c.4.0.0", -9)
        stop = 32
    elif kind == "raw chunk file":
        flip(path / "ticks" / "actions" / "c.0.0", 3)
        stop = 0
    else:
        (path / "ticks" / "frames" / "c.4.0.0").unlink()
        stop = 32
    done = repair(path)
    assert (done.kept, done.lost) == (stop, 70 - stop)
    assert verify(path).findings == []
    if stop:
        assert_kept(closed, ended, path, stop)


def _inner_chunk(path, shard, number):
    """The first byte of an inner chunk in a shard of frames: 4 blocks of 5 environments."""
    data = (path / "ticks" / "frames" / f"c.{shard}.0.0").read_bytes()
    index = np.frombuffer(data[-(16 * 20 + 4) : -4], "<u8").reshape(20, 2)
    return int(index[number][0])


def episodes(path):
    """Every episode as the bytes of what it holds, with the rewards by which it is known."""
    with mmreplay.open(path) as store:
        found = {}
        for number in range(len(store.episodes)):
            one = store.trajectory(number)
            values = [one.observation, one.action, one.reward, one.non_terminal]
            found[one.reward.tobytes()] = [np.asarray(value).tobytes() for value in values]
        return found


def test_whole_episodes_after_the_damage_come_along(closed):
    path = closed.writer.path
    before = episodes(path)
    (path / "ticks" / "frames" / "c.4.0.0").unlink()
    numbers = closed.columns("ticks")["episode"]
    whole = [
        number
        for number in range(len(closed.episodes))
        if (numbers[40:] == number).any() and not (numbers[:40] == number).any()
    ]
    done = repair(path, skip_damaged=True)
    later = np.isin(numbers[40:], whole).any(1).sum()
    assert (done.kept, done.lanes[0].damaged) == (32 + later, [(32, 40)])
    assert done.lanes[0].renumbered
    assert verify(path).findings == []
    after = episodes(path)
    ended = {number for number in range(len(closed.episodes)) if (numbers[:32] == number).any()}
    cut = {number for number in ended if (numbers[32:40] == number).any()}
    assert len(after) == len(ended) + len(whole)
    same = [key for key, values in after.items() if before.get(key) == values]
    assert len(same) >= len(ended) - len(cut) + len(whole) > len(whole) > 5


@pytest.mark.parametrize("skip", [False, True])
def test_a_lost_start_costs_its_episode_or_the_ticks_from_there_on(vector, kill, ended, skip):
    model = vector(frame=LZ4)
    model.play(70)
    kill(model.writer)
    path, lost = model.writer.path, 20
    before = episodes(path)
    np.memmap(path / "starts" / "env" / "c.0", "<i8", "r+")[lost] = 99
    numbers = model.columns("ticks")["episode"]
    stop = int(np.argmax((numbers >= lost).any(1)))
    done = repair(path, skip_damaged=skip)
    note = f"starts: rows {lost} to {lost} are damaged; ticks are kept up to {stop}, the first of "
    assert any(one.startswith(note) for one in done.notes)
    assert verify(path).findings == []
    if not skip:
        assert (done.kept, done.lost) == (stop, 70 - stop)
        assert_kept(model, ended, path, stop, lost)
        return
    assert done.lanes[0].renumbered
    after = episodes(path)
    cut = {int(one) for one in numbers[stop] if one >= 0 and one in numbers[stop - 1]}
    assert len(before) - 1 == len(after)
    assert sum(before.get(key) == values for key, values in after.items()) >= len(after) - len(cut)


def test_a_rule_that_is_broken_costs_the_ticks_from_there_on(vector, kill):
    model = vector()
    model.play(70)
    kill(model.writer)
    counts = np.memmap(model.writer.path / "ticks" / "count" / "c.0", "<i8", "r+")
    counts[40] += 1
    done = repair(model.writer.path)
    assert (done.kept, done.lost) == (40, 30)
    assert verify(model.writer.path).findings == []


def test_a_lane_in_a_store_of_lanes(make, vector, story):
    single = make("store.zarr", lane="single", frame=LZ4, extras={"x": Field((), "int8")})
    story.play(single, 9)
    single.close()
    model = vector(lane="many", frame=LZ4)
    model.play(70)
    model.writer.close()
    (model.writer.path / "ticks" / "frames" / "c.4.0.0").unlink()
    done = repair(model.writer.path.parent)
    assert [(one.lane, one.kept, one.lost) for one in done.lanes] == [
        (single.path.name, 10, 0),
        (model.writer.path.name, 32, 38),
    ]
    assert verify(model.writer.path.parent).findings == []


# ---------------------------------------------------------------- documents


@pytest.mark.parametrize(
    "lost",
    [
        ["ticks/zarr.json"],
        ["starts/zarr.json"],
        ["ticks/rewards/zarr.json", "starts/tick/zarr.json", "ticks/extras/x/zarr.json"],
    ],
)
@pytest.mark.parametrize("data", [None, b"{"])
def test_documents_of_a_closed_lane_are_made_again(closed, ended, lost, data):
    path = closed.writer.path
    for name in lost:
        (path / name).unlink() if data is None else (path / name).write_bytes(data)
    done = repair(path)
    assert (done.kept, done.lost) == (70, 0)
    assert [one for one in done.notes if "random state" in one] == list(done.notes)
    assert_kept(closed, ended, path, 70)


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
    ("end", "lost", "reason"),
    [
        ("close", "zarr.json", "no zarr.json in it"),
        ("close", "ticks/frames/zarr.json", "it was the only copy of how this array is laid out"),
        ("close", "starts/frames/zarr.json", "it was the only copy of how this array is laid out"),
        ("kill", "ticks/rewards/zarr.json", "missing"),
        ("kill", "starts/zarr.json", "no zarr.json in it"),
        ("kill", "ticks/.live/state", "neither closed nor live"),
        ("kill", "starts/.live/checkpoint", "neither closed nor live"),
        ("kill", "starts/.live/frames.tail", "neither closed nor live"),
    ],
)
def test_what_nothing_else_tells_is_not_made_up(vector, kill, end, lost, reason):
    model = vector(frame=LZ4)
    model.play(9)
    kill(model.writer) if end == "kill" else model.writer.close()
    (model.writer.path / lost).unlink()
    expected = rf"cannot be repaired: .*{reason}.*back from a backup.* and repair again$"
    assert_refused(model.writer.path, expected)


# ---------------------------------------------------------------- inner chunks of one environment


def lost_steps(model, env, start, stop):
    """The ids of an environment's steps in these ticks, and of those after them in their episodes."""
    numbers = model.columns("ticks")["episode"][:, env].tolist()
    inside = {one for one in numbers[start:stop] if one >= 0}
    return {
        tick * model.width + env
        for tick, one in enumerate(numbers)
        if one in inside and tick >= start
    }


@pytest.mark.parametrize(
    ("places", "skip"),
    [
        ([(4, 6)], False),  # of environment 1, in the second block of two ticks
        ([(0, 0)], False),
        ([(8, 12)], False),  # in the last, short shard
        ([(2, 3), (2, 4), (5, 13)], True),
        ([(4, 6), (4, 11)], False),
    ],
)
def test_a_damaged_inner_chunk_costs_its_environment_steps_and_no_other(
    closed, tmp_path, places, skip
):
    path = closed.writer.path
    original = shutil.copytree(path, tmp_path / "original.zarr")
    lost = set()
    for shard, number in places:
        flip(path / "ticks" / "frames" / f"c.{shard}.0.0", _inner_chunk(path, shard, number))
        start = 8 * shard + 2 * (number // 5)
        lost |= lost_steps(closed, number % 5, start, start + 2)
    done = repair(path, skip_damaged=skip)
    assert (done.kept, done.lost) == (70, 0)
    assert not done.lanes[0].renumbered
    assert f"{len(lost)} steps are lost" in done.notes[0]
    with mmreplay.open(original) as store:
        expected = [one for one in store.ids.tolist() if one not in lost]
    assert lost
    assert check_kept(path, original).tolist() == expected
    assert names(tmp_path) == ["original.zarr", path.name, f"{path.name}.damaged"]
    with mmreplay.create(path, append=True, flush_s=0) as writer:
        writer.reset(closed.frames())
    assert verify(path).findings == []


def test_steps_are_left_out_of_a_lane_that_evicts_and_has_priorities(tmp_path):
    path = tmp_path / "store.zarr"
    settings = FIELDS | {"frame": LZ4, "lanes": 5, "capacity": 150, "flush_s": 0}
    with mmreplay.PrioritizedReplayBuffer(path, **settings, stack=None) as buffer:
        model = of_writer(buffer.writer)
        for _ in range(4):
            model.play(40)
            buffer.flush()
        buffer.update_priorities(buffer.ids, 1 + np.arange(len(buffer)))
        first, priorities = buffer.store.lanes[0].first, buffer.priorities(buffer.ids)
        known = dict(zip(buffer.ids.tolist(), priorities.tolist(), strict=True))
    original = shutil.copytree(path, tmp_path / "original.zarr")
    shard = (first + 8) // 8
    flip(path / "ticks" / "frames" / f"c.{shard}.0.0", _inner_chunk(path, shard, 6))
    lost = lost_steps(model, 1, 8 * shard + 2, 8 * shard + 4)
    assert repair(path).lost == 0
    assert check_kept(path, original).tolist() == sorted(known.keys() - lost)
    with mmreplay.PrioritizedReplayBuffer(path, stack=None, flush_s=0) as buffer:
        kept = buffer.ids
        assert buffer.priorities(kept).tolist() == [known[one] for one in kept.tolist()]


@pytest.mark.parametrize(
    ("kind", "kept"), [("a tick of nobody", 34), ("other damage", 32), ("left by a crash", 34)]
)
def test_steps_are_left_out_only_where_all_else_is_known(vector, kill, kind, kept):
    model = vector(frame=LZ4)
    model.play(70)
    path = model.writer.path
    if kind == "left by a crash":
        model.writer.flush()
        drain(model.writer)
        kill(model.writer)
    else:
        model.writer.close()
    every = kind == "a tick of nobody"
    for number in range(5, 10) if every else [5]:
        flip(path / "ticks" / "frames" / "c.4.0.0", _inner_chunk(path, 4, number))
    if kind == "other damage":
        flip(path / "ticks" / "actions" / "c.4.0", 1)
    assert (repair(path).kept, verify(path).findings) == (kept, [])
