"""Functions of batches: called in order, once, on memory that is nobody else's."""

import dataclasses

import numpy as np
import pytest

import mmreplay
from mmreplay import Decorated, Field, SchemaError, transforms
from tests.support.oracle.checks import check_batch


@pytest.fixture
def path(make, story):
    writer = make(frame=Field((8, 8), "uint8"))
    story.play(writer, 30, "terminated")
    return writer.path


@pytest.fixture
def data(path):
    with mmreplay.load(path, stack=2, seed=1) as out:
        yield out


def plus_one(batch, generator):
    return dataclasses.replace(batch, reward=batch.reward + 1)


def in_place(batch, generator):
    """Writes wherever it can."""
    batch.observation[:] = 255 - batch.observation
    batch.next_observation[:] = 255 - batch.next_observation
    batch.reward[:] *= -1
    return batch


def noise(batch, generator):
    return dataclasses.replace(batch, reward=generator.random(len(batch), "float32"))


def test_functions_are_called_in_order_and_what_they_write_stays_in_the_batch(data):
    plain = data.transitions(data.ids)
    found = Decorated(data, plus_one, in_place).transitions(data.ids)
    assert np.array_equal(found.reward, -(plain.reward + 1))
    check_batch(Decorated(data).transitions(data.ids), plain)
    for _ in range(2):
        batch = Decorated(data, in_place).transitions(data.ids)
        assert np.array_equal(batch.observation, 255 - plain.observation)
        assert np.array_equal(batch.next_observation, 255 - plain.next_observation)
    check_batch(data.transitions(data.ids), plain)


def test_out_is_filled_with_a_batch_that_was_decorated_once(data):
    decorated = Decorated(data, in_place, transforms.PixelsToFloat())
    batch = decorated.sample(16)
    arrays = batch.observation, batch.reward
    for _ in range(3):
        assert decorated.sample(16, out=batch) is batch
        plain = data.transitions(batch.id)
        assert np.array_equal(batch.observation * 255, 255 - plain.observation)
        assert np.array_equal(batch.reward, -plain.reward)
    assert arrays[0] is batch.observation
    assert arrays[1] is batch.reward
    decorated.transitions(data.ids[:16], out=batch)
    assert batch.id.tolist() == data.ids[:16].tolist()
    with pytest.raises(SchemaError, match=r"out: .* observation: float32 .* and uint8"):
        decorated.sample(16, out=data.sample(16))


def test_the_same_seed_draws_the_same_also_after_resuming(tmp_path, quick_disk):
    def run(name, *, interrupted):
        given = {"frame": Field((2,)), "action": Field(()), "seed": 3, "flush_s": 0}
        buffer = mmreplay.ReplayBuffer(tmp_path / name, **given)
        buffer.reset([0, 0])
        for step in range(10):
            buffer.step(1, 0.0, [step, 1])
        out = []
        for _ in range(3):
            out.append(Decorated(buffer, noise).sample(4).reward.tolist())
            if interrupted:
                buffer.close()
                buffer = mmreplay.ReplayBuffer(tmp_path / name, flush_s=0)
        buffer.close()
        return out

    whole = run("a.zarr", interrupted=False)
    assert run("b.zarr", interrupted=True) == whole
    assert whole[0] != whole[1]


def test_what_functions_draw_differs_by_batch_and_by_function(data):
    batches = [
        *(Decorated(data, noise).sample(4) for _ in range(2)),
        *(Decorated(data, noise).sample_sequences(4, 1) for _ in range(2)),
        *(Decorated(data, noise).transitions([0, 1, 2, 3]) for _ in range(2)),
        *Decorated(data, noise).batches(4, epochs=2, shuffle=False),
    ]
    assert len({batch.reward.tobytes() for batch in batches}) == len(batches)
    drawn = []

    def noted(batch, generator):
        drawn.append(generator.random())
        return batch

    inner = Decorated(data, noted)
    Decorated(Decorated(mmreplay.Mixture([inner, inner]), noted), noted).sample(4)
    Decorated(inner, noted).transitions([0])
    assert len(set(drawn)) == len(drawn) == 6


def test_a_decorated_dataset_shares_ids_generator_and_settings_with_its_data(data):
    decorated = Decorated(data, plus_one)
    assert len(decorated) == len(data)
    assert decorated.ids.tolist() == data.ids.tolist()
    assert decorated.generator is data.generator
    assert decorated.settings is data.settings
    assert not hasattr(decorated, "update_priorities")
    assert "plus_one" in repr(decorated)
    assert "Dataset" in repr(decorated)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda batch, generator: None, "NoneType"),
        (lambda batch, generator: batch.reward, "ndarray"),
        (lambda batch, generator: mmreplay.load, "function"),
    ],
)
def test_a_function_that_returns_no_batch_is_named(data, wrong, found):
    with pytest.raises(
        SchemaError, match=f"lambda.*return a batch of 3, found {found}; return the"
    ):
        Decorated(data, wrong).sample(3)


def test_what_is_no_function_is_refused(data):
    for wrong in ([plus_one], lambda batch: batch, lambda batch, generator, more: batch):
        with pytest.raises(SchemaError, match=r"functions: .* of \(batch, generator\), found .*: "):
            Decorated(data, wrong)
    with pytest.raises(SchemaError, match="create an instance of it"):
        Decorated(data, transforms.RandomShift)
    Decorated(data, np.add)  # takes two of anything: what it returns is checked
    with pytest.raises(SchemaError, match=r"expected what mmreplay\.load returns"):
        Decorated([1, 2], plus_one)


def test_a_function_may_refuse_the_settings(path):
    with mmreplay.load(path, n_step=3) as data:
        with pytest.raises(SchemaError, match="expected n_step=1, found 3"):
            Decorated(data, transforms.ClipReward())
    with mmreplay.load(path) as data:
        decorated = Decorated(data, transforms.ClipReward())
        with pytest.raises(SchemaError, match="expected n_step=1, found 2"):
            decorated.transitions([0], n_step=2)


@pytest.mark.parametrize("stack", [None, 2])
def test_windows_are_decorated_in_memory_of_their_own(path, stack):
    with mmreplay.load(path, stack=stack, seed=1) as data:
        decorated = Decorated(data, in_place)
        with mmreplay.load(path, stack=stack, seed=1) as twin:
            plain = twin.sample_sequences(4, 3, burn_in=1)
        found = decorated.sample_sequences(4, 3, burn_in=1)
        assert np.array_equal(found.observation, 255 - plain.observation)
        assert np.array_equal(found.next_observation, 255 - plain.next_observation)
        assert np.array_equal(found.reward, -plain.reward)
        assert found.id.tolist() == plain.id.tolist()
        again = decorated.sample_sequences(4, 3, burn_in=1, out=found)
        assert again is found
        assert found.id.tolist() != plain.id.tolist()
        with pytest.raises(SchemaError, match="expected a SequenceBatch"):
            decorated.sample_sequences(4, 3, out=decorated.sample(4))
