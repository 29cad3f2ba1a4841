"""Runs of steps: of one observation more than steps, and cut without losing any."""

import numpy as np

from mmreplay import Field
from mmreplay.exchange.steps import (
    BLOCK_BYTES,
    BLOCK_STEPS,
    Steps,
    block_steps,
    frame_dict,
    pieces_of,
)


def run(n, *, begins=True, ends=True):
    return Steps(
        {"frame": np.arange(n + 1)},
        np.arange(n),
        np.arange(n) / 2,
        np.arange(n) == n - 1,
        {"x": np.arange(n) * 3},
        begins,
        ends,
    )


def test_pieces_have_all_steps_and_the_observations_beside_them():
    pieces = list(pieces_of(run(10), 4))
    assert [len(one) for one in pieces] == [4, 4, 2]
    assert [one.observation["frame"].tolist() for one in pieces] == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9, 10],
    ]
    assert [(one.begins, one.ends) for one in pieces] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert np.concatenate([one.extras["x"] for one in pieces]).tolist() == list(range(0, 30, 3))
    assert np.concatenate([one.action for one in pieces]).tolist() == list(range(10))


def test_a_short_run_is_its_own_piece_and_an_end_stays_what_it_is():
    short = run(3, begins=False, ends=False)
    assert list(pieces_of(short, 3)) == [short]
    assert [one.ends for one in pieces_of(short, 2)] == [False, False]


def test_blocks_are_bounded_in_steps_and_in_bytes():
    assert block_steps(1) == BLOCK_STEPS
    assert block_steps(BLOCK_BYTES // 2) == 2
    assert block_steps(BLOCK_BYTES * 9) == block_steps(BLOCK_BYTES) == 1


def test_the_sole_field_of_frames_has_a_key_too():
    field = Field((3,))
    assert frame_dict(field) == {"frame": field}
    assert frame_dict({"a": field}) == {"a": field}
