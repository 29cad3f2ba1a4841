"""What is packed equals the lists of everything that happened: all of it, or the episodes chosen."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.oracle.vector_pair import VectorPair
from tests.support.oracle.vectors import VectorModel, assert_closed_lane_matches

import mmreplay
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks, stores
from tests.support.oracle.model import Model
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import layouts

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
CODECS = ["raw", "lz4", "lz4:1", "zstd", "zstd:3", "gzip:1", None]
LENGTHS = [(None, None), (4, None), (3, 12), (None, 360)]  # 360: of whole chunks of each source


@st.composite
def sources(draw):
    """Stores of the same rows: a layout for each, how many steps it gets, and how it is left."""
    first = draw(layouts())
    out = []
    for _ in range(draw(st.integers(1, 3))):
        other = draw(layouts())  # of which the codecs and lengths may be others, but not the rows
        frame = other.frame if _same_shapes(first.frame, other.frame) else first.frame
        width = draw(st.sampled_from([None, 1, 3, 5]))
        layout = dataclasses.replace(first, frame=frame, lanes=None, width=width)
        if width is None:
            layout = dataclasses.replace(layout, lanes=draw(st.sampled_from([None, 1, 2])))
        if layout.capacity is not None:
            least = max(layout.capacity, width or 1, layout.lanes or 1)
            layout = dataclasses.replace(layout, capacity=least)
        state = draw(st.sampled_from(["closed", "live", "crashed"]))
        out.append((layout, draw(st.sampled_from([0, 3, 40, 110])), state))
    return out


def _same_shapes(first, other):
    if isinstance(first, dict) or isinstance(other, dict):
        return False
    return (first.shape, first.dtype) == (other.shape, other.dtype)


def play(layout, path, n_steps, state, random):
    """Make a source; returns its model and what is still open."""
    writer, model = layout.create(path), stores.model_of(layout)
    if isinstance(model, VectorModel):
        VectorPair([writer], model, random).play(n_steps)
    else:
        Pair(writer, model, random).together(n_steps)
    if n_steps > 50:
        writer.flush()
    if state == "closed":
        writer.close()
    if state == "crashed":
        faults.kill(writer)
    stores.end_session(model)
    return model, writer if state == "live" else None


def lane_models(model):
    """A model for each lane, to be compared with that lane as a store of its own."""
    if isinstance(model, VectorModel):
        return [model]
    out = []
    for lane in model.lanes:
        out.append(Model(model.schema, [lane.capacity]))
        out[-1].lanes = [lane]
    return out


def whole_episodes(model, base):
    """The rows of each whole episode of a lane, in the order of `Store.episodes`."""
    model.forget(base) if isinstance(model, VectorModel) else model.lanes[0].forget(base)
    if isinstance(model, VectorModel):
        model.ids()
        return [
            model.lanes.lanes[one.env].rows[one.row : one.row + one.length + 1]
            for one, cells in model.kept()
            if len(cells) == one.length
        ]
    (lane,) = model.lanes
    return [lane.rows[start:stop] for start, stop in lane.whole_episodes()]


def packed_lanes(path, n):
    return [path] if n is None else [path / f"lane-{number:05d}" for number in range(n)]


def check_lane(path, model, *, is_closed):
    with mmreplay.open(path) as store:
        if isinstance(model, VectorModel):
            base = store.lanes[0].base
            model.forget(base)
            model.check(store, most=30)
            columns = model.columns("ticks")
            # What a close leaves running is not marked before the next opening.
            columns["ends"][-1:] &= np.asarray(store.lanes[0].ends[-1:]) | (not is_closed)
            episodes = columns["episode"][base:]
            first = int(episodes[episodes >= 0].min(initial=len(model.episodes)))
            assert_closed_lane_matches(model, path, base, first)
        else:
            model.lanes[0].forget(store.lanes[0].base)
            checks.check_store(store, model, live=False, most=30)


@settings(max_examples=by_effort(6, 50, 600))
@given(st.data())
def test_what_is_packed_equals_the_oracle(data):
    given_sources = data.draw(sources())
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    codec, (chunk, shard) = data.draw(st.sampled_from(CODECS)), data.draw(st.sampled_from(LENGTHS))
    share = data.draw(st.sampled_from([None, None, 0.5, 1.0]))
    with scratch_directory() as folder:
        paths = [folder / f"{number}.zarr" for number in range(len(given_sources))]
        made = [
            play(layout, path, n_steps, state, random)
            for path, (layout, n_steps, state) in zip(paths, given_sources, strict=True)
        ]
        models = [lane for model, _ in made for lane in lane_models(model)]
        bases = [view.base for path in paths for view in mmreplay.open(path).lanes]
        episodes = [whole_episodes(model, base) for model, base in zip(models, bases, strict=True)]
        n_episodes = sum(map(len, episodes))
        chosen = None
        if share is not None and n_episodes:
            chosen = np.sort(random.permutation(n_episodes)[: max(round(share * n_episodes), 1)])
        target = folder / "packed.zarr"
        options = {"chunk_frames": chunk, "shard_frames": shard, "episodes": chosen}
        done = mmreplay.pack(paths, target, codec, **options)
        checks.check_plain_zarr(target)
        checks.check_verified(target)
        is_lane = len(paths) == 1 and given_sources[0][0].lanes is None
        lanes = packed_lanes(target, None if is_lane else len(models))
        if chosen is not None:
            models = chosen_models(models, episodes, chosen)
            assert (done.episodes, done.left_out) == (len(chosen), n_episodes - len(chosen))
        closed = [
            state == "closed"
            for (model, _), (*_, state) in zip(made, given_sources, strict=True)
            for _ in lane_models(model)
        ]
        for path, model, is_closed in zip(lanes, models, closed, strict=True):
            check_lane(path, model, is_closed=is_closed)
        with mmreplay.open(target) as store:  # also together
            assert len(store) == done.transitions == sum(len(lane.ids()) for lane in models)
        for path, (model, writer) in zip(paths, made, strict=True):
            if writer is not None:
                faults.kill(writer)
            checks.check_verified(path)
            with mmreplay.open(path) as store:
                checks.check_same(store.ids, model.ids(), "the source is as it was")


def chosen_models(models, episodes, chosen):
    """Of each lane one of one environment, with the rows of its episodes that are wanted."""
    wanted, out, number = set(chosen.tolist()), [], 0
    for model, lane in zip(models, episodes, strict=True):
        capacity = model.capacity if isinstance(model, VectorModel) else model.lanes[0].capacity
        out.append(Model(model.schema, [capacity]))
        for rows in lane:
            if number in wanted:
                out[-1].lanes[0].rows += rows
            number += 1
    return out
