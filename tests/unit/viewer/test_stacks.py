"""Transitions with places of frames: their frames and numbers are those of `Store.transitions`."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, InvalidIdError
from mmreplay.batches.settings import Settings
from mmreplay.viewer.episode import stacks_of
from tests.support.viewed import FRAME, frame_of, record_pictures


def check_all(store, settings):
    """Every transition of every episode, frame by frame."""
    for number, episode in enumerate(store.episodes):
        first, length = int(episode["id"]), int(episode["length"])
        found = stacks_of(store, first, 0, length, settings)
        whole = store.trajectory(number)
        batch = store.transitions(
            whole.ids, settings.stack, settings.n_step, settings.gamma, settings.padding
        )
        frames = np.concatenate([whole.observation, np.zeros_like(whole.observation[:1])])
        assert np.array_equal(frames[found["seen"]], batch.observation)
        assert np.array_equal(frames[found["following"]], batch.next_observation)
        for name in ("reward", "discount", "non_terminal"):
            assert np.array_equal(found[name], getattr(batch, name)), name


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_places_lead_to_the_frames_of_transitions(tmp_path, quick_disk, padding, n_step):
    record_pictures(tmp_path / "s.zarr")
    with mmreplay.open(tmp_path / "s.zarr") as store:
        check_all(store, Settings(4, n_step, 0.9, padding))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_places_where_environments_step_together(tmp_path, quick_disk, n, padding):
    with mmreplay.create(
        tmp_path / "v.zarr", FRAME, Field((), "int64"), lanes=n, flush_s=0
    ) as writer:
        frames = [[frame_of(FRAME, 100 * step + env) for env in range(n)] for step in range(25)]
        writer.reset(np.array(frames[0]))
        for step in range(1, 25):
            ends = np.array([step % (7 + env) == 0 for env in range(n)])
            none = np.zeros(n, bool)
            zeros = np.zeros(n)
            writer.step(zeros.astype(int), zeros + step, np.array(frames[step]), ends, none)
            if ends.any():
                writer.reset(np.array(frames[step]) + 1, mask=ends)
    with mmreplay.open(tmp_path / "v.zarr") as store:
        assert len(store.episodes) >= 3
        check_all(store, Settings(4, 2, 0.9, padding))


@pytest.mark.parametrize("lanes", [None, 1])
def test_frames_from_before_the_steps_that_are_left_are_told_apart(tmp_path, quick_disk, lanes):
    place = np.asarray if lanes is None else lambda one: np.asarray([one])
    with mmreplay.create(
        tmp_path / "s.zarr", FRAME, Field((), "int64"), lanes=lanes, capacity=25
    ) as writer:
        writer.reset(place(frame_of(FRAME, 0)))
        for step in range(40):
            flags = place(np.False_), place(np.False_)
            writer.step(place(0), place(0.0), place(frame_of(FRAME, step + 1)), *flags)
    with mmreplay.open(tmp_path / "s.zarr") as store:
        first = int(store.ids[0])
        near, far = (stacks_of(store, first, 0, 25, Settings(k)) for k in (3, 20))
    assert near["seen"][:4].tolist() == [[-2, -2, 0], [-2, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert near["following"][-1].tolist() == [23, 24, 25]
    assert far["seen"][0].tolist() == [-2] * 19 + [0]  # also the first frame of the episode


def test_ids_past_the_last_step_are_refused(tmp_path, quick_disk):
    record_pictures(tmp_path / "s.zarr")
    with mmreplay.open(tmp_path / "s.zarr") as store, pytest.raises(InvalidIdError, match="id 37 "):
        stacks_of(store, 30, 5, 10, Settings())
