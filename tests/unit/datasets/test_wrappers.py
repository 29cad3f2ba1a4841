"""Batches as wholes: apart from each other, one after the other, copied into one another."""

import dataclasses

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError
from mmreplay.datasets.wrappers import _concatenated, _fill, _unshared
from tests.support.oracle.checks import check_batch


@pytest.fixture
def data(make, story):
    frame = {"a": Field((2,), "uint8"), "b": Field((), "float32")}
    writer = make(frame=frame, extras={"log_prob": Field((), "float32")})
    story.play(writer, 12, "terminated")
    return mmreplay.load(writer.path, stack=3, n_step=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: {"reward": one.reward.astype("float64")}, "reward: float32 .. and float64"),
        (lambda one: {"action": one.action[:, None]}, r"action: int64 \(\) and int64 \(1,\)"),
        (lambda one: {"extras": {}}, r"extras\['log_prob'\]: float32 \(\) and none"),
        (lambda one: {"extras": {**one.extras, "x": one.id}}, r"extras\['x'\]: none and int64"),
        (
            lambda one: {"observation": one.observation["a"]},
            r"observation\['a'\]: uint8 \(3, 2\) and none",
        ),
    ],
)
def test_batches_that_differ_are_named(data, change, message):
    one, other = data.transitions([0, 1]), data.transitions([2, 3, 4])
    other = dataclasses.replace(other, **change(other))
    with pytest.raises(SchemaError, match=message) as caught:
        _concatenated([one, other], ["left.zarr", "right.zarr"])
    assert "left.zarr and right.zarr" in str(caught.value)


def test_a_batch_is_copied_into_another(data):
    out, batch = _unshared(data.transitions([0, 1])), data.transitions([2, 3])
    arrays = out.reward, out.observation["a"], out.extras["log_prob"]
    assert _fill(out, batch) is out
    check_batch(out, data.transitions([2, 3]))
    assert arrays[0] is out.reward
    assert arrays[1] is out.observation["a"]
    assert arrays[2] is out.extras["log_prob"]
    assert not np.shares_memory(out.action, batch.action)


def test_a_batch_goes_into_none_that_differs(data):
    batch = data.transitions([2, 3])
    fixed = _unshared(data.transitions([0, 1]))
    fixed.weight.flags.writeable = False
    for out, message in (
        (data.transitions([1]), r"observation\['a'\]: uint8 \(2, .* \(1, "),
        (dataclasses.replace(batch, extras={}), r"extras\['log_prob'\]"),
        (dataclasses.replace(batch, id=batch.id.astype("int32")), "id: int64 .* and int32"),
        (fixed, "read-only"),
        (None, "found NoneType"),
    ):
        with pytest.raises(SchemaError, match=message):
            _fill(out, batch)
