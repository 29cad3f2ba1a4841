"""Where the neighbours of a step lie, and their frames: of rows and of cells."""

import numpy as np

from mmreplay.episode_index import UNKNOWN, Steps
from mmreplay.ids import LANE_SHIFT

START = 1 << LANE_SHIFT


def ids(*values):
    return np.array(values, np.int64)


def test_the_neighbours_of_a_row_are_the_rows_around_it():
    steps = Steps(ids(10, 20), 1, 0, None, ids(2, UNKNOWN), None)
    offsets = np.arange(-3, 2)
    assert steps.at(offsets).tolist() == [[7, 8, 9, 10, 11], [17, 18, 19, 20, 21]]
    # The first one's episode begins in row 8, and no frame before that one is its own.
    assert steps.frames(offsets).tolist() == [[8, 8, 9, 10, 11], [17, 18, 19, 20, 21]]
    assert steps.missing(offsets).tolist() == [[True] + 4 * [False], 5 * [False]]
    assert steps.frames_after(ids(10, 11)[None], ids(0)).tolist() == [[11, 12]]


def test_the_neighbours_of_a_cell_are_a_tick_apart_and_its_frame_is_that_after_it():
    # Of 4 environments: cell 41 is of tick 10, and cell 23 the first step of its episode.
    steps = Steps(ids(41, 23), 4, 1, ids(START + 5, START + 6), ids(2, 0), None)
    offsets = np.arange(-3, 2)
    assert steps.at(offsets).tolist() == [[29, 33, 37, 41, 45], [11, 15, 19, 23, 27]]
    assert steps.frames(offsets).tolist() == [
        [START + 5, START + 5, 33, 37, 41],
        [START + 6, START + 6, START + 6, START + 6, 23],
    ]
    assert steps.missing(offsets).tolist() == [[True] + 4 * [False], 3 * [True] + 2 * [False]]
    assert steps.frames_after(ids(41, 45)[None], ids(0)).tolist() == [[41, 45]]


def test_each_step_goes_by_its_own_lane_where_there_are_lanes_of_both_kinds():
    steps = Steps(ids(10, 23), ids(1, 4), ids(0, 1), ids(8, START), ids(2, 1), None)
    assert steps.at(ids(0, 1)).tolist() == [[10, 11], [23, 27]]
    assert steps.frames(ids(-1, 0, 1)).tolist() == [[9, 10, 11], [START, 19, 23]]
    assert steps.frames_after(ids(11, 12)[None], ids(0)).tolist() == [[12, 13]]
    assert steps.frames_after(ids(23, 27)[None], ids(1)).tolist() == [[23, 27]]
