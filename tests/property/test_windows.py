"""Data that people work on: derived columns, fields of episodes and windows equal a plain list.

Invariants:
- Whatever is stored with a step, updated by id or said of an episode is read as it was last given,
  value by value: live, after evictions, after kills and once closed.
- A step is drawn with ``drop`` if and only if its windows are all inside, and each as often as
  another; test_selections.py has the same of selections.
"""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import EmptyBufferError, SchemaError
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.even_draws import EvenGenerator
from tests.support.oracle import checks
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import gather_settings, layouts
from tests.support.oracle.windows import check_windows, whole_windows
from tests.support.quiet import settle

OFFSETS = st.one_of(
    st.integers(-4, 6),
    st.lists(st.integers(-64, 70), min_size=1, max_size=5).map(tuple),
    st.sampled_from([range(7), (-1, 0), (0, 0, 3), [[-2, -1], [0, 1]], np.array([5, -5], "int8")]),
)
PLAY = st.tuples(st.integers(1, 90), st.sampled_from([0.02, 0.1, 0.5]), st.sampled_from(MODES))
ACTS = st.lists(st.one_of(PLAY, st.sampled_from(["update", "flush", "kill", "close"])), max_size=6)


@st.composite
def windows(draw, schema):
    """Some columns of a store, each with offsets of its own."""
    names = ["observation", "action", "reward", "non_terminal", *schema.extra_fields]
    names += [f"observation.{key}" for key in schema.frames] if schema.is_dict else []
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return {name: draw(OFFSETS) for name in chosen}


def check_dataset(data, model, given, how):
    """Episodes, transitions, and windows around some steps, drawn ones, and all that have them."""
    checks.forget(data.refresh().store, model)
    checks.check_episodes(data.store, model)
    ids = data.ids
    assert ids.tolist() == model.ids().tolist()
    if not ids.size:
        return
    some = np.concatenate((ids[:20], ids[-20:]))
    batch = data.transitions(some)
    checks.check_fields(batch.extras, model, some)
    own = {name: one for name, one in batch.extras.items() if not name.startswith("episode.")}
    checks.check_batch(dataclasses.replace(batch, extras=own), model.batch(some, **how))
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


@settings(max_examples=by_effort(3, 30, 500))
@given(
    st.data(),
    layouts(worked_on=True),
    gather_settings(longest=9),
    PLAY,
    ACTS,
    st.integers(0, 99),
)
def test_any_history_of_what_people_work_on_is_as_the_oracle_has_it(
    data, layout, how, first, acts, seed
):
    model, random = layout.model(), np.random.default_rng(seed)
    kinds = st.lists(windows(model.schema), min_size=1, max_size=2)
    settings = {**how, "episode": [*layout.episode]}
    with scratch_directory() as folder:
        path = folder / "store.zarr"
        pair = Pair(layout.create_lanes(path), model, random)
        names = [f"actor-{n}" for n in range(layout.lanes or 0)] or [None]
        given = {"prefetch": seed % 3, "update": [*layout.derived], **settings}
        with mmreplay.load(path, **given) as live:
            for act in [first, *acts]:
                if act == "update":
                    pair.update(live)
                elif isinstance(act, tuple):
                    pair.play(*act)
                else:
                    for number in np.flatnonzero(random.random(len(names)) < 0.7).tolist():
                        end(pair, number, act)
                for writer in filter(None, pair.writers):
                    settle(writer)  # what it evicts meanwhile takes fields of episodes with it
                for kind in data.draw(kinds):
                    check_dataset(live, model, kind, how)
                begin_again(layout, path, names, pair)
                pair.update(live)
        for writer in pair.writers:
            writer.close()
        model.end_session()
        pair.tag(path)
        checks.check_verified(path)
        with mmreplay.load(path, **settings) as closed:
            for kind in data.draw(kinds):
                check_dataset(closed, model, kind, how)
            if layout.capacity is not None:
                with pytest.raises(SchemaError, match=r"offsets of -64 or more .*found -65"):
                    closed.sample_windows(1, {"action": (0, -65)})


def end(pair, number, how):
    """Flush a lane, close it, or let its writer die."""
    writer = pair.writers[number]
    if how == "flush":
        writer.flush()
        return
    pair.writers[number] = None
    if how == "kill":
        faults.kill(writer)
    else:
        writer.close()
        pair.model.lanes[number].end_session()


def begin_again(layout, path, names, pair):
    """Open the lanes that nobody writes; what a death left there has then ended."""
    for number, name in enumerate(names):
        if pair.writers[number] is None:
            lane = {} if name is None else {"lane": name}
            pair.writers[number] = layout.create(path, append=True, **lane)
            pair.model.lanes[number].end_session()
