"""Which rows of a damaged lane `repair` keeps, and how `skip_damaged` cuts episodes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    Field,
    repair,
    verify,
)
from mmreplay.maintenance import episodes
from mmreplay.maintenance.repair import lane as lane_module
from tests.support.disks.trees import contents, flip
from tests.support.tampering.repairs import check_kept

ROWS = 85


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


@pytest.mark.parametrize(("chunk", "rows"), [(4, (32, 40)), (10, (80, ROWS))])
def test_damage_in_an_array_without_its_document_is_found(closed_store, chunk, rows):
    path = closed_store("lz4")
    (path / "rewards" / "zarr.json").unlink()
    flip(path / "rewards" / f"c.{chunk}")
    done = repair(path)
    assert done.lanes[0].damaged == [rows]
    assert verify(path).sound


def held(path):
    """Of each episode: frames, actions, rewards, flags, and how it ended."""
    with mmreplay.open(path) as store:
        out = []
        for number in range(len(store.episodes)):
            one = store.trajectory(number)
            frames = one.observation if isinstance(one.observation, dict) else {"": one.observation}
            columns = [*frames.values(), one.action, one.reward, one.non_terminal]
            columns += one.extras.values()
            out.append(([column.tolist() for column in columns], one.terminated, one.truncated))
        return out


def cut(episode, start, stop):
    """Steps [start, stop) of an episode as one of its own, which does not reach its end."""
    columns, *_ = episode
    longest = max(map(len, columns))
    parts = [column[start : stop + (len(column) == longest)] for column in columns]
    return parts, False, True


@pytest.mark.parametrize("kind", ["raw", "dict"])
@pytest.mark.parametrize("block", [3, 1000])
def test_skip_damaged_cuts_an_episode_around_the_damage(
    closed_store, tmp_path, monkeypatch, kind, block
):
    monkeypatch.setattr("mmreplay.maintenance.repair.lane.block_steps", lambda _: block)
    path, original = closed_store(kind), closed_store(kind, name="original.zarr")
    flip(path / "actions" / "c.4")  # rows 32 to 39: in the third episode, of rows 25 to 43
    before, expected = contents(path), held(original)
    done = repair(path, skip_damaged=True)
    (lane,) = done.lanes
    assert (lane.damaged, lane.kept, lane.lost) == ([(32, 40)], 85 - 8, 8)
    assert (lane.beyond, lane.renumbered) == (0, True)
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert verify(path).findings == []
    # Rows 25 to 31 are six steps; from row 40 on it is a new episode, which terminates as before.
    begun, ended = cut(expected[2], 0, 6), (cut(expected[2], 15, 18)[0], True, False)
    expected[-1] = (*expected[-1][:2], True)
    assert held(path) == [*expected[:2], begun, ended, *expected[3:]]


def test_the_rows_that_skip_damaged_would_keep_are_counted(closed_store):
    path = closed_store()
    flip(path / "rewards" / "c.0")
    done = repair(path)
    (lane,) = done.lanes
    assert (lane.kept, lane.lost, lane.beyond) == (0, ROWS, ROWS - 8)
    assert len(mmreplay.open(path)) == 0
    again = repair(done.before, skip_damaged=True)
    assert (again.kept, again.beyond) == (ROWS - 8, 0)
    assert len(mmreplay.open(done.before)) == 80 - 8


def test_a_single_row_between_two_damaged_places_is_no_episode(make, story):
    writer = make(action=Field((), "int64", chunk=8), frame=Field((3,), "uint8", "raw", chunk=8))
    story.play(writer, 63, "terminated")
    writer.close()
    for name in ("rewards/c.1", "resets/c.3"):
        flip(writer.path / name)
    with mmreplay.open(writer.path) as store:
        rewards = store.rewards[:]
    done = repair(writer.path, skip_damaged=True)
    assert done.lanes[0].damaged == [(8, 16), (24, 32)]
    assert done.kept == 8 + 8 + 32
    with mmreplay.open(writer.path) as store:
        assert store.episodes["length"].tolist() == [7, 7, 31]
        found = [store.trajectory(number).reward for number in range(3)]
    parts = rewards[:7], rewards[16:23], rewards[32:63]
    assert all(map(np.array_equal, found, parts))


def test_damaged_inner_chunks_of_a_shard_cost_only_their_rows(make, story):
    frame = Field((3,), "uint8", "lz4", chunk=4, shard=64)
    writer = make(frame=frame, action=Field((), "int64", chunk=8))
    for _ in range(12):
        story.play(writer, 7, "terminated")
    writer.close()
    shard = writer.path / "frames" / "c.0.0"
    data = shard.read_bytes()
    table = np.frombuffer(data[-(16 * 16 + 4) : -4], "<u8").reshape(16, 2)
    for inner in (4, 10):  # rows 16 to 19 and 40 to 43
        flip(shard, int(table[inner, 0]) + 9)
    spans = [one.rows for one in verify(writer.path).findings]
    assert spans == [(0, 64), (16, 20), (40, 44)]
    done = repair(writer.path, skip_damaged=True)
    assert done.lanes[0].damaged == [(16, 20), (40, 44)]
    assert done.lost == 2 * 4


def test_what_a_full_disk_interrupts_leaves_the_store_as_it_was(closed_store, monkeypatch):
    path = closed_store()
    flip(path / "actions" / "c.4")
    before = contents(path)

    def fail(*_):
        raise mmreplay.DiskFullError("no room")

    monkeypatch.setattr(episodes.Writer, "_extend", fail)
    with pytest.raises(mmreplay.DiskFullError):
        repair(path, skip_damaged=True)
    assert contents(path) == before
    assert not path.with_name("store.zarr.damaged").exists()


@pytest.mark.parametrize("what", ["lost", "no JSON", "another number"])
@pytest.mark.parametrize("array", ["rewards", "frames"])
def test_a_document_is_written_again_from_its_copy(closed_store, tmp_path, array, what):
    path, original = closed_store("lz4"), closed_store("lz4", name="original.zarr")
    document = path / array / "zarr.json"
    text = document.read_text()
    document.write_text("{" if what == "no JSON" else text.replace("8", "9"))
    if what == "lost":
        document.unlink()
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS, 0)
    assert (path / array / "zarr.json").read_text() == text
    assert held(path)[:-1] == held(original)[:-1]


def test_a_damaged_state_page_costs_what_came_after_the_last_flush(killed_half_flushed):
    path = killed_half_flushed()
    (path / ".live" / "state").write_bytes(b"x" * 4096)
    done = repair(path)
    assert (done.kept, done.lost) == (66, 0)
    assert verify(path).findings == []


@pytest.mark.parametrize("name", ["checkpoint", "frames.tail"])
def test_what_nothing_else_tells_is_asked_for(killed_half_flushed, name):
    path = killed_half_flushed()
    (path / ".live" / name).unlink()
    before = contents(path)
    with pytest.raises(CorruptStoreError, match=r"cannot be repaired: .*from a backup"):
        repair(path)
    assert contents(path) == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_indices_of_every_part_are_ascending_and_apart():
    """The same for any damage: no damaged row is in a part, and no sound pair of rows is lost."""
    random = np.random.default_rng(5)
    for _ in range(300):
        head, base = int(random.integers(1, 60)), 0
        starts = {base, *random.integers(0, head, 5).tolist()}
        damaged = [
            (a, a + int(random.integers(1, 6))) for a in random.integers(0, head, 3).tolist()
        ]
        damaged = lane_module.merged(damaged, base, head)
        start = damaged[0][0]

        bits = np.array(sorted(starts), np.int64)
        reader = SimpleNamespace(
            head=head,
            resets=lambda low, high, bits=bits: bits[(bits >= low) & (bits < high)],
        )
        parts = lane_module._sound_episodes(reader, damaged, start)
        lost = {row for span in damaged for row in range(*span)}
        steps = {row for low, high in parts for row in range(low, high - 1)}
        assert steps == {
            row
            for row in range(start, head - 1)
            if not {row, row + 1} & lost and row + 1 not in starts
        }
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(parts))
