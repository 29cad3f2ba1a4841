"""The limiter: senders and learners never wait for each other, and neither runs away."""

import itertools
import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmreplay
from mmreplay import FormatError, SchemaError, StoreNotFoundError
from mmreplay.distributed.limiter import Limiter, Limits
from tests.support.sent_steps import SMALL, LossyTransport, sender


def limiter(path, limits, n=0):
    return Limiter.made(path, limits, lambda: n)


@pytest.mark.parametrize("ratio", [0.25, 1, 3, 8.5])
@pytest.mark.parametrize("min_size", [1, 7])
def test_in_no_reachable_state_do_both_wait(tmp_path, ratio, min_size):
    """Every state that blocks of 4 and batches of 2, 5 and twice the margin can lead to."""
    margin, block, batches = 6, 4, (2, 5, 12)
    one = limiter(tmp_path / "x.zarr", Limits(ratio, min_size, margin))
    states, seen = [(0, 0)], set()
    while states:
        inserts, samples = state = states.pop()
        if state in seen or inserts > 60:
            continue
        seen.add(state)
        one.insert(inserts - one.inserts)
        one.sample(samples - one.samples)
        waits = one.inserts_ahead()
        for batch in batches:
            assert not (waits and one.samples_ahead(batch)), state
            if not one.samples_ahead(batch):
                states.append((inserts, samples + batch))
        if not waits:
            states.append((inserts + block, samples))
        excess = samples - ratio * (inserts - min_size)
        assert inserts < min_size or excess <= margin
        assert excess >= -margin - ratio * block
    assert len(seen) > 30


def test_a_margin_that_is_too_small_would_be_a_deadlock_and_is_refused(tmp_path):
    """The rule that the search above relies on: it finds a state for a larger batch."""
    one = limiter(tmp_path / "x.zarr", Limits(1.0, 1, 6))
    one.insert(10)
    one.sample(2)
    assert one.inserts_ahead()
    assert one.samples_ahead(14)
    with pytest.raises(SchemaError, match="at most 12"):
        one.wait(13)


@given(st.floats(0.01, 100), st.integers(1, 64), st.integers(1, 512))
def test_the_default_margin_has_room_for_all_blocks_under_way(ratio, actors, rows):
    limits = Limits.checked(ratio, 1, rows_under_way=actors * rows)
    assert limits.margin >= ratio * actors * rows
    with pytest.raises(SchemaError, match="margin"):
        Limits.checked(ratio, 1, int(ratio * actors * rows), rows_under_way=actors * rows)


@pytest.mark.parametrize("ratio", [0, -1, "8", float("nan"), float("inf"), True])
def test_a_ratio_that_is_not_a_positive_number_is_refused(ratio):
    with pytest.raises(SchemaError, match="samples_per_insert"):
        Limits.checked(ratio)


def test_without_a_ratio_only_the_first_samples_wait(tmp_path):
    one = limiter(tmp_path / "x.zarr", Limits.checked(None, 10))
    assert one.samples_ahead(1)
    one.insert(10)
    assert not one.samples_ahead(1 << 30)
    one.insert(1 << 30)
    assert not one.inserts_ahead()
    one.wait(1 << 40)


def test_counts_outlive_both_sides(tmp_path):
    limits = Limits(2.0, 1, 100)
    one = limiter(tmp_path / "x.zarr", limits)
    one.insert(50)
    one.sample(30)
    Limiter(tmp_path / "x.zarr", 3).sample(5)
    again = limiter(tmp_path / "x.zarr", limits, n=7)  # asked only where there is no page
    assert (again.inserts, again.samples, again.limits) == (50, 35, limits)
    assert Limiter(tmp_path / "x.zarr").samples == 35


def test_other_limits_begin_in_balance(tmp_path):
    one = limiter(tmp_path / "x.zarr", Limits(2.0, 1, 10), n=1001)
    assert (one.inserts, one.samples) == (1001, 2000)
    one.sample(10)
    assert one.samples_ahead(1)
    again = limiter(tmp_path / "x.zarr", Limits(8.0, 1, 10))
    assert again.samples == 8000
    assert not again.samples_ahead(10)
    assert again.samples_ahead(11)


def test_what_is_not_a_page_is_refused(tmp_path):
    with pytest.raises(StoreNotFoundError, match="no distributed run"):
        Limiter(tmp_path / "x.zarr")
    (tmp_path / "x.zarr.samples").write_bytes(bytes(4096))
    with pytest.raises(FormatError):
        Limiter(tmp_path / "x.zarr")


def test_it_is_not_copied_to_other_processes(tmp_path):
    with pytest.raises(SchemaError, match="rank="):
        pickle.dumps(limiter(tmp_path / "x.zarr", Limits()))


def _sample(path, rank, n):
    one = Limiter(path, rank)
    for _ in range(n):
        one.sample(1)


def test_ranks_count_side_by_side(tmp_path):
    one = limiter(tmp_path / "x.zarr", Limits())
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_sample, args=(tmp_path / "x.zarr", r, 500)) for r in range(2)]
    for process in ranks:
        process.start()
    for _ in range(500):
        one.insert(1)
    for process in ranks:
        process.join()
    assert (one.samples, one.inserts) == (1000, 500)


@pytest.mark.parametrize("n", [None, 3])
def test_a_receiver_counts_transitions_also_across_kills(tmp_path, n):
    """Those that were left out do not count."""
    fates = itertools.cycle(["done", "done", "lost after", "done"])
    limits = Limits(1.0, 1, 1 << 30)
    transport = LossyTransport(tmp_path / "x.zarr", SMALL, fates, limits)
    writer = sender(transport, "actor", n, steps=4, patience_s=1e9)
    lead = (n,) if n else ()
    frame, zero = np.zeros((*lead, 40, 40), "uint8"), np.zeros(lead, bool) if n else False
    actions = np.zeros(lead, int)
    writer.reset(frame)
    for t in range(40):
        ends = np.array([t % 5 == 0, False, False]) if n else t % 5 == 0
        writer.step(actions, np.zeros(lead) if n else 0, frame, ends, zero)
        if n:
            mask = np.array([t % 5 != 0, True, True])
            writer.step(actions, np.zeros(lead), frame, zero, zero, mask=mask)
        if np.any(ends):
            writer.reset(frame, *([ends] if n else []))
        if t == 20:
            writer.flush()
            transport.kill()
    writer.close()
    inserts = transport.receiver.limiter.inserts
    transport.receiver.close()
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert len(store) == inserts
