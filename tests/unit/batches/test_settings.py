"""How transitions are rebuilt: which settings there are, and their borders."""

import dataclasses

import numpy as np
import pytest

from mmreplay.batches.settings import Settings
from mmreplay.errors import SchemaError
from mmreplay.format.layout import MAX_STACK


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"stack": 0}, "stack: expected a whole number"),
        ({"stack": True}, "stack"),
        ({"stack": "4"}, "stack"),
        ({"n_step": 0}, "n_step: expected a whole number"),
        ({"n_step": 10**9}, "n_step: expected a whole number, 1 to 65,536; found"),
        ({"gamma": -0.1}, "gamma: expected a number in"),
        ({"gamma": 1.1}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"padding": "edge"}, "padding: expected 'reset' or 'zero'"),
        ({"stack_axis": 1}, "stack_axis: expected 0 or -1"),
        ({"clip_reward": 1}, r"clip_reward: expected \(low, high\)"),
        ({"clip_reward": (1, 1)}, "clip_reward"),
        ({"clip_reward": (0, float("nan"))}, "clip_reward"),
        ({"clip_reward": ("0", "1")}, "clip_reward"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(wrong, match):
    with pytest.raises(SchemaError, match=match):
        Settings(**wrong)
    with pytest.raises(SchemaError, match=match):
        dataclasses.replace(Settings(), **wrong)


def test_settings_take_numpy_integers_and_the_borders():
    assert Settings(stack=np.int64(3), n_step=np.int32(2)).stack == 3  # type: ignore[arg-type]
    for value in ({"stack": None}, {"stack": 1}, {"gamma": 0}, {"gamma": 1}, {"stack_axis": -1}):
        assert dataclasses.replace(Settings(), **value) == Settings(**value)


def test_a_stack_longer_than_the_context_is_refused_where_rows_go():
    assert MAX_STACK == 65
    Settings(stack=65).check_evicting(evicts=True)
    Settings(stack=66).check_evicting(evicts=False)
    Settings(stack=None).check_evicting(evicts=True)
    with pytest.raises(SchemaError, match="at most 65 if a capacity evicts rows, found 66"):
        Settings(stack=66).check_evicting(evicts=True)
