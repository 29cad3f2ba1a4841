"""Draws: which numbers they take from the generator, and when."""

import gc
import weakref

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.storage.chunk_files import EvictedError

CALLS = {
    "sequences": lambda data: data.sample_sequences(5, 2, 1, "pad").id,
    "sequences across episodes": lambda data: data.sample_sequences(5, 9, boundary="cross").id,
    "windows": lambda data: data.sample_windows(5, {"action": (0, 3)}).id,
    "whole windows": lambda data: data.sample_windows(5, {"action": (0, 3)}, "drop").id,
    "portions": lambda data: data.sample_portions(5, 3).id,
    "trajectories": lambda data: [one.ids[0] for one in data.sample_trajectories(5)],
    "distinct trajectories": lambda data: [
        one.ids[0] for one in data.sample_trajectories(5, replace=False)
    ],
    "distinct transitions": lambda data: data.sample(5, replace=False).id,
}


@pytest.fixture
def path(make, story):
    writer = make(frame=Field((3,), "uint8", "lz4", chunk=4, shard=8))
    for length in (3, 9, 4, 12, 1, 7):
        story.play(writer, length, "truncated")
    writer.close()
    return writer.path


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_read_that_is_retried_does_not_draw_again(path, call, monkeypatch):
    with mmreplay.load(path, seed=3) as data, mmreplay.load(path, seed=3) as twin:
        expected = [np.array(call(twin)).tolist() for _ in range(3)]
        retrying, kept_all, failed = LiveLanes.retrying, JoinedLanes.kept_all, []

        def failing(lanes, read):
            def once_more():
                out = read()
                if not failed:
                    failed.append(True)
                    raise EvictedError("in the middle")
                return out

            return retrying(lanes, once_more)

        def lost(*given):
            is_first = not failed
            failed.append(True)
            return kept_all(*given) and not is_first

        monkeypatch.setattr(LiveLanes, "retrying", failing)
        monkeypatch.setattr(JoinedLanes, "kept_all", lost)
        found = []
        for _ in range(3):
            failed.clear()
            found.append(np.array(call(data)).tolist())
            assert failed
    assert found == expected
    assert found[0] != found[1]


def test_a_dropped_dataset_is_gone_at_once_after_all_kinds_of_draws(path):
    data = mmreplay.load(path)
    for call in CALLS.values():
        call(data)
    there = weakref.ref(data)
    gc.disable()
    try:
        data.close()
        del data
        assert there() is None
    finally:
        gc.enable()
