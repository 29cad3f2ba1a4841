"""A stack of shared frames reads as an array, keeps no array, and nobody can change a frame."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmreplay import LazyFrames, SchemaError

SHAPES = [(), (3,), (4, 5), (4, 5, 3), (2, 3, 2, 2)]


def frames_of(shape, k=4, dtype="uint8"):
    size = int(np.prod(shape))
    return [(np.arange(size) + 40 * i + 1).astype(dtype).reshape(shape) for i in range(k)]


def joined(frames, stack_axis):
    """What a stack is, in one line of numpy for each kind."""
    if stack_axis == 0:
        return np.stack(frames)
    return np.concatenate(frames, -1) if frames[0].ndim == 3 else np.stack(frames, -1)


# ---------------------------------------------------------------- as an array


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stack_axis", [0, -1])
def test_it_reads_as_the_joined_array(shape, stack_axis):
    frames = frames_of(shape)
    lazy, expected = LazyFrames(frames, stack_axis), joined(frames, stack_axis)
    assert lazy.shape == expected.shape
    assert lazy.ndim == expected.ndim
    assert lazy.size == expected.size
    assert lazy.dtype == expected.dtype
    assert lazy.stack_axis == stack_axis
    assert lazy.count() == 4
    assert all(np.array_equal(lazy.frame(i), frames[i]) for i in range(4))
    assert len(lazy) == len(expected)
    found = np.asarray(lazy)
    assert found.tobytes() == expected.tobytes()
    assert found.flags.c_contiguous
    for one, other in zip(lazy, expected, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(np.stack([lazy, lazy]), np.stack([expected, expected]))
    assert np.array_equal(np.array([lazy, lazy]), np.array([expected, expected]))
    assert np.array_equal(np.ones(lazy.shape) * lazy, expected)


@pytest.mark.parametrize("stack_axis", [0, -1])
def test_the_dtype_is_converted_as_numpy_does(stack_axis):
    frames = frames_of((4, 5))
    lazy = LazyFrames(frames, stack_axis)
    for dtype in ("float32", np.int64, bool):
        found = np.asarray(lazy, dtype)
        assert found.dtype == dtype
        assert np.array_equal(found, joined(frames, stack_axis).astype(dtype))
    assert np.asarray(lazy, "uint8").dtype == np.uint8


def test_an_array_always_costs_a_copy_so_copy_false_is_refused():
    lazy = LazyFrames(frames_of((2,)))
    with pytest.raises(ValueError, match="without a copy"):
        np.array(lazy, copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(lazy, copy=False)
    assert np.array_equal(np.array(lazy, copy=True), np.asarray(lazy, copy=None))


def test_equality_is_that_of_arrays():
    one, other = LazyFrames(frames_of((3,))), LazyFrames(frames_of((3,)))
    array = np.asarray(one)
    assert (one == other).all()
    assert (one == array).all()
    assert (array == one).all()
    assert not (one != other).any()
    later = other.followed_by(array[0])
    assert (one == later).tolist() == (array == np.asarray(later)).tolist()
    assert (one == later).shape == one.shape
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


# ---------------------------------------------------------------- indexing


def keys():
    ints, n = st.integers(-5, 4), st.none() | st.integers(-6, 6)
    steps = st.sampled_from([None, 1, 2, -1, -2])
    slices = st.builds(slice, n, n, steps)
    others = st.sampled_from([np.int64(1), True, np.True_, None, [0, 1], np.array([1, 0]), "x"])
    one = st.one_of(ints, slices, st.just(...), others)
    return one | st.lists(one, max_size=5).map(tuple)


@given(st.sampled_from(SHAPES), st.sampled_from([0, -1]), st.integers(1, 4), keys())
def test_any_key_gives_what_the_joined_array_gives(shape, stack_axis, k, key):
    frames = frames_of(shape, k)
    lazy, array = LazyFrames(frames, stack_axis), joined(frames, stack_axis)
    try:
        expected = array[key]
    except Exception as error:
        with pytest.raises(type(error)):
            lazy[key]
        return
    found = lazy[key]
    assert np.shape(found) == np.shape(expected)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    before = array.copy()
    if isinstance(found, np.ndarray) and found.flags.writeable:
        found[...] = 0
    assert np.array_equal(np.asarray(lazy), before)


@pytest.mark.parametrize("writable", [True, False])
def test_a_frame_that_is_handed_out_cannot_be_written(writable):
    frames = frames_of((4, 5))
    for frame in frames:
        frame.flags.writeable = writable
    front, last = LazyFrames(frames), LazyFrames(frames, -1)
    for one in (front[-1], front.frame(-1), last.frame(3), *front):
        with pytest.raises(ValueError, match="read-only"):
            one[...] = 0
    assert np.shares_memory(front[-1], frames[3])
    assert frames[3].flags.writeable is writable  # the caller's own array is left alone
    sliced = front[1:]
    sliced[...] = 0
    assert frames[1].all()


# ---------------------------------------------------------------- step by step


def test_the_first_stack_repeats_the_frame_or_pads_with_zeros():
    frame = np.array([7, 8], "uint8")
    assert np.asarray(LazyFrames.first(frame, 3)).tolist() == [[7, 8]] * 3
    zero = LazyFrames.first(frame, 3, padding="zero")
    assert np.asarray(zero).tolist() == [[0, 0], [0, 0], [7, 8]]
    assert zero.dtype == np.uint8
    assert zero.is_first()
    assert LazyFrames.first(frame, 3).is_first()
    assert LazyFrames.first(frame, 1).is_first()
    second = zero.followed_by(frame + 1)
    assert np.asarray(second).tolist() == [[0, 0], [7, 8], [8, 9]]
    assert not second.is_first()
    assert LazyFrames([frame.copy() for _ in range(3)]).is_first()


def test_the_frames_of_a_stack_are_copies_of_what_it_was_given():
    screen = np.zeros(3, "uint8")
    stacks = [LazyFrames.first(screen, 2)]
    for value in (1, 2, 3):
        screen[:] = value  # an environment that hands out one array again and again
        stacks.append(stacks[-1].followed_by(screen))
    assert [np.asarray(s)[:, 0].tolist() for s in stacks] == [[0, 0], [0, 1], [1, 2], [2, 3]]
    assert stacks[2].frame(-1) is stacks[3].frame(0)


def test_what_is_no_stack_is_refused():
    frame = np.zeros(2, "uint8")
    for frames in ([], [frame, np.zeros(3, "uint8")], [frame, np.zeros(2, "int8")]):
        with pytest.raises(SchemaError, match="frames: expected"):
            LazyFrames(frames)
    with pytest.raises(SchemaError, match="stack_axis: expected 0 or -1, found 1"):
        LazyFrames([frame], 1)
    for stack in (0, True, 2.0, None):
        with pytest.raises(SchemaError, match="stack: expected"):
            LazyFrames.first(frame, stack)
    with pytest.raises(SchemaError, match="padding: expected"):
        LazyFrames.first(frame, 2, padding="edge")
    with pytest.raises(SchemaError, match="one shape and dtype"):
        LazyFrames.first(frame, 2).followed_by(np.zeros(2, "float32"))


# ---------------------------------------------------------------- memory and pickles


def test_observations_take_one_frame_a_step_also_after_they_were_looked_at():
    n_steps, shape, k = 300, (84, 84), 4
    frame_bytes = 84 * 84
    screen = np.zeros(shape, "uint8")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        stack = LazyFrames.first(screen, k)
        kept = [stack]
        for t in range(1, n_steps):
            screen[t % 84] = t % 251
            kept.append(kept[-1].followed_by(screen))
        total = sum(int(np.asarray(stack)[-1, 0, 0]) for stack in kept)  # touches each of them
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 0
    assert len(kept) == n_steps
    # Four frames a step would be 4.0, and a joined array kept beside shared frames 5.0.
    assert 1.0 <= (after - before) / (n_steps * frame_bytes) < 1.1


@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_stacks_of_one_pickle_go_on_sharing(padding):
    random = np.random.default_rng(0)
    shape, n = (64, 64), 20
    kept = [LazyFrames.first(random.integers(1, 255, shape, "uint8"), 4, padding=padding)]
    for _ in range(n - 1):
        kept.append(kept[-1].followed_by(random.integers(1, 255, shape, "uint8")))
    data = pickle.dumps(kept)
    found = pickle.loads(data)
    for one, other in zip(found, kept, strict=True):
        assert (one == other).all()
        assert not one.frame(0).flags.writeable
    distinct = {id(frame) for stack in found for frame in stack._frames}
    assert len(distinct) == n + (padding == "zero")
    assert len(data) < (n + 2) * 64 * 64
