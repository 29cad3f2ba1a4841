"""Mixtures: whose rows a batch holds, how many of each, and what must be alike."""

import dataclasses

import numpy as np
import pytest

import mmreplay
from mmreplay import Decorated, Field, Hindsight, Mixture, SchemaError, transforms
from tests.support.oracle.checks import check_same


@pytest.fixture
def new(make, story):
    """A closed store of some transitions, loaded."""

    def create(name, n_steps, seed=0, settings=(), **changes):
        writer = make(name, **changes)
        if n_steps:
            story.play(writer, n_steps, "truncated")
        writer.close()
        return mmreplay.load(writer.path, **{"stack": 2, "seed": seed} | dict(settings))

    return create


@pytest.fixture
def offline(new):
    return new("offline.zarr", 40)


@pytest.fixture
def buffer(tmp_path, quick_disk):
    with mmreplay.ReplayBuffer(
        tmp_path / "live.zarr",
        stack=2,
        seed=9,
        flush_s=0,
        frame=Field((3,), "uint8", "raw", chunk=8),
        action=Field((), "int64"),
    ) as out:
        yield out


def play(buffer, n_steps):
    buffer.reset(np.zeros(3, "uint8"))
    for step in range(n_steps):
        buffer.step(step, 1.0, np.full(3, step, "uint8"), truncated=step == n_steps - 1)


def test_rows_come_from_each_source_side_by_side_and_say_so(offline, buffer):
    play(buffer, 10)
    data = (offline, buffer)
    batch = Mixture(data).sample(16)
    source = batch.extras["source"]
    assert source.dtype == np.int64
    assert source.tolist() == [0] * 8 + [1] * 8
    for number, one in enumerate(data):
        expected = one.transitions(batch.id[source == number])
        for field in dataclasses.fields(batch):
            if field.name != "extras":
                rows = getattr(batch, field.name)[source == number]
                check_same(rows, getattr(expected, field.name), field.name)


def test_an_exact_split_is_exact(new):
    data = [new(f"{n}.zarr", 5) for n in range(3)]
    for weights, size, expected in (
        ([1, 1, 2], 256, [64, 64, 128]),
        ([0.1, 0.2, 0.7], 10, [1, 2, 7]),
        ([0.1, 0.2, 0.7], 100, [10, 20, 70]),
        ([1, 0, 1], 2, [1, 0, 1]),
        ([0, 0, 5], 7, [0, 0, 7]),
    ):
        mixture = Mixture(data, weights)
        for _ in range(10):
            source = mixture.sample(size).extras["source"]
            assert np.bincount(source, minlength=3).tolist() == expected


@pytest.mark.parametrize(("exact", "group"), [(True, None), (True, 4), (False, None)])
def test_batches_are_split_by_the_weights_on_average(new, exact, group):
    packed = {"frame": Field((3,), "uint8", "lz4", chunk=4, shard=8)}
    data, weights = [new(f"{n}.zarr", 12, **packed) for n in range(3)], np.array([0.5, 0.3, 0.2])
    mixture = Mixture(data, weights, exact=exact)
    counts = []
    for _ in range(40):
        batch = mixture.sample(7 * (group or 1), group=group)
        source, chunks = batch.extras["source"].reshape(7, -1), batch.id.reshape(7, -1) // 4
        assert (source == source[:, :1]).all()
        assert (chunks == chunks[:, :1]).all()
        counts.append(np.bincount(source[:, 0], minlength=3))
    assert np.abs(np.mean(counts, 0) - 7 * weights).max() < 5 * (7 * 0.25 / 40) ** 0.5
    assert (np.abs(counts - 7 * weights) < 1).all() == exact


def test_groups_and_arguments_out_of_their_range_are_refused(offline, new):
    mixture = Mixture([offline, new("other.zarr", 12)])
    state = offline.generator.bit_generator.state
    for given, message in (
        ({"group": 3}, "group: expected a divisor of 8 transitions"),
        ({"group": 4, "replace": False}, "group: expected a divisor"),
        ({"group": 0}, "group: expected a whole number, 1 or more, or None"),
        ({"replace": "no"}, "replace: expected True or False; found 'no'"),
    ):
        with pytest.raises(SchemaError, match=message):
            mixture.sample(8, **given)
    assert offline.generator.bit_generator.state == state  # nothing was drawn


def test_the_share_of_an_empty_source_goes_to_the_others(offline, buffer, new):
    other = new("other.zarr", 5)
    mixture = Mixture([offline, buffer, other], [1, 2, 3])
    assert np.bincount(mixture.sample(8).extras["source"]).tolist() == [2, 0, 6]
    assert len(mixture) == 45
    play(buffer, 4)
    assert np.bincount(mixture.sample(12).extras["source"]).tolist() == [2, 4, 6]
    assert len(mixture) == 49


