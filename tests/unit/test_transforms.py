"""Transforms: what each makes of a batch, against a loop over its images."""

import dataclasses

import numpy as np
import pytest

from mmreplay import Batch, SchemaError, Settings
from mmreplay.transforms import ClipReward, Normalize, PixelsToFloat, RandomCrop, RandomShift

SHAPES = {
    "gray stack": ((6, 3, 9, 11), (-2, -1)),
    "no stack": ((6, 9, 11), (-2, -1)),
    "colour stack": ((6, 2, 9, 11, 3), (-3, -2)),
    "stack last": ((6, 9, 11, 4), (1, 2)),
}


def batch_of(observation, following=None, reward=None):
    size = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
    return Batch(
        observation,
        observation if following is None else following,
        np.zeros(size, np.int64),
        np.zeros(size, np.float32) if reward is None else reward,
        np.ones(size, np.float32),
        np.ones(size, np.bool_),
        np.arange(size),
        np.ones(size, np.float32),
        {},
        np.zeros(size, np.bool_),
        np.zeros(size, np.bool_),
    )


def images(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, "uint8")


def shifted(image, pad, top, left):
    """One image of two axes, the naive way."""
    height, width = image.shape
    out = np.empty_like(image)
    for y in range(height):
        for x in range(width):
            row = min(max(y + top - pad, 0), height - 1)
            column = min(max(x + left - pad, 0), width - 1)
            out[y, x] = image[row, column]
    return out


def planes(array, axes):
    """(B, images, H, W) of what has height and width somewhere else."""
    moved = np.moveaxis(array, axes, (-2, -1))
    return moved.reshape(len(array), -1, *moved.shape[-2:])


@pytest.mark.parametrize("name", SHAPES)
def test_a_shift_is_one_of_the_possible_ones_and_the_same_for_a_whole_stack(name):
    shape, axes = SHAPES[name]
    batch = batch_of(images(shape))
    out = RandomShift(2, axes=axes)(batch, np.random.default_rng(0))
    assert out.observation.shape == shape
    assert out.observation.dtype == np.uint8
    assert out.observation.flags.c_contiguous
    offsets = []
    for found in (out.observation, out.next_observation):
        for before, after in zip(planes(batch.observation, axes), planes(found, axes), strict=True):
            fits = [
                (top, left)
                for top in range(5)
                for left in range(5)
                if all(
                    np.array_equal(shifted(one, 2, top, left), other)
                    for one, other in zip(before, after, strict=True)
                )
            ]
            assert len(fits) == 1
            offsets += fits
    assert len(set(offsets)) > 4
    assert offsets[:6] != offsets[6:], "observation and next observation move apart"


@pytest.mark.parametrize("name", SHAPES)
def test_a_crop_is_a_part_of_its_image_and_the_same_for_a_whole_stack(name):
    shape, axes = SHAPES[name]
    batch = batch_of(images(shape))
    out = RandomCrop((7, 8), axes=axes)(batch, np.random.default_rng(0))
    offsets = []
    for found in (out.observation, out.next_observation):
        for before, after in zip(planes(batch.observation, axes), planes(found, axes), strict=True):
            assert after.shape[1:] == (7, 8)
            fits = [
                (top, left)
                for top in range(3)
                for left in range(4)
                if np.array_equal(before[:, top : top + 7, left : left + 8], after)
            ]
            assert len(fits) == 1
            offsets += fits
    assert len(set(offsets)) > 4
    assert offsets[:6] != offsets[6:]


def test_images_of_a_dict_move_together_and_the_rest_stays():
    frames = images((5, 2, 8, 8))
    vector = np.arange(5.0)
    batch = batch_of({"rgb": frames, "depth": frames.astype("float32"), "pose": vector})
    for transform in (RandomShift(3, ("rgb", "depth")), RandomCrop((6, 6), ("rgb", "depth"))):
        out = transform(batch, np.random.default_rng(0)).observation
        assert np.array_equal(out["rgb"], out["depth"])
        assert out["pose"] is vector
        assert not np.array_equal(out["rgb"], frames[..., : out["rgb"].shape[-1]])


