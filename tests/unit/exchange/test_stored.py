"""The episodes of a store as runs: every kind of store, each value, each end."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.stored import Stored
from mmreplay.reading.live_lanes import LiveLanes
from tests.support.played_episodes import DICT, Episode, assert_same, play, write, write_vector


def collected(path, progress=None):
    with mmreplay.open(path) as store:
        losses = Losses()
        stored = Stored(store, losses, progress)
        out = []
        for runs in stored.episodes():
            assert [one.begins for one in runs] == [True] + [False] * (len(runs) - 1)
            keys = runs[0].observation
            terminal = np.concatenate([one.terminal for one in runs])
            lost = terminal.copy()
            lost[-1] = False
            frames = {
                key: np.concatenate(
                    [runs[0].observation[key][:1], *(one.observation[key][1:] for one in runs)]
                )
                for key in keys
            }
            extras = {
                key: np.concatenate([one.extras[key] for one in runs]) for key in runs[0].extras
            }
            out.append(
                Episode(
                    frames,
                    np.concatenate([one.action for one in runs]),
                    np.concatenate([one.reward for one in runs]),
                    lost,
                    extras,
                    bool(terminal[-1]),
                )
            )
        return out, losses.all(), stored


@pytest.mark.parametrize("block", [1, 4, 1000])
@pytest.mark.parametrize("frames", [{"frame": Field((3,), "uint8")}, DICT], ids=["array", "dict"])
def test_runs_hold_what_was_written(tmp_path, quick_disk, monkeypatch, block, frames):
    monkeypatch.setattr("mmreplay.maintenance.episodes.block_steps", lambda row_bytes: block)
    episodes = play(frames=frames)
    found, losses, stored = collected(write(tmp_path / "s.zarr", episodes))
    assert_same(found, episodes)
    assert (losses, stored.n_steps, stored.n_episodes) == ((), 25, 4)


@pytest.mark.parametrize("block", [3, 1000])
def test_environments_that_step_together_are_told_apart(tmp_path, quick_disk, monkeypatch, block):
    monkeypatch.setattr("mmreplay.maintenance.episodes.block_steps", lambda row_bytes: block)
    episodes = play()
    found, losses, _ = collected(write_vector(tmp_path / "v.zarr", episodes))
    assert_same(found, episodes)
    assert losses == ()


def test_metadata_and_progress(tmp_path, quick_disk):
    path = write(tmp_path / "s.zarr", play(), metadata={"id": "Game-v0"})
    seen = []
    _, _, stored = collected(path, lambda done, total: seen.append((done, total)))
    assert stored.metadata == {"id": "Game-v0"}
    done, total = zip(*seen, strict=True)
    assert (list(done) == sorted(done), {*total}) == (True, {done[-1]})
    assert done[-1] == 25 * stored.row_bytes


def test_an_episode_that_runs_ends_as_truncated(tmp_path, quick_disk):
    with mmreplay.create(tmp_path / "s.zarr", Field((1,)), Field((), "int64"), flush_s=0) as writer:
        writer.reset(np.zeros(1, np.uint8))
        writer.step(1, 1.0, np.zeros(1, np.uint8))
        (episode,), losses, _ = collected(tmp_path / "s.zarr")
    assert not episode.terminated
    assert [(one.count, one.what) for one in losses] == [
        (1, "episodes that are still running: they end here as truncated")
    ]


def test_steps_that_come_meanwhile_are_not_taken_for_evicted_ones(
    tmp_path, quick_disk, monkeypatch
):
    frame = np.zeros(1, np.uint8)
    with mmreplay.create(tmp_path / "s.zarr", Field((1,)), Field((), "int64"), flush_s=0) as writer:
        writer.reset(frame)
        writer.step(0, 1.0, frame, True)
        writer.flush()
        follow = LiveLanes._follow

        def followed(lanes):
            """As it is; then the writer goes on, before anything can look again."""
            found = follow(lanes)
            writer.reset(frame)
            writer.step(0, 1.0, frame, True)
            writer.flush()
            return found

        with mmreplay.open(tmp_path / "s.zarr") as store:
            monkeypatch.setattr(LiveLanes, "_follow", followed)
            losses = Losses()
            stored = Stored(store, losses, None)
            assert len(store) > stored.n_steps
    assert losses.all() == ()


def test_what_is_left_of_an_evicted_episode_is_a_loss(tmp_path, quick_disk):
    settings = {"capacity": 5, "frame": Field((1,), chunk=8), "action": Field((), "int64", chunk=8)}
    with mmreplay.create(tmp_path / "s.zarr", flush_s=0, **settings) as writer:
        frame = np.zeros(1, np.uint8)
        for n in (100, 3):
            writer.reset(frame)
            for t in range(n):
                writer.step(0, 1.0, frame, t == n - 1)
        writer.flush()
        found, losses, _ = collected(tmp_path / "s.zarr")
    assert [len(one.reward) for one in found] == [3]
    assert [(one.count, one.what) for one in losses] == [
        (2, "steps of episodes whose beginning was evicted: left out")
    ]
