"""Full stacks given to a writer: the newest frame is stored, and what does not go on is refused."""

import pickle

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import Field, LazyFrames, SchemaError
from mmreplay.ids import LANE_SHIFT

K = 4


def pixel(value):
    return np.array([value, 2, 3], "uint8")


def stacks_of(*values, k=K, **settings):
    """The stacks of an episode whose frames start with these values."""
    out = [LazyFrames.first(pixel(values[0]), k, **settings)]
    for value in values[1:]:
        out.append(out[-1].followed_by(pixel(value)))
    return out


def stored(writer):
    """What the frames of each lane start with: all observations of its episodes."""
    with mmreplay.open(writer.path) as store:
        lanes = store.episodes["id"] >> LANE_SHIFT
        seen = [store.trajectory(number).observation[:, 0].tolist() for number in range(len(lanes))]
    out = [[] for _ in range(int(lanes.max(initial=0)) + 1)]
    for lane, values in zip(lanes.tolist(), seen, strict=True):
        out[lane] += values
    return out


@pytest.fixture(params=["raw", "lz4"])
def fields(request, lz4):
    """Keywords for `make`: a store whose frames lie in chunks of 8, and one of shards of 8."""
    return {} if request.param == "raw" else lz4


@pytest.mark.parametrize("settings", [{}, {"padding": "zero"}, {"stack_axis": -1}, {"k": 1}])
def test_only_the_newest_frame_of_a_stack_is_stored(make, fields, settings):
    writer = make(**fields)
    values = [list(range(10, 40)), [50, 60]]  # over several chunks and shards
    for episode in values:
        first, *rest = stacks_of(*episode, **settings)
        writer.reset(first)
        for stack in rest:
            writer.step(1, 1.0, stack, truncated=stack is rest[-1])
    assert stored(writer) == [values[0] + values[1]]


def test_a_stack_that_came_through_a_pickle_is_compared_by_value(make, fields):
    writer = make(**fields)
    stacks = [pickle.loads(pickle.dumps(stack)) for stack in stacks_of(*range(20))]
    writer.reset(stacks[0])
    for stack in stacks[1:]:
        writer.step(1, 1.0, stack)
    with pytest.raises(SchemaError, match="do not go on from the observation of step 19"):
        writer.step(1, 1.0, stacks[5])
    assert stored(writer) == [list(range(20))]


@pytest.mark.parametrize("wrong", ["skipped", "repeated", "forgotten reset"])
def test_a_stack_that_does_not_go_on_is_refused_and_nothing_is_stored(make, fields, wrong):
    writer = make(**fields)
    stacks, others = stacks_of(*range(12)), stacks_of(100, 101, 102)
    writer.reset(stacks[0])
    for stack in stacks[1:10]:
        writer.step(1, 1.0, stack)
    given = {"skipped": stacks[11], "repeated": stacks[9], "forgotten reset": others[1]}[wrong]
    with pytest.raises(
        SchemaError,
        match=r"do not go on from the observation of step 9: .*Call reset\(\) after each",
    ):
        writer.step(1, 1.0, given)
    assert stored(writer) == [list(range(10))]
    writer.step(1, 1.0, stacks[10])
    writer.step(1, 1.0, given.frame(-1))  # a frame alone is never compared
    assert writer.rows == 11


def test_reset_takes_the_first_stack_of_an_episode_only(make):
    writer = make()
    stacks = stacks_of(1, 2, 3)
    with pytest.raises(SchemaError, match=r"middle of an episode; call env.reset\(\) first"):
        writer.reset(stacks[1])
    assert writer.rows == 0
    writer.reset(stacks[1].frame(-1))
    writer.step(1, 1.0, stacks[2])
    writer.reset(stacks_of(0, padding="zero")[0])
    with pytest.raises(SchemaError, match="do not go on"):
        writer.step(1, 1.0, stacks[2])
    assert stored(writer) == [[2, 3]]


def test_a_field_of_whole_stacks_is_refused_with_the_field_of_a_frame(make):
    writer = make(frame=Field((K, 3), "uint8"))
    with pytest.raises(SchemaError, match=r"mmreplay.Field\(\(3,\), 'uint8'\), and choose stack="):
        writer.reset(stacks_of(1)[0])


def test_the_parts_of_a_dict_are_stacks_each(make):
    writer = make(frame={"image": Field((3,), chunk=8), "speed": Field((), "float32", chunk=8)})
    images = stacks_of(*range(20))
    speeds = [LazyFrames.first(np.float32(0), 2)]
    for t in range(1, 20):
        speeds.append(speeds[-1].followed_by(np.float32(t)))
    writer.reset({"image": images[0], "speed": speeds[0]})
    for t in range(1, 19):
        speed = speeds[t] if t % 2 else np.float32(t)
        writer.step(1, 1.0, {"image": images[t], "speed": speed})
    with pytest.raises(SchemaError, match=r"frame\['speed'\]: LazyFrames that do not go on"):
        writer.step(1, 1.0, {"image": images[19], "speed": speeds[3]})
    with pytest.raises(SchemaError, match="expected a dict with the keys"):
        writer.step(1, 1.0, {"image": images[19], "pace": speeds[3]})
    with mmreplay.open(writer.path) as store:
        assert store.frames["image"][:, 0].tolist() == list(range(18))
        assert store.frames["speed"][:].tolist() == list(range(18))


def test_a_vector_writer_takes_the_stacks_of_each_environment(make, fields):
    writer = make(lanes=2, **fields)
    one, two = stacks_of(*range(20)), stacks_of(*range(100, 120))
    writer.reset([one[0], two[0]])
    none = [False] * 2
    for t in range(1, 20):
        second = two[t] if t % 2 else two[t].frame(-1)
        writer.step([1, 1], [1.0, 1.0], [one[t], second], none, [False, t == 19])
    other = stacks_of(5, 6)
    writer.reset([None, other[0]], [False, True])
    with pytest.raises(SchemaError, match=r"environment 0.* from the observation of step 19"):
        writer.step([1, 1], [1.0, 1.0], [one[3], other[1]], none, none)
    writer.step([1, 1], [1.0, 1.0], [one[19].followed_by(pixel(20)), other[1]], none, none)
    writer.close()
    group = zarr.open_group(writer.path, mode="r")
    frames = [[t, 100 + t] for t in range(19)] + [[19, 5]]
    assert group["frames"][:, :, 0].tolist() == frames
    assert group["finals/frames"][:, 0].tolist() == [119, 20, 6]
