"""The sampler by priority: what is drawn, how beta grows, and whose priority an error changes."""

import numpy as np
import pytest

from mmreplay import PrioritizedReplayBuffer
from mmreplay.errors import EmptyBufferError, InvalidIdError, SchemaError
from mmreplay.sampling.priority_draws import Prioritization, PrioritizedSampler
from tests.support.even_draws import even_draws
from tests.support.lane_history import History, follow, loaded
from tests.support.prioritized import FRAME, RAW, VARIANTS, column_of, give, play, release

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_a_stratified_batch_has_one_draw_in_each_share_of_the_mass(prioritized_of):
    buffer = prioritized_of(stratified=True, alpha=1.0)
    play(buffer, 64)
    give(buffer, np.ones(64))
    assert sorted(buffer.sample(64).id.tolist()) == buffer.ids.tolist()
    give(buffer, np.where(np.arange(64) < 32, 3.0, 1.0))
    assert np.count_nonzero(buffer.sample(64).id < 32) in {47, 48, 49}


def test_a_batch_may_be_larger_than_the_buffer_and_the_buffer_as_small_as_one(prioritized_of):
    buffer = prioritized_of(capacity=1)
    with pytest.raises(EmptyBufferError, match=r"store\.zarr: there is no transition"):
        buffer.sample(3)
    buffer.reset(FRAME)
    with pytest.raises(EmptyBufferError):
        buffer.sample(3)
    for step in range(100):
        buffer.step(0, 0.0, FRAME)
        batch = buffer.sample(3)
        assert batch.id.tolist() == [step] * 3
        assert batch.weight.tolist() == [1, 1, 1]
        buffer.update_priorities(batch.id, [1.0, 2.0, 3.0])
        assert buffer.priorities([step]).tolist() == [3.0 + 1e-6]
    buffer.update_priorities([98, 99, 4], [5.0, 6.0, 7.0])
    assert buffer.n_late_updates == 2


def test_beta_comes_to_one_after_betasteps_batches_and_goes_on_where_it_was(prioritized_of):
    buffer = prioritized_of(beta=0.4, betasteps=10)
    play(buffer, 5)
    for n in range(6):
        assert buffer.beta == pytest.approx(0.4 + 0.06 * n)
        buffer.sample(2)
    buffer.close()
    buffer = prioritized_of(beta=0.4, betasteps=10)
    assert buffer.beta == pytest.approx(0.76)
    for _ in range(6):
        buffer.sample(2)
    assert buffer.beta == 1


def test_a_priority_is_the_size_of_the_error_and_epsilon(prioritized_of):
    buffer = prioritized_of(epsilon=0.5, error_clip=(-1, 2))
    play(buffer, 5)
    buffer.update_priorities(buffer.ids, [-3, 3, 0, -0.25, 1.5])
    assert buffer.priorities(buffer.ids).tolist() == [1.5, 2.5, 0.5, 0.75, 2.0]


def test_new_rows_have_the_largest_priority_ever_given(prioritized_of):
    buffer = prioritized_of(epsilon=0.0)
    play(buffer, 2)
    assert buffer.priorities(buffer.ids).tolist() == [1, 1]
    buffer.update_priorities([0, 1], [5.0, 0.1])
    play(buffer, 1)
    buffer.update_priorities([0], [0.2])
    play(buffer, 1)
    assert buffer.priorities(buffer.ids).tolist() == [0.2, 0.1, 5, 5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", -0.1),
        ("alpha", np.nan),
        ("alpha", np.inf),
        ("beta", 1.1),
        ("beta", -0.1),
        ("beta", None),
        ("betasteps", 0),
        ("betasteps", True),
        ("epsilon", -1e-9),
        ("epsilon", np.inf),
        ("error_clip", (1, 0)),
        ("error_clip", (0, np.nan)),
        ("variant", "ranked"),
        ("normalize", "all"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_before_anything_is_made(tmp_path, name, value):
    with pytest.raises(SchemaError, match=f"^{name}: expected"):
        PrioritizedReplayBuffer(tmp_path / "new.zarr", **RAW, **{name: value})
    assert not (tmp_path / "new.zarr").exists()


# ---------------------------------------------------------------- many environments


@pytest.mark.parametrize("capacity", [None, 40])
def test_entries_that_are_transitions_have_a_priority_and_no_others(tmp_path, capacity):
    random = np.random.default_rng(0)
    history = History(3, 1, idle=0.3, capacity=capacity)
    index = loaded([history])
    column = column_of(tmp_path, (0, 0), 3)
    sampler = PrioritizedSampler(column, Prioritization(1.0), index, None)
    with pytest.raises(EmptyBufferError):
        sampler.draw(index, np.array([0.5]))
    known, largest = {}, 1.0
    for _ in range(30):
        history.play(int(random.integers(1, 12)))
        history.evict()
        follow(index, [history])
        ids = index.ids()
        known = {one: known.get(one, largest) for one in ids.tolist()}
        assert sampler.priorities(index, ids).tolist() == list(known.values())
        every = np.flatnonzero(column.values)
        assert column.ids(every).tolist() == ids.tolist()
        masses = np.array(list(known.values()))
        masses /= masses.sum()
        assert np.allclose(sampler.probabilities(index, ids), masses)
        drawn, probabilities = sampler.draw(index, even_draws(1000))
        assert np.isin(drawn, ids).all()
        assert np.allclose(probabilities, masses[ids.searchsorted(drawn)])
        some = np.unique(random.choice(ids, 7))
        values = random.random(some.size) * 3
        sampler.update(index, some, values)
        largest = max(largest, float(values.max()))
        known |= dict(zip(some.tolist(), values.tolist(), strict=True))
    if capacity:
        sampler.update(index, np.array([0, int(ids[-1])]), np.array([9.0, 1.0]))
        assert sampler.n_late == 1
    absent = np.setdiff1d(np.arange(*index.extent(0)), ids)
    with pytest.raises(InvalidIdError):
        sampler.update(index, absent[-1:], np.ones(1))
    release(column)
    again = PrioritizedSampler(
        column_of(tmp_path, index.window(0)[::2], 3), sampler.how, index, None
    )
    assert (again.priorities(index, ids) == sampler.priorities(index, ids)).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("call", ["sample", "update"])
def test_a_call_that_was_interrupted_leaves_no_transition_without_its_mass(
    prioritized_of, monkeypatch, variant, call
):
    buffer = prioritized_of(capacity=40, variant=variant)
    play(buffer, 60)
    buffer.sample(1)
    masses = type(buffer._sampler._masses)

    def interrupt(*_):
        raise KeyboardInterrupt

    for _ in range(3):
        play(buffer, 7)
        with monkeypatch.context() as patch:
            patch.setattr(masses, "set", interrupt)
            with pytest.raises(KeyboardInterrupt):
                if call == "sample":
                    buffer.sample(1)
                else:
                    buffer.update_priorities(buffer.ids[:5], np.full(5, 9.0))
        assert set(buffer.sample(4000).id.tolist()) == set(buffer.ids.tolist())
        assert (buffer.priorities(buffer.ids) > 0).all()