@pytest.mark.parametrize(
    "transform",
    [RandomShift(2), RandomCrop((5, 5)), PixelsToFloat(), Normalize(3, 2), ClipReward()],
)
def test_nothing_that_is_given_is_changed_and_draws_repeat(transform):
    frames, reward = images((4, 2, 8, 8)), np.linspace(-3, 3, 4, dtype="float32")
    for array in (frames, reward):
        array.flags.writeable = False
    batch = batch_of(frames, frames[::-1], reward)
    before = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    one, other = (transform(batch, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(one.observation, other.observation)
    for name in ("action", "discount", "non_terminal", "id", "weight"):
        assert getattr(one, name) is before[name]


def test_rewards_are_clipped_in_their_dtype():
    batch = batch_of(images((3, 2)), reward=np.array([-7, 0.5, 3], "float32"))
    assert ClipReward()(batch, None).reward.tolist() == [-1, 0.5, 1]
    assert ClipReward(0, 2)(batch, None).reward.tolist() == [0, 0.5, 2]
    assert ClipReward()(batch, None).reward.dtype == np.float32
    ClipReward().check(Settings(n_step=1))
    with pytest.raises(SchemaError, match=r"n_step=1, .* pass clip_reward=\(-1\.0, 1\.0\) to"):
        ClipReward().check(Settings(n_step=2))


def test_pixels_are_divided_by_255_once():
    batch = batch_of(np.arange(256, dtype="uint8").reshape(16, 16))
    out = PixelsToFloat()(batch, None)
    assert out.observation.dtype == np.float32
    assert np.array_equal(out.observation.ravel(), np.arange(256, dtype="float32") / 255)
    assert np.array_equal(np.rint(out.next_observation * 255), batch.observation)
    with pytest.raises(SchemaError, match="expected uint8 pixels, found float32"):
        PixelsToFloat()(out, None)
    mixed = batch_of({"image": images((2, 4)), "pose": np.zeros((2, 3))})
    assert PixelsToFloat(("image",))(mixed, None).observation["pose"].dtype == np.float64
    with pytest.raises(SchemaError, match="keys="):
        PixelsToFloat()(mixed, None)


def test_observations_are_normalised_frame_by_frame():
    frames = np.random.default_rng(0).normal(7, 3, (500, 2, 4))
    mean, std = frames.mean((0, 1)), frames.std((0, 1))
    out = Normalize(mean, std)(batch_of(frames), None).observation
    assert out.dtype == np.float32
    assert np.allclose(out, (frames - mean) / std, atol=1e-5)
    clipped = Normalize(mean, std, clip=1.5)(batch_of(frames), None).observation
    assert np.array_equal(clipped, out.clip(-1.5, 1.5))
    assert np.array_equal(
        Normalize(100, 10, epsilon=0)(batch_of(np.array([[90], [120]], "uint8")), None).observation,
        [[-1], [2]],
    )


def test_the_keys_of_a_dict_are_normalised_by_their_own():
    given = {"a": np.ones((3, 2)), "b": np.ones((3,)), "c": np.ones((3,))}
    mean, std = (
        {"observation.a": [1, 0], "observation.b": 3},
        {"observation.a": 1, "observation.b": 2},
    )
    out = Normalize(mean, std, epsilon=0)(batch_of(given), None)
    assert out.observation["a"].tolist() == [[0, 1]] * 3
    assert out.observation["b"].tolist() == [-1] * 3
    assert out.observation["c"] is given["c"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomShift(-1), "pad"),
        (lambda: RandomShift(1.5), "pad"),
        (lambda: RandomCrop((0, 4)), "size"),
        (lambda: ClipReward(1, 1), "low < high"),
        (lambda: Normalize(0, -1), "above 0"),
        (lambda: Normalize(0, [1, float("nan")]), "above 0"),
        (lambda: Normalize({"a": 0}, {"b": 1}), "same fields"),
    ],
)
def test_a_value_out_of_its_range_is_refused(make, message):
    with pytest.raises(SchemaError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "observation", "message"),
    [
        (RandomShift(4), images((2, 84, 84, 4)), "images of .5, 5. or more, found .84, 4. on axes"),
        (RandomCrop((9, 9)), images((2, 3, 8, 20)), "images of .9, 9. or more"),
        (RandomShift(1, axes=(0, 1)), images((4, 5, 5)), "height and width of observations"),
        (RandomShift(1), images((4, 5)), "height and width of observations"),
        (RandomShift(1, axes=(1, 1)), images((4, 5, 5)), "height and width of observations"),
        (RandomShift(1, ("rgb",)), {"image": images((4, 5, 5))}, "keys: .*'rgb'"),
        (Normalize([1, 2, 3], 1), images((4, 2)), "cannot be broadcast against .4, 2."),
        (Normalize([[1, 2]], 1), np.zeros(2), "cannot be broadcast against .2,."),
        (Normalize({"x": 1}, {"x": 1}), images((4, 2)), "some of .*'observation', .* found .'x'."),
        (Normalize(1, 1), {"x": images((4, 2))}, "'observation.x', .* found .'observation'."),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(transform, observation, message):
    with pytest.raises(SchemaError, match=message):
        transform(batch_of(observation), np.random.default_rng(0))
