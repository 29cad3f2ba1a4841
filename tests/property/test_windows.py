"""Windows of columns equal what a list of everything says, value by value.

Invariant: a step is drawn with ``drop`` if and only if its windows are all inside, and each as
often as another; test_selections.py has the same of selections.
"""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import EmptyBufferError, SchemaError
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.even_draws import EvenGenerator
from tests.support.oracle import checks
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import gather_settings, layouts
from tests.support.oracle.windows import check_windows, whole_windows

OFFSETS = st.one_of(
    st.integers(-4, 6),
    st.lists(st.integers(-64, 70), min_size=1, max_size=5).map(tuple),
    st.sampled_from([range(7), (-1, 0), (0, 0, 3), [[-2, -1], [0, 1]], np.array([5, -5], "int8")]),
)


@st.composite
def windows(draw, schema):
    """Some columns of a store, each with offsets of its own."""
    names = ["observation", "action", "reward", "non_terminal", *schema.extras]
    names += [f"observation.{key}" for key in schema.frames] if schema.is_dict else []
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return {name: draw(OFFSETS) for name in chosen}


def check_dataset(data, model, given):
    """Windows around all steps, around drawn ones, and around those that have all of it."""
    ids = data.ids
    assert ids.tolist() == model.ids().tolist()
    if not ids.size:
        return
    some = np.concatenate((ids[:20], ids[-20:]))
    check_windows(data.windows(some, given), model, some.tolist(), given)
    batch = data.sample_windows(5, given)
    for _ in range(2):
        check_windows(batch, model, batch.id.tolist(), given)
        assert data.sample_windows(5, given, out=batch) is batch
    found = [one.id for one in data.window_batches(40, given, shuffle="full")]
    assert np.sort(np.concatenate(found)).tolist() == ids.tolist()
    expected = whole_windows(model, given)
    generator, data.generator = data.generator, EvenGenerator()
    with contextlib.nullcontext() if expected else pytest.raises(EmptyBufferError):
        drawn = data.sample_windows(2 * len(expected) or 1, given, "drop")
        assert np.sort(drawn.id).tolist() == np.repeat(expected, 2).tolist()
        assert all(mask.all() for mask in drawn.mask.values())
        check_windows(drawn, model, drawn.id.tolist(), given)
        found = [one.id for one in data.window_batches(40, given, "drop")]
        assert np.sort(np.concatenate(found)).tolist() == expected
    data.generator = generator


@settings(max_examples=by_effort(6, 40, 800))
@given(st.data(), layouts(), gather_settings(longest=9), st.integers(0, 99))
def test_windows_of_any_store_are_as_the_oracle_has_them(data, layout, how, seed):
    model, random = layout.model(), np.random.default_rng(seed)
    turns = st.tuples(st.integers(1, 90), st.sampled_from([0.02, 0.1, 0.5]), st.sampled_from(MODES))
    kinds = st.lists(windows(model.schema), min_size=1, max_size=3)
    with scratch_directory() as folder:
        path = folder / "store.zarr"
        writers = layout.create_lanes(path)
        pair = Pair(writers, model, random)
        pair.play(*data.draw(turns))
        with mmreplay.load(path, prefetch=seed % 3, **how) as live:
            for n_more, end, mode in data.draw(st.lists(turns, max_size=2)):
                for given in data.draw(kinds):
                    checks.forget(live.refresh().store, model)
                    check_dataset(live, model, given)
                pair.play(n_more, end, mode)
                for writer in writers:
                    writer.flush()
        for writer in writers:
            writer.close()
        model.end_session()
        with mmreplay.load(path, **how) as closed:
            checks.forget(closed.store, model)
            for given in data.draw(kinds):
                check_dataset(closed, model, given)
            if layout.capacity is not None:
                with pytest.raises(SchemaError, match=r"offsets of -64 or more .*found -65"):
                    closed.sample_windows(1, {"action": (0, -65)})