def test_out_is_filled_again(offline, buffer):
    play(buffer, 10)
    mixture = Mixture([offline, buffer])
    batch = mixture.sample(10)
    arrays = batch.observation, batch.extras["source"]
    assert mixture.sample(10, out=batch) is batch
    assert arrays[0] is batch.observation
    assert arrays[1] is batch.extras["source"]
    expected = offline.transitions(batch.id[:5]).observation
    assert np.array_equal(batch.observation[:5], expected)
    with pytest.raises(SchemaError, match="out: expected a batch of 4"):
        mixture.sample(4, out=batch)


@pytest.mark.parametrize(
    "weights", [[1], [1, 2, 3], [0, 0], [1, -1], [1, float("inf")], [float("nan"), 1], "ab", 1]
)
def test_values_that_are_no_weights_are_refused(offline, buffer, weights):
    with pytest.raises(SchemaError, match="weights: expected"):
        Mixture([offline, buffer], weights)


def test_sources_with_other_rows_or_settings_are_named(offline, new):
    wide = new("wide.zarr", 3, frame=Field((4,), "uint8"))
    with pytest.raises(SchemaError, match=r"same columns.*wide\.zarr.*offline\.zarr"):
        Mixture([offline, wide])
    slow = new("slow.zarr", 3, settings={"gamma": 0.5})
    with pytest.raises(SchemaError, match=r"same settings.*0\.99.*offline\.zarr.*0\.5.*slow\.zarr"):
        Mixture([offline, offline, slow])
    with pytest.raises(SchemaError, match="found none"):
        Mixture([])
    with pytest.raises(SchemaError, match=r"expected what mmreplay\.load returns"):
        Mixture((offline, 3))


def test_sources_decorated_in_different_ways_are_named(offline, buffer):
    play(buffer, 5)
    to_float = transforms.PixelsToFloat()
    alike = Mixture([Decorated(offline, to_float), Decorated(buffer, to_float)])
    assert alike.sample(4).observation.dtype == np.float32
    with pytest.raises(SchemaError, match=r"observation: float32.*and uint8.*offline.*live"):
        Mixture([Decorated(offline, to_float), buffer]).sample(4)


def test_hindsight_of_some_sources_must_be_hindsight_of_all(new):
    goal = Field((2,), "float32")
    frame = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), goal)
    data = [new(f"{n}.zarr", 9, frame=frame) for n in range(2)]
    both = [Hindsight(one, lambda a, d, i: np.zeros(len(a))) for one in data]
    batch = Mixture(both).sample(8)
    assert batch.extras.keys() == {"hindsight", "source"}
    with pytest.raises(SchemaError, match=r"same columns.*hindsight"):
        Mixture([both[0], data[1]])


def test_errors_go_to_the_source_that_keeps_priorities(offline, buffer):
    play(buffer, 10)
    calls = []
    buffer.update_priorities = lambda ids, errors: calls.append((ids.tolist(), errors.tolist()))
    mixture = Mixture([offline, Decorated(buffer)])
    batch = mixture.sample(6)
    errors = np.arange(6.0)
    mixture.update_priorities(batch.id, errors, batch.extras["source"])
    assert calls == [(batch.id[3:].tolist(), [3, 4, 5])]
    mixture.update_priorities(batch.id[:3], errors[:3], [0, 0, 0])
    assert len(calls) == 1
    with pytest.raises(SchemaError, match=r"\(6,\), \(5,\), \(6,\)"):
        mixture.update_priorities(batch.id, errors[:5], batch.extras["source"])
    with pytest.raises(SchemaError, match="source: expected numbers from 0 to 1, found 2"):
        mixture.update_priorities([1], [1.0], [2])


def test_a_split_takes_no_number_from_the_sources_and_differs_from_batch_to_batch(offline, buffer):
    mixture = Mixture([buffer, offline, offline], exact=False)
    for n_steps in (0, 9):  # also while the first source is empty
        if n_steps:
            play(buffer, n_steps)
        splits = {tuple(mixture.sample(40).extras["source"].tolist()) for _ in range(9)}
        assert len(splits) > 5
    states = [one.generator.bit_generator.state for one in (buffer, offline)]
    batch = Mixture([buffer, offline], exact=False).sample(40)
    for number, one in enumerate((buffer, offline)):
        one.generator.bit_generator.state = states[number]
        ids = batch.id[batch.extras["source"] == number]
        assert one.sample(len(ids)).id.tolist() == ids.tolist()
