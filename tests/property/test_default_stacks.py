"""By default only the gray images of a dict are stacked: as a plain list of steps shows it."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmreplay
from mmreplay import Field

pytestmark = pytest.mark.usefixtures("quick_disk")

IMAGE, SPEED = Field((2, 3)), Field((3,), "float32")
GAMMA, K = 0.5, 4

steps = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=9), min_size=1, max_size=4)


def frame(number):
    return {"image": np.full((2, 3), number % 250 + 1, "u1"), "speed": np.full(3, number, "f4")}


def recorded(path, episodes, codec):
    """Write the episodes; returns a list of (numbers of the episode's frames, its rewards)."""
    fields = {"image": Field((2, 3), "uint8", codec), "speed": SPEED}
    out, number = [], 0
    with mmreplay.create(path, fields, Field((), "int64"), flush_s=0) as writer:
        for rewards in episodes:
            numbers = list(range(number, number + len(rewards) + 1))
            number += len(numbers)
            writer.reset(frame(numbers[0]))
            for i, reward in enumerate(rewards):
                writer.step(0, reward, frame(numbers[i + 1]), terminated=i + 1 == len(rewards))
            out.append((numbers, rewards))
    return out


def expected(numbers, at, padding):
    """The image as a stack of K, and the newest vector, from a plain list."""
    images = [
        frame(numbers[max(i, 0)])["image"] * (i >= 0 or padding == "reset")
        for i in range(at - K + 1, at + 1)
    ]
    return np.stack(images), frame(numbers[at])["speed"]


def compare(found, i, numbers, at, padding, axis):
    image, speed = expected(numbers, at, padding)
    image = np.moveaxis(image, 0, -1) if axis == -1 else image
    assert np.array_equal(found["image"][i], image)
    assert np.array_equal(found["speed"][i], speed)


@given(
    steps,
    st.sampled_from(["raw", "lz4"]),
    st.integers(1, 4),
    st.sampled_from(["reset", "zero"]),
    st.sampled_from([0, -1]),
    st.integers(0, 3),
    st.integers(1, 5),
)
def test_a_dict_of_an_image_and_a_vector_equals_a_plain_list(
    episodes, codec, n_step, padding, axis, burn_in, length
):
    how = {"n_step": n_step, "gamma": GAMMA, "padding": padding, "stack_axis": axis}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.zarr"
        told = recorded(path, episodes, codec)
        rows = [(e, t) for e, (_, rewards) in enumerate(told) for t in range(len(rewards))]
        with mmreplay.load(path, **how) as data:
            batches = [data.store.transitions(data.ids, **how), data.sample(16)]
            batches.append(data.sample(16, out=batches[-1]))
            for batch in batches:
                for i, one in enumerate(batch.id.tolist()):
                    numbers, rewards = told[rows[one][0]]
                    t = rows[one][1]
                    m = min(n_step, len(rewards) - t)
                    compare(batch.observation, i, numbers, t, padding, axis)
                    compare(batch.next_observation, i, numbers, t + m, padding, axis)
                    total = sum(GAMMA**j * r for j, r in enumerate(rewards[t : t + m]))
                    assert np.isclose(batch.reward[i], total)
            windows = data.sample_sequences(4, length, burn_in, "pad")
            assert windows.observation["speed"].shape == (4, burn_in + length, 3)
            for i, j in np.argwhere(windows.mask).tolist():
                numbers, rewards = told[rows[windows.id[i, j]][0]]
                t = rows[windows.id[i, j]][1]
                seen = {key: value[i] for key, value in windows.observation.items()}
                following = {key: value[i] for key, value in windows.next_observation.items()}
                compare(seen, j, numbers, t, padding, axis)
                compare(following, j, numbers, t + min(n_step, len(rewards) - t), padding, axis)
            # Where no step is, a vector shares no memory with a step that sees it as its next one.
            alone = ~windows.mask
            alone[:, 1:] &= ~windows.mask[:, :-1]
            assert not windows.observation["speed"][alone].any()
