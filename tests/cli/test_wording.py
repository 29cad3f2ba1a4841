"""Numbers as people read them."""

import pytest

from mmreplay_cli.wording import age, number, size, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_600, "1.00 MB"),
        (3_124_000, "3.12 MB"),
        (142_900_000, "143 MB"),
        (1.1e9, "1.10 GB"),
        (2e18, "2,000 PB"),
    ],
)
def test_size(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-21.0, "-21"),
        (1234567.0, "1,234,567"),
        (1.2116, "1.212"),
        (-0.5, "-0.5"),
        (1234.5, "1,234"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (3.14, "3.1 s"),
        (45.4, "45 s"),
        (720, "12 min"),
        (12_240, "3.4 h"),
        (440_000, "5.1 days"),
    ],
)
def test_age(seconds, text):
    assert age(seconds) == text


def test_times():
    assert times(45.23) == "45.2 times smaller than"
    assert times(1234.5) == "1,234 times smaller than"
    assert times(0.5) == "2.00 times larger than"
