"""The bars of ``mmreplay info``: every value in one of them, none wider than it may be."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from mmreplay_cli.histogram import histogram


def test_whole_numbers_have_a_bin_each_where_they_are_few():
    assert histogram(np.array([0.0, 0, 0, 1, 3]), "#") == [
        "0  ############################## 3",
        "1  ########## 1",
        "2",
        "3  ########## 1",
    ]


def test_bins_begin_at_round_numbers():
    lines = histogram(np.array([-21.0, -20, -3, 0, 17, 21]), "#")
    assert [line.strip().split("  ")[0] for line in lines] == [
        "-21",
        "-20 to -11",
        "-10 to -1",
        "0 to 9",
        "10 to 19",
        "20 to 21",
    ]


def test_the_outer_bins_of_whole_numbers_end_where_the_values_do():
    lines = histogram(np.array([17.0, 120, 333, 480, 500, 500]), "#")
    assert [line.strip().split("  ")[0] for line in lines] == [
        "17 to 99",
        "100 to 199",
        "200 to 299",
        "300 to 399",
        "400 to 499",
        "500",
    ]


def test_fractions():
    lines = histogram(np.array([0.11, 0.13, 0.19]), "#")
    assert lines[0].startswith("0.11 to 0.12  ")
    assert lines[-1].startswith("0.19 to 0.20  ")


def test_no_finite_values():
    assert histogram(np.array([]), "#") == []
    assert histogram(np.array([np.nan, np.inf]), "#") == []


@given(st.lists(st.floats(-1e300, 1e300) | st.integers(-1000, 1000), min_size=1, max_size=50))
@example([0.0, 5e-324])
@example([7.0, 7.0])
def test_every_value_is_counted_once_and_no_line_is_too_wide(values):
    values = np.array(values, np.float64)
    lines = histogram(values, "#")
    if np.abs(values).max() < 1e300:
        bars = [line.strip().partition("  ")[2] for line in lines]
        assert sum(int(bar.split()[-1].replace(",", "")) for bar in bars if bar) == len(values)
    assert max(map(len, lines), default=0) <= 78
    assert len(lines) <= 11
