"""What is packed equals the lists of everything that happened: all of it, or the episodes chosen."""

import dataclasses
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay.maintenance import episodes as of_stores
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks, disk
from tests.support.oracle.model import Model
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import layouts

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
        environments = draw(st.sampled_from([None, 1, 3, 5]))
        layout = dataclasses.replace(
            first,
            frame=frame,
            environments=environments,
            lanes=draw(st.sampled_from([None, None, 1, 2])),
            capacity=first.capacity and max(first.capacity, environments or 1),
        )
        state = draw(st.sampled_from(["closed", "live", "crashed"]))
        out.append((layout, draw(st.sampled_from([0, 3, 40, 110])), state))
    return out


def _same_shapes(first, other):
    if isinstance(first, dict) or isinstance(other, dict):
        return False
    return (first.shape, first.dtype) == (other.shape, other.dtype)


def play(layout, path, n_steps, state, random):
    """Make a source; returns its model and the writers that are still open."""
    writers, model = layout.create_lanes(path), layout.model()
    Pair(writers, model, random).play(n_steps, 0.1, MODES[n_steps % 3])
    for writer in writers:
        if n_steps > 50:
            writer.flush()
        if state == "closed":
            writer.close()
        if state == "crashed":
            faults.kill(writer)
    if state == "closed":
        model.end_session()
    return model, writers if state == "live" else []


def packed(schema, episodes):
    """A lane of one environment in which these were played, one after the other."""
    model = Model(schema)
    (lane,) = model.lanes
    for one in episodes:
        frames = [frame if schema.is_dict else frame["frame"] for frame in one.frames]
        lane.reset({0: frames[0]})
        lane.running[0].fields |= one.fields
        for number, step in enumerate(one.steps):
            is_last, down = number + 1 == len(one.steps), not step.non_terminal
            flags = {"terminated": is_last and down, "truncated": is_last and not down}
            flags["life_lost"] = down and not is_last
            action, reward = step.action, float(step.reward)
            lane.step({0: (action, reward, frames[number + 1], flags, step.extras)})
    return model


@settings(max_examples=by_effort(2, 15, 600))
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
        episodes = []
        for path, (model, _) in zip(paths, made, strict=True):
            with mmreplay.open(path) as store:
                checks.forget(store, model)
            episodes += [one for _, one in model.episodes()]
        chosen = None
        if share is not None and episodes:
            n_chosen = max(round(share * len(episodes)), 1)
            chosen = np.sort(random.permutation(len(episodes))[:n_chosen])
        target = folder / "packed.zarr"
        options = {"chunk_frames": chunk, "shard_frames": shard, "episodes": chosen}
        block = data.draw(st.sampled_from([1, 5, 8192]))
        with mock.patch.object(of_stores, "block_steps", return_value=block):
            done = mmreplay.pack(
                paths, target, codec, workers=int(random.integers(1, 4)), **options
            )
        kept = episodes if chosen is None else [episodes[number] for number in chosen]
        assert (done.episodes, done.left_out) == (len(kept), len(episodes) - len(kept))
        expected = packed(made[0][0].schema, kept)
        disk.check_closed(target, expected)
        checks.check_verified(target)
        with mmreplay.open(target) as store:
            checks.check_store(store, expected, most=30)
            assert len(store) == done.transitions
        for path, (model, writers) in zip(paths, made, strict=True):
            for writer in writers:
                faults.kill(writer)
            checks.check_verified(path)
            with mmreplay.open(path) as store:
                checks.check_same(store.ids, model.ids(), "the source is as it was")
