"""Stacks are found in observations, taken apart, and put together as they came."""

import numpy as np
import pytest

import mmreplay
from mmreplay.adapters.frame_stacks import Stacks, same_bytes, stacks_of, stacks_seen


def stacks(n, channels=1, seed=0, *, padding="zero", step=0):
    """The stacks (2, n * channels, 5, 5) of two environments, so many steps after they began."""
    frames = np.random.default_rng(seed).integers(1, 256, (2, 99, channels, 5, 5), np.uint8)
    first = 0 if padding == "zero" else frames[:, :1]
    frames = np.concatenate([np.broadcast_to(first, (2, n - 1, channels, 5, 5)), frames], 1)
    return {"frame": frames[:, step : step + n].reshape(2, n * channels, 5, 5).astype(np.uint8)}


@pytest.mark.parametrize("padding", ["zero", "reset"])
@pytest.mark.parametrize(("n", "channels"), [(4, 1), (4, 3), (2, 1), (2, 2), (6, 1)])
def test_stacks_of_images_are_seen_from_the_first_step(n, channels, padding):
    first = stacks(n, channels, padding=padding)
    then = stacks(n, channels, padding=padding, step=1)
    found = stacks_seen(first, then, ...)
    assert found == Stacks(n, padding)
    assert found.begins(first).all()
    assert not found.begins(then).any()
    assert found.follow(first, then)
    newest = found.newest(then)["frame"]
    assert newest.shape == (2, *found.frame_shape((n * channels, 5, 5)))
    assert np.array_equal(newest.reshape(2, channels, 5, 5), then["frame"][:, -channels:])


def test_stacks_in_the_middle_of_an_episode_are_seen_and_no_beginning():
    middle, then = stacks(4, step=9), stacks(4, step=10)
    found = stacks_seen(middle, then, ...)
    assert found == Stacks(4)
    assert not found.begins(middle).any()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 5, 5), "uint8"), ((1, 5, 5), "uint8"), ((4, 5, 5), "float32"), ((4,), "uint8")],
)
def test_colours_and_what_is_no_image_are_stored_whole(shape, dtype):
    zeros = {"frame": np.zeros((2, *shape), dtype)}
    assert stacks_seen(zeros, zeros, ...) == Stacks(None)


def test_images_that_are_no_stacks_are_stored_whole():
    random = np.random.default_rng(0)
    seen, following = ({"frame": random.integers(0, 256, (2, 4, 5, 5), np.uint8)} for _ in "ab")
    found = stacks_seen(seen, following, ...)
    assert found == Stacks(None)
    assert found.newest(seen)["frame"] is seen["frame"]
    assert found.begins(seen).all()
    assert found.follow(seen, following)


def test_number_of_frames_that_is_given_counts():
    seen = {"frame": np.arange(12.0).reshape(2, 6)}
    assert stacks_seen(seen, seen, 3) == Stacks(3)
    assert stacks_seen(stacks(4), stacks(4, step=1), None) == Stacks(None)
    assert stacks_seen(stacks(3, padding="reset"), stacks(3, padding="reset", step=1), 3) == Stacks(
        3, "reset"
    )
    assert Stacks(3).newest(seen)["frame"].tolist() == [[4, 5], [10, 11]]
    with pytest.raises(mmreplay.SchemaError, match="stack: expected a divisor"):
        Stacks(4).frame_shape((6,))


def test_one_environment_that_does_not_follow_is_seen():
    first, then = stacks(4), stacks(4, step=1)
    assert Stacks(4).follow(first, then)
    then["frame"][1, 0, 2, 2] += 1
    assert not Stacks(4).follow(first, then)


@pytest.mark.parametrize(
    ("shape", "frame", "n"),
    [((4, 5, 5), (5, 5), 4), ((12, 5, 5), (3, 5, 5), 4), ((3, 5, 5), (3, 5, 5), None), ((6,), (2,), 3), ((), (), None)],
)  # fmt: skip
def test_stacks_of_a_store_follow_from_its_frames(shape, frame, n):
    assert stacks_of({"frame": shape}, {"frame": frame}, "zero") == Stacks(n)


def test_store_of_other_frames_is_refused():
    with pytest.raises(mmreplay.SchemaError, match="are not stacks of"):
        stacks_of({"frame": (4, 5, 5)}, {"frame": (7, 7)}, "zero")


def test_bytes_are_compared_also_of_what_is_not_equal_to_itself():
    one = np.array([[1.0, np.nan], [2.0, 3.0]])
    assert same_bytes(one, one.copy()).tolist() == [True, True]
    assert same_bytes(one, one + np.array([[0, 0], [0, 1]])).tolist() == [True, False]
