"""Spans of rows, put together."""

from mmreplay.maintenance.repair.spans import merged


def test_spans_that_touch_or_overlap_are_one():
    assert merged([(5, 9), (0, 2), (9, 12), (6, 7), (2, 3)], 0, 20) == [(0, 3), (5, 12)]


def test_spans_are_cut_to_the_rows_that_there_are():
    assert merged([(0, 4), (18, 30), (25, 30), (6, 6)], 2, 20) == [(2, 4), (18, 20)]
    assert merged([], 0, 20) == []
