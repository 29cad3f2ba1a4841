"""What docs/train/jax.md says of batches in JAX: which of them are safe, and what becomes of ids."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmreplay
from mmreplay.batches.batch import arrays_of


@pytest.fixture(scope="module", autouse=True)
def _trees():
    for kind in (mmreplay.Batch, mmreplay.SequenceBatch, mmreplay.WindowBatch):
        with contextlib.suppress(ValueError):  # docs/train/jax.md did it in the same process
            jax.tree_util.register_dataclass(kind)


def assert_same(found, batch):
    """All but the 64-bit numbers, which lose half of their bits, have the same dtype and values."""
    expected = arrays_of(batch)
    for name, array in arrays_of(found).items():
        narrow = {"int64": "int32", "float64": "float32"}.get(expected[name].dtype.name)
        assert array.dtype == (narrow or expected[name].dtype), name
        assert np.array_equal(np.asarray(array), expected[name].astype(array.dtype)), name


@pytest.mark.parametrize("kind", ["one lane", "dict", "vectors"])
def test_a_batch_is_put_and_compiled_with_as_it_is(stores, kind):
    with mmreplay.load(stores(kind), stack=2, n_step=3) as data, warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = data.sample(32)
        put = jax.device_put(batch)
        assert isinstance(put, mmreplay.Batch)
        assert_same(put, batch)
        target = jax.jit(lambda one: one.reward + one.discount)(batch)
        assert np.array_equal(target, batch.reward + batch.discount)
        windows = data.sample_sequences(4, 8)
        assert np.array_equal(jax.jit(lambda one: one.mask.sum())(windows), 32)
        columns = data.sample_windows(4, {"action": range(3), "observation": 0})
        assert_same(jax.device_put(columns), columns)
        assert np.array_equal(jax.jit(lambda one: one["action"])(columns), columns["action"])


def test_ids_lose_their_lane_in_jax(stores):
    with mmreplay.load(stores("two lanes")) as data:
        ids = data.ids[-3:]
        assert (ids >> mmreplay.LANE_SHIFT).tolist() == [1, 1, 1]
        put = jax.device_put(ids)
        assert put.dtype == jnp.int32
        assert np.asarray(put).tolist() == (ids & 0xFFFFFFFF).tolist()


def test_a_batch_that_is_filled_again_after_the_update_is_ready_gives_the_same_updates(stores):
    @jax.jit
    def update(weight, batch):
        seen = batch.observation.astype(jnp.float32).mean(axis=(1, 2, 3))
        return weight + (seen * batch.reward + batch.discount).mean()

    def trained(*, again):
        weight, batch = jnp.float32(0), None
        with mmreplay.load(stores("one lane"), seed=0) as data:
            for _ in range(50):
                batch = data.sample(64, out=batch if again else None)
                weight = jax.block_until_ready(update(weight, batch))
        return float(weight)

    assert trained(again=True) == trained(again=False) != 0
