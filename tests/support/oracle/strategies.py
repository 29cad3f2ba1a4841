"""Hypothesis strategies: what a store may hold, how it may be laid out, what may happen in it.

Invariant: whatever a strategy draws is allowed; a test that fails has found a fault, or expects
the wrong thing.
"""

from hypothesis import strategies as st

from mmreplay.schema import Field
from mmreplay.texts import Text
from tests.support.oracle.layout import Episode, Layout

DTYPES = ("uint8 bool int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64").split()

EPISODE = {
    "task": Text(21000),  # so that a chunk file has three
    "success": Field((), "int8"),
    "goal": Field((3, 700), "float64"),  # and of these three, too, and some bytes
}
CHUNKS = st.sampled_from([None, 1, 3, 512])

CODECS = (
    "raw",
    "lz4",
    "zstd",
    {"name": "gzip", "configuration": {"level": 1}},
    {"name": "zstd", "configuration": {"level": 3, "checksum": True}},
    {
        "name": "blosc",
        "configuration": {
            "cname": "zstd",
            "clevel": 3,
            "shuffle": "bitshuffle",
            "typesize": 2,
            "blocksize": 0,
        },
    },
)
"""Every kind of codec that format 1 knows."""


def codecs():
    """Any codec that format 1 knows."""
    return st.sampled_from(CODECS)


def shapes():
    """Scalars, vectors, planes and images of a few elements; one row of exactly a page."""
    return st.sampled_from(
        [(3,), (), (1,), (2, 3), (4, 4), (2, 3, 3), (5, 2, 1), (2, 1, 2, 2), (64, 64), (512,)]
    )


@st.composite
def fields(draw, *, shard=None, codec=None):
    """A frame field; compressed ones have a chunk that divides `shard`."""
    shape, dtype = draw(shapes()), draw(st.sampled_from(DTYPES))
    codec = codec or draw(codecs())
    if codec == "raw":
        return Field(shape, dtype, codec, chunk=draw(st.sampled_from([3, 1, 2, 7, 64, 512])))
    length = shard or draw(st.sampled_from([6, 1, 2, 4, 9, 24, 60]))
    divisors = [n for n in (1, 2, 3, 4, 6, length) if length % n == 0]
    return Field(shape, dtype, codec, chunk=draw(st.sampled_from(divisors)), shard=length)


@st.composite
def layouts(draw, *, lanes=True, worked_on=False):
    """Any store with chunks so short that every border is met; of several lanes only if wanted.

    With `worked_on` it has derived columns and fields of episodes in any case.
    """
    frame = draw(fields())
    if draw(st.integers(0, 3)) == 3:
        shard = draw(st.sampled_from([6, 4, 12]))
        names = draw(st.lists(st.sampled_from(["a", "b.c", "d_e-f"]), min_size=1, unique=True))
        frame = {name: draw(fields(shard=shard)) for name in names}
    action = Field(
        draw(st.sampled_from([(), (2,), (1, 3)])),
        draw(st.sampled_from(["int64", "float32", "bool", "uint8", "float16", "int32"])),
        chunk=draw(st.sampled_from([5, 1, 2, 3, 16, 64, 512, 4096, None])),
    )
    extras = {}
    if draw(st.booleans()):
        extras["log_prob"] = Field((), "float32", chunk=draw(st.sampled_from([None, 1, 4, 11])))
    if draw(st.integers(0, 3)) == 3:
        dtype = draw(st.sampled_from(DTYPES))
        extras["hidden"] = Field((2, 2), dtype, chunk=draw(st.sampled_from([None, 1, 3])))
    derived = {}
    if worked_on or draw(st.booleans()):
        derived["value"] = Field((), "float32", chunk=draw(st.sampled_from([None, 1, 4, 1024])))
        derived["latent"] = Field((3, 2), draw(st.sampled_from(DTYPES)), chunk=draw(CHUNKS))
    environments = draw(st.sampled_from([None, None, 1, 2, 3, 5]))
    capacity = draw(st.sampled_from([None, 1, 2, 3, 5, 17, 40, 100]))
    return Layout(
        frame,
        action,
        extras,
        draw(st.sampled_from(["float32", "float64"])),
        capacity and max(capacity, environments or 1),
        environments,
        draw(st.sampled_from(["reset", "zero"])),
        draw(st.sampled_from([None, None, 1, 2])) if lanes else None,
        EPISODE if worked_on else draw(st.sampled_from([{}, EPISODE])),
        derived,
    )


@st.composite
def episodes(draw, most=40):
    """An episode of up to `most` steps; most are short, some have none."""
    length = draw(st.one_of(st.integers(0, min(6, most)), st.integers(0, most)))
    lost = draw(st.frozensets(st.integers(0, max(length - 1, 0)), max_size=2))
    end = draw(st.sampled_from(["terminated", "truncated", "both", "interrupted"]))
    return Episode(length, end, lost)


@st.composite
def gather_settings(draw, *, longest=65):
    return {
        "stack": draw(st.sampled_from([4, None, 1, 2, 3, 5, 33, 64, longest])),
        "n_step": draw(st.sampled_from([1, 1, 2, 3, 5, 20])),
        "gamma": draw(st.sampled_from([0.99, 0.5, 1.0, 0.0, 0.9])),
        "padding": draw(st.sampled_from(["reset", "zero"])),
        "stack_axis": draw(st.sampled_from([0, -1])),
    }
