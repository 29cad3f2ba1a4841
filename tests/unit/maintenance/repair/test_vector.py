"""`repair` of lanes of many environments: sound ticks before the damage, whole episodes after it."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, repair, verify
from mmreplay.reading.vector_reader import VectorReader
from tests.support.disks.trees import contents, flip
from tests.support.tampering.repairs import check_ticks, damage_start

LZ4 = Field((3,), "float32", "lz4", chunk=2, shard=8)


def test_a_sound_lane_is_left_alone(closed_vector):
    before = contents(closed_vector.writer.path)
    done = repair(closed_vector.writer.path)
    assert (done.changed, done.lanes, done.kept) == (False, [], 70)
    assert contents(closed_vector.writer.path) == before


def test_a_lane_left_by_a_crash_is_closed(vector, kill, ended):
    model = vector(frame=LZ4)
    model.play(70)
    kill(model.writer)
    done = repair(model.writer.path)
    assert (done.changed, done.kept, done.before) == (True, 70, None)
    check_ticks(model, ended, model.writer.path, 70)


@pytest.mark.parametrize("kind", ["index", "chunk file that is missing", "raw chunk file"])
def test_ticks_are_kept_up_to_the_damage(closed_vector, ended, kind):
    path = closed_vector.writer.path
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
        check_ticks(closed_vector, ended, path, stop)


def episodes(path):
    """Every episode as the bytes of what it holds, with the rewards by which it is known."""
    with mmreplay.open(path) as store:
        found = {}
        for number in range(len(store.episodes)):
            one = store.trajectory(number)
            values = [one.observation, one.action, one.reward, one.non_terminal]
            found[one.reward.tobytes()] = [np.asarray(value).tobytes() for value in values]
        return found


def test_whole_episodes_after_the_damage_come_along(closed_vector):
    path = closed_vector.writer.path
    before = episodes(path)
    (path / "ticks" / "frames" / "c.4.0.0").unlink()
    numbers = closed_vector.columns("ticks")["episode"]
    whole = [
        number
        for number in range(len(closed_vector.episodes))
        if (numbers[40:] == number).any() and not (numbers[:40] == number).any()
    ]
    done = repair(path, skip_damaged=True)
    later = np.isin(numbers[40:], whole).any(1).sum()
    assert (done.kept, done.lanes[0].damaged) == (32 + later, [(32, 40)])
    assert done.lanes[0].renumbered
    assert verify(path).findings == []
    after = episodes(path)
    ended = {
        number for number in range(len(closed_vector.episodes)) if (numbers[:32] == number).any()
    }
    cut = {number for number in ended if (numbers[32:40] == number).any()}
    assert len(after) == len(ended) + len(whole)
    same = [key for key, values in after.items() if before.get(key) == values]
    assert len(same) >= len(ended) - len(cut) + len(whole) > len(whole) > 5


@pytest.fixture
def lose_start():
    """Damage a start, and lose the actions of ticks with steps of it, so that they cannot go."""

    def lose(path, number, tick):
        rows = VectorReader(path).ticks.specs["actions"].chunk_rows
        (path / "ticks" / "actions" / f"c.{tick // rows}.0").unlink()
        return damage_start(path, number)[0]

    return lose


@pytest.mark.parametrize("skip", [False, True])
def test_a_lost_start_beside_other_damage(vector, ended, lose_start, skip):
    model = vector(frame=LZ4, action=Field((), "int64", chunk=8))
    model.play(70)
    model.writer.close()
    path = model.writer.path
    before = episodes(path)
    numbers = model.columns("ticks")["episode"]
    # One that begins before the file with tick 32, and goes on in it.
    lost = lose_start(path, int(np.intersect1d(numbers[31], numbers[32]).max()), 32)
    stop = int(np.argmax((numbers >= lost).any(1)))
    done = repair(path, skip_damaged=skip)
    note = f"starts: rows {lost} to {lost + 1} are damaged; ticks before {stop} are kept, as "
    later = "whole episodes with new ids" if skip else "whole episodes only with skip_damaged"
    assert any(one.startswith(note) and one.endswith(later) for one in done.notes), done.notes
    assert verify(path).findings == []
    if not skip:
        assert (done.kept, done.lost) == (stop, 70 - stop)
        check_ticks(model, ended, path, stop, lost)
        return
    assert done.lanes[0].renumbered
    after = episodes(path)
    cut = {int(one) for one in numbers[stop] if one >= 0 and one in numbers[stop - 1]}
    assert len(before) > len(after) > 10
    assert sum(before.get(key) == values for key, values in after.items()) >= len(after) - len(cut)


def test_skip_damaged_is_not_advised_where_no_whole_episode_lies_after_the_damage(
    vector, lose_start
):
    model = vector(frame=LZ4, action=Field((), "int64", chunk=8))
    model.play(70)
    model.writer.close()
    path = model.writer.path
    lose_start(path, int(model.columns("ticks")["episode"].max()), 69)
    done = repair(path)
    assert done.beyond == 0
    assert any(one.endswith("later, and no whole episode lies after them") for one in done.notes)


def test_a_rule_that_is_broken_costs_the_ticks_from_there_on(vector, kill):
    model = vector()
    model.play(70)
    kill(model.writer)
    numbers = model.columns("ticks")["episode"]
    goes_on = (numbers[40:-2] == numbers[41:-1]) & (numbers[40:-2] >= 0)
    tick, env = np.argwhere(goes_on)[0] + (40, 0)
    folder = model.writer.path / "ticks" / "ends"
    rows = (folder / "c.0.0").stat().st_size // 5
    np.memmap(folder / f"c.{tick // rows}.0", "u1", "r+").reshape(rows, 5)[tick % rows, env] = 1
    done = repair(model.writer.path)
    assert done.lost == 70 - done.kept
    assert done.kept in (tick, tick + 1)
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
