"""What a capacity leaves, of rows and of ticks, against code that counts one by one."""

import numpy as np
import pytest

from mmreplay.episode_index import first_row, first_tick, floor_row, floor_tick
from tests.support.oracle.naive_rows import naive_first, random_starts


def test_context_is_kept_below_the_oldest_row_once_anything_went():
    assert [floor_row(base) for base in (0, 1, 100)] == [0, 65, 164]


@pytest.mark.parametrize(
    ("starts", "floor", "head", "capacity", "expected"),
    [
        ([], 0, 0, 5, 0),
        ([0], 0, 1, 5, 0),
        ([0], 0, 6, 5, 0),
        ([0], 0, 7, 5, 1),
        ([0, 3], 0, 7, 5, 0),
        ([0, 3], 0, 7, 4, 1),
        ([0, 3], 0, 7, 3, 2),
        ([0, 3], 0, 7, 1, 5),
        ([0, 3, 4, 5, 6], 0, 7, 1, 1),
        ([0, 3], 2, 7, 3, 2),
        ([0], 10, 7, 3, 7),
        ([0], 0, 1000, None, 0),
        ([0], 70, 1000, None, 70),
    ],
)
def test_at_most_a_capacity_of_transitions_lies_from_the_first_row_on(
    starts, floor, head, capacity, expected
):
    assert first_row(np.array(starts, np.int64), floor, head, capacity) == expected


def test_the_first_row_is_that_of_naive_code_in_a_thousand_cases():
    random = np.random.default_rng(0)
    for _ in range(1000):
        head = int(random.integers(0, 60))
        rate = random.choice([0, 0.05, 0.3, 0.7, 1])
        starts = [0, *random_starts(random, 1, head, rate)] if head else []
        floor = int(random.integers(0, 70)) if random.random() < 0.5 else 0
        capacity = int(random.integers(1, 40))
        known = [start for start in starts if start >= max(floor - 64, 0)]
        assert first_row(np.array(known, np.int64), floor, head, capacity) == naive_first(
            starts, floor, head, capacity
        )


# ---------------------------------------------------------------- ticks


def test_one_tick_more_of_context_is_kept_as_its_frames_are_those_after_its_steps():
    assert [floor_tick(base) for base in (0, 1, 100)] == [0, 66, 165]


def test_the_first_tick_is_that_of_naive_code_in_a_thousand_cases():
    random = np.random.default_rng(0)
    for _ in range(1000):
        head, base = int(random.integers(0, 90)), int(random.integers(0, 20))
        sizes = random.integers(1, 6, head)
        counts = sizes.cumsum()
        counts[:base] = 1 << 50  # nobody may look
        floor = base and base + int(random.integers(1, 20))
        capacity = int(random.integers(1, 200)) if random.random() < 0.9 else None
        expected = min(floor, head)
        while capacity is not None and sizes[expected:].sum() > capacity:
            expected += 1
        asked = []

        def count(start, stop, counts=counts, asked=asked):
            asked.append(start)
            return counts[start:stop]

        assert first_tick(count, floor, head, capacity) == expected
        assert min(asked, default=base) >= base


def test_as_a_rule_the_first_tick_is_found_by_a_few_looks():
    counts, asked = np.arange(1, 100_001), []

    def count(start, stop):
        asked.append(start)
        return counts[start:stop]

    assert first_tick(count, 89_999, 100_000, 10_000) == 90_000
    assert len(asked) < 8
