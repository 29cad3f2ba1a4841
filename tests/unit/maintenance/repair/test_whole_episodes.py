"""`repair` with `skip_damaged`: whole episodes after the damage."""

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    Field,
    repair,
    verify,
)
from tests.support.disks.trees import contents, flip

ACTION = Field((), "int64", chunk=8)
ROWS = 85


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
