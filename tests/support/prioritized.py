"""Prioritized buffers of tests: their rows, what they are given, and how they must be drawn."""

import numpy as np

import mmreplay
from mmreplay import Field
from mmreplay.storage.priority_column import Lane, PriorityColumn
from mmreplay.system import memory_maps
from tests.support.even_draws import EvenGenerator, assert_counts_fit

ROWS = memory_maps.GRANULARITY // 8  # the fewest that a chunk file of priorities may hold
RAW = {"frame": Field((1,), "uint8", "raw", chunk=4096), "action": Field((), "int64", chunk=512)}
FRAME = np.zeros(1, np.uint8)
VARIANTS = ["proportional", "rank"]


def column_of(lane, window, environments=None):
    """The priorities of one lane, of entries [base, head)."""
    base, head = window
    return PriorityColumn(lambda: [Lane(lane, environments)], lambda _: (base, base, head))


def release(column):
    """As the death of its process does."""
    for *_, changing in column._held.values():
        changing._lock.release()


def play(buffer, n_steps, *, end=True, reset=True):
    """Steps of an episode, of each environment."""
    shape = () if isinstance(buffer.writer, mmreplay.Writer) else (len(buffer.writer),)
    frame = np.zeros((*shape, 1), np.uint8)
    if reset:
        buffer.reset(frame)
    for step in range(n_steps):
        over = np.full(shape, end and step == n_steps - 1)
        zeros = np.zeros(shape)
        if shape:
            buffer.step(zeros.astype(int), zeros, frame, over, ~np.ones(shape, bool))
        else:
            buffer.step(0, 0.0, frame, bool(over))


def give(buffer, values):
    """Priorities for every transition, exactly."""
    ids = buffer.ids
    buffer.update_priorities(ids, np.asarray(values) - buffer.sampler.how.epsilon)
    return dict(zip(ids.tolist(), buffer.priorities(ids).tolist(), strict=True))


def expected_probabilities(buffer, alpha, variant):
    """Of all ids, by the definition."""
    found = buffer.priorities(buffer.ids)
    if variant == "rank":
        order = np.lexsort((buffer.ids, -found))
        found[order] = 1 / np.arange(1, found.size + 1)
    masses = found**alpha
    return masses / masses.sum()


def check_distribution(buffer, probabilities):
    """How often each transition comes in a batch of even draws."""
    generator, buffer.generator = buffer.generator, EvenGenerator()
    ids = buffer.sample(5000).id
    buffer.generator = generator
    counts = np.bincount(buffer.ids.searchsorted(ids), minlength=len(buffer))
    assert np.isin(ids, buffer.ids).all()
    assert_counts_fit(counts, probabilities)


def priorities_of(buffer):
    return dict(zip(buffer.ids.tolist(), buffer.priorities(buffer.ids).tolist(), strict=True))
