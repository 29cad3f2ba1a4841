"""Batches that are filled again: `out`, and what is refused as one."""

import dataclasses
import pickle

import numpy as np
import pytest

from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.errors import SchemaError
from tests.support.oracle.handmade_rows import (
    OBSERVATIONS,
    SCALARS,
    Column,
    Frames,
    Rows,
    fetched,
    gathered,
)

KINDS = {
    "stacked": {"stack": 3},
    "zero": {"stack": 3, "padding": "zero"},
    "last": {"stack": 3, "stack_axis": -1},
    "none": {"stack": None},
    "one": {"stack": 1},
    "n-step": {"stack": 3, "n_step": 3},
    "n-step, none": {"stack": None, "n_step": 3},
    "n-step, last": {"stack": 3, "n_step": 3, "stack_axis": -1},
}


def arrays(batch):
    found = [getattr(batch, one.name) for one in dataclasses.fields(batch)]
    out = []
    for one in found:
        out += list(one.values()) if isinstance(one, dict) else [one]
    return out


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("is_dict", [False, True])
def test_out_is_overwritten_whole_and_returned(settings, is_dict):
    frames = (
        {"a": SCALARS, "b": Frames(np.arange(36).reshape(12, 3), "int16")} if is_dict else SCALARS
    )
    rows = Rows(frames, extras={"x": Column(np.arange(12), "float32")})
    gatherer = TransitionGatherer(rows, Settings(**settings))
    first = fetched(rows, gatherer, [0, 1, 2])
    known = arrays(first)
    for ids in ([8, 7, 3], [4, 4, 4], [6, 5, 0]):
        for one in known:
            one[...] = 77
        again = fetched(rows, gatherer, ids, first)
        assert again is first
        assert all(one is other for one, other in zip(arrays(again), known, strict=True))
        fresh = fetched(rows, TransitionGatherer(rows, Settings(**settings)), ids)
        for one, other in zip(arrays(again), arrays(fresh), strict=True):
            assert one.tobytes() == other.tobytes()
            assert one.dtype == other.dtype


def three(frames=SCALARS, stack=3, **settings):
    return gathered([0, 1, 2], frames, stack=stack, **settings)


UNFIT = {
    "a number": lambda: 3,
    "two": lambda: gathered([0, 1], stack=3),
    "no stack": lambda: three(stack=None),
    "another dtype": lambda: three(Frames(OBSERVATIONS, "int16")),
    "other rewards": lambda: three(rows=Rows(SCALARS, "float64")),
    "a dict": lambda: three(rows=Rows({"frame": SCALARS})),
    "an extra": lambda: three(rows=Rows(SCALARS, extras={"x": SCALARS})),
    "pickled": lambda: pickle.loads(pickle.dumps(three())),
    "a list": lambda: dataclasses.replace(three(), discount=[0.0] * 3),
    "of two batches": lambda: dataclasses.replace(three(), next_observation=three().observation),
    "the wrong way round": lambda: dataclasses.replace(
        batch := three(), observation=batch.next_observation, next_observation=batch.observation
    ),
}


@pytest.mark.parametrize("make_wrong", UNFIT.values(), ids=UNFIT)
def test_an_out_that_does_not_fit_is_refused_and_not_touched(make_wrong):
    wrong = make_wrong()
    before = pickle.dumps(wrong)
    rows = Rows(SCALARS)
    gatherer = TransitionGatherer(rows, Settings(stack=3))
    for _ in range(2):
        with pytest.raises(
            SchemaError, match="out: expected a batch of 3 that this object returned"
        ):
            fetched(rows, gatherer, [0, 1, 2], wrong)
    assert pickle.dumps(wrong) == before


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_batch_is_copied_into_another_whole(settings):
    rows = Rows(SCALARS, extras={"x": Column(np.arange(12), "float32")})
    gatherer = TransitionGatherer(rows, Settings(**settings))
    out, batch = fetched(rows, gatherer, [0, 1, 2]), fetched(rows, gatherer, [8, 7, 3])
    known = arrays(out)
    for one in known:
        one[...] = 77
    assert gatherer.copy(batch, out) is out
    for one, other, before in zip(arrays(out), arrays(batch), known, strict=True):
        assert one is before
        assert one.tobytes() == other.tobytes()
    batch.id[:] = 5
    assert out.id.tolist() == [8, 7, 3]
