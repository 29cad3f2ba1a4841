"""`Normalize.fit`: fields as their statistics say, back again, and images as they are."""

import pickle

import numpy as np
import pytest

import mmreplay
from mmreplay import Decorated, EmptyBufferError, Field, SchemaError, UnsupportedError
from mmreplay.transforms import Normalize

FIELDS = {
    "frame": {"state": Field((3,), "float32"), "camera": Field((4, 4), "uint8")},
    "action": Field((2,), "float32"),
    "extras": {"speed": Field((), "float64"), "tag": Field((), "int64")},
}
MODES = {
    "mean_std": lambda values: (values.mean(0), values.std(0)),
    "min_max": lambda values: between(values.min(0), values.max(0)),
    "quantiles": lambda values: between(*np.quantile(values, (0.01, 0.99), axis=0)),
}
pytestmark = pytest.mark.usefixtures("quick_disk")


def between(low, high):
    return (low + high) / 2, (high - low) / 2


@pytest.fixture
def path(tmp_path):
    """A store of 150 steps; the last elements of state and action never change."""
    random = np.random.default_rng(0)

    def frame():
        state = random.normal([5, -100, 0.1], [2, 7, 0])
        return {"state": state, "camera": random.integers(0, 256, (4, 4), "uint8")}

    with mmreplay.create(tmp_path / "s.zarr", **FIELDS, flush_s=0) as writer:
        for _ in range(10):
            writer.reset(frame())
            for step in range(15):
                action = random.normal([1, -1], [3, 0])
                extras = {"speed": random.normal(), "tag": step}
                writer.step(action, random.normal(), frame(), step == 14, **extras)
    return tmp_path / "s.zarr"


@pytest.fixture
def data(path):
    with mmreplay.load(path, seed=1) as out:
        yield out


@pytest.mark.parametrize("of", ["batches", "sequence_batches"])
@pytest.mark.parametrize("mode", MODES)
def test_fields_are_normalised_and_come_back(data, mode, of):
    normal = pickle.loads(pickle.dumps(Normalize.fit(data, mode=mode)))
    batch = next(getattr(Decorated(data, normal), of)(6, **{"length": 2} if "seq" in of else {}))
    plain, every = data.transitions(batch.id.ravel()), data.transitions(data.ids)
    state = every.observation["state"]
    for name, given, stored, values in (
        ("observation.state", batch.observation["state"], plain.observation["state"], state),
        ("observation.state", batch.next_observation["state"], plain.next_observation["state"], state),
        ("action", batch.action, plain.action, every.action),
    ):  # fmt: skip
        found = given.reshape(stored.shape)
        center, spread = MODES[mode](values.astype(np.float64))
        expected = (stored - center) / np.where(np.arange(spread.size) < spread.size - 1, spread, 1)
        assert found.dtype == np.float32
        assert np.allclose(found, expected, atol=1e-5)
        assert (found[:, -1] == 0).all()  # what never changes
        back = normal.inverse(name, found)
        assert back.dtype == np.float32
        assert np.allclose(back, stored, atol=1e-4)
        assert np.array_equal(normal.apply(name, stored[0]), found[0])
    for found, stored in (
        (batch.observation["camera"], plain.observation["camera"]),
        (batch.reward, plain.reward),
        (batch.extras["tag"], plain.extras["tag"]),
    ):
        assert np.array_equal(found.ravel(), stored.ravel())


def test_named_fields_are_normalised_whatever_they_are_but_images(data):
    normal = Normalize.fit(data, ["reward", "tag", "speed", "observation.camera"], "min_max")
    batch = Decorated(data, normal).transitions(data.ids)
    for found in (batch.reward, batch.extras["tag"], batch.extras["speed"]):
        assert found.dtype == np.float32
        assert (found.min(), found.max()) == (-1, 1)
    assert batch.observation["camera"].dtype == np.uint8
    assert normal.inverse("tag", [-1, 0, 1]).tolist() == [0, 7, 14]
    with pytest.raises(SchemaError, match=r"one of \['reward', 'speed', 'tag'\], found 'action'"):
        normal.inverse("action", batch.action)
    with pytest.raises(SchemaError, match=r"one of .*, found 'observation\.camera'"):
        normal.inverse("observation.camera", batch.observation["camera"])
    with pytest.raises(SchemaError, match=r"action: mean \(2,\) .* broadcast against \(5,\)"):
        Normalize.fit(data).inverse("action", np.zeros(5))


def test_stacks_are_normalised_frame_by_frame(path):
    with mmreplay.load(path, stack=3) as data:
        normal = Normalize.fit(data, ["observation.state"])
        batch, plain = Decorated(data, normal).transitions([9]), data.transitions([9])
        expected = normal.apply("observation.state", plain.observation["state"])
        assert np.array_equal(batch.observation["state"], expected)
        assert expected.shape == (1, 3, 3)
    with mmreplay.load(path, stack=3, stack_axis=-1) as data:
        with pytest.raises(
            SchemaError, match=r"fields: expected some that are neither .* last axis"
        ):
            Normalize.fit(data)
        batch = Decorated(data, Normalize.fit(data, ["action"])).sample(3)
        assert batch.observation["state"].shape == (3, 3, 3)


def test_what_cannot_be_normalised_is_refused(path, tmp_path):
    with mmreplay.load(path, n_step=3, stack=None) as data:
        with pytest.raises(SchemaError, match="Normalize: reward: expected n_step=1, found 3"):
            Decorated(data, Normalize.fit(data, ["reward"]))
        decorated = Decorated(data, Normalize.fit(data, ["action"]))
        with pytest.raises(UnsupportedError, match=r"^Decorated\.statistics: .*`data`"):
            Normalize.fit(decorated)
        for given, match in (
            ({"mode": "max"}, "mode: expected 'mean_std', 'min_max' or 'quantiles', found 'max'"),
            ({"fields": ["observation.camera"]}, r"fields: expected some that are neither images"),
            ({"fields": []}, r"fields: .*found \[\] of \['observation\.state', "),
            ({"fields": ["state"]}, r"fields: expected some of .*, found \['state'\]"),
        ):
            with pytest.raises(SchemaError, match=match):
                Normalize.fit(data, **given)
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", stack=None, **FIELDS) as buffer:
        with pytest.raises(EmptyBufferError):
            Normalize.fit(buffer)


def test_elements_that_are_never_finite_stay_and_others_leave_them_out(tmp_path):
    fields = {"frame": Field((2,), "float32"), "action": Field((), "int64")}
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", stack=None, **fields) as buffer:
        buffer.reset([1, np.nan])
        for value in (3, np.inf):
            buffer.step(0, 0.0, [value, np.nan])
        buffer.step(0, 0.0, [9, np.nan])
        for mode in ("mean_std", "min_max"):
            normal = Normalize.fit(buffer, mode=mode)
            assert normal.apply("observation", [[1, 5], [3, 5]]).tolist() == [[-1, 5], [1, 5]]
