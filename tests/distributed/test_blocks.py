"""A block on the wire: nothing is decoded that does not fit the lane."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmreplay import CorruptStoreError, Field, SchemaError
from mmreplay.distributed import blocks
from mmreplay.distributed.blocks import Block, Event, State
from mmreplay.schema import Schema
from mmreplay.texts import Text

SCHEMA = Schema.make(
    {"image": Field((4, 4)), "x": Field((2,), "float32")},
    Field((), "int64"),
    {"q": Field((), "float64")},
    episode={"task": Text(4)},
)


def block(steps=3, n=2, seed=0):
    rng = np.random.default_rng(seed)
    columns = {
        path: rng.integers(0, 2, (steps, n, *field.shape)).astype(field.dtype)
        for path, field in SCHEMA.columns().items()
    }
    for name in (blocks.TERMINATED, blocks.TRUNCATED, blocks.MASK):
        columns[name] = rng.random((steps, n)) < 0.5
    mask = np.array([True, *[False] * (n - 1)])
    begin = {
        "frames/image": columns["frames/image"][0, mask],
        "episodes/task": np.ones((1, 4), "u1"),
    }
    begin["frames/x"] = columns["frames/x"][0, mask]
    events = [Event(0, "reset", mask, begin), Event(steps, "end_episodes", mask, {})]
    return Block(State(np.zeros(n, bool), {}), columns, events, steps)


@pytest.mark.parametrize(("steps", "n"), [(3, 2), (1, 1), (16, 5), (0, 2)])
def test_what_is_unpacked_is_what_was_packed(steps, n):
    given = block(max(steps, 1), n)
    if not steps:  # calls alone
        given = Block(given.start, {}, [one._replace(at=0) for one in given.events], 0)
    found = blocks.unpack(blocks.pack(given, SCHEMA), SCHEMA, n)
    assert found.steps == steps
    assert found.columns.keys() == given.columns.keys()
    for path, rows in given.columns.items():
        np.testing.assert_array_equal(found.columns[path], rows)
        assert found.columns[path].dtype == rows.dtype
    for mine, other in zip(found.events, given.events, strict=True):
        assert mine[:2] == other[:2]
        assert (mine.mask == other.mask).all()
        assert mine.values.keys() == other.values.keys()
        for path in other.values:
            np.testing.assert_array_equal(mine.values[path], other.values[path])


@given(st.data())
def test_a_damaged_column_is_refused_before_it_is_decoded(data):
    steps, columns, events = blocks.pack(block(), SCHEMA)
    path = data.draw(st.sampled_from(sorted(columns)))
    whole = columns[path]
    at = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "other"]))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    other = {"flip": bytes(changed), "cut": whole[:at], "other": columns["frames/x"] + b"\0"}[how]
    with pytest.raises(CorruptStoreError, match=path):
        blocks.unpack((steps, {**columns, path: other}, events), SCHEMA, 2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s, c, e: (s + 1, c, e), CorruptStoreError),
        (lambda s, c, e: (1 << 40, c, e), SchemaError),
        (lambda s, c, e: (-1, c, e), SchemaError),
        (lambda s, c, e: (s, c | {"frames/y": b""}, e), SchemaError),
        (lambda s, c, e: (s, {k: v for k, v in c.items() if k != "rewards"}, e), SchemaError),
        (lambda s, c, e: (s, c, e[::-1]), SchemaError),
        (lambda s, c, e: (s, c, [e[0]._replace(call="close")]), SchemaError),
        (lambda s, c, e: (s, c, [e[0]._replace(at=s + 1)]), SchemaError),
        (lambda s, c, e: (s, c, [e[0]._replace(mask=np.ones(3, bool))]), SchemaError),
        (lambda s, c, e: (s, c, [e[0]._replace(mask=np.ones(2, bool))]), CorruptStoreError),
    ],
)
def test_numbers_that_do_not_fit_are_refused(change, error):
    packed = blocks.pack(block(), SCHEMA)
    blocks.unpack(packed, SCHEMA, 2)
    with pytest.raises(error):
        blocks.unpack(change(*packed), SCHEMA, 2)


def test_a_block_of_other_environments_is_refused():
    with pytest.raises((SchemaError, CorruptStoreError)):
        blocks.unpack(blocks.pack(block(n=2), SCHEMA), SCHEMA, 3)


def test_frames_that_are_too_large_to_be_sent_are_refused():
    schema = Schema.make(Field((1 << 20,)), Field((), "int64"))
    blocks.check_size(schema, 2000)
    with pytest.raises(SchemaError, match="fewer environments"):
        blocks.check_size(schema, 2048)


def test_similar_frames_become_small():
    """Frames of one environment lie together, so the compressor sees that they resemble."""
    frames = np.random.default_rng(0).integers(0, 255, (1, 4, 84, 84), "uint8")
    still = np.repeat(frames, 16, axis=0)
    schema = Schema.make(Field((84, 84)), Field((), "int64"))
    flags = np.zeros((16, 4), bool)
    columns = {
        "frames": still,
        "actions": np.zeros((16, 4), "int64"),
        "rewards": np.zeros((16, 4), "float32"),
        blocks.TERMINATED: flags,
        blocks.TRUNCATED: flags,
    }
    _, packed, _ = blocks.pack(Block(State(flags[0], {}), columns, [], 16), schema)
    assert len(packed["frames"]) < 2 * frames.nbytes  # of 16 times as many
