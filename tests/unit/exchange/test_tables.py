"""Columns by the names that libraries give them; which of them are taken for what."""

import numpy as np
import pytest

from mmreplay import Field, FormatError
from mmreplay.exchange.columns import columns_of
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.tables import Tables

N = 6
FLAT = {"obs": np.ones((N, 2), "f4"), "acts": np.arange(N), "rews": np.ones(N, "i4")}


def tables(given, **settings):
    losses = Losses()
    return Tables(columns_of(given), "here", losses, "repeat", **settings), losses


def test_fields_are_those_of_the_columns():
    found = tables(FLAT | {"infos/x": np.zeros((N, 3), "i2"), "extras/y": np.zeros(N)})[0]
    incoming = found.incoming([])
    assert incoming.frame == Field((2,), "float32")
    assert incoming.action == Field((), "int64")
    assert incoming.extras == {"infos.x": Field((3,), "int16"), "y": Field((), "float64")}
    assert (incoming.reward_dtype, incoming.n_steps) == (np.dtype("float64"), N)


def test_of_two_columns_of_one_name_none_goes_unsaid():
    given = {"a b": np.zeros(N), "a_b": np.ones(N), "observations": np.ones((N, 3))}
    found, losses = tables(FLAT | given)
    assert [one.what for one in losses.all()] == [
        "column a b: called a_b in the store",
        "column a_b: another column is called a_b already",
        "column observations: kept as the extra column observations, as obs is used as observations",
    ]
    incoming = found.incoming([])
    assert incoming.frame == Field((2,), "float32")  # of obs, which came first
    assert incoming.extras == {
        "a_b": Field((), "float64"),
        "observations": Field((3,), "float64"),
    }


def test_rewards_may_be_missing_if_the_format_has_none():
    given = {"obs": FLAT["obs"], "acts": FLAT["acts"]}
    with pytest.raises(FormatError, match="here: expected a column 'rewards', found acts, obs"):
        tables(given)
    found, losses = tables(given, needs_rewards=False)
    (table,) = found.tables([given], {})
    assert table.reward.tolist() == [0] * N
    assert losses.all()[0].what.startswith("rewards: the source has none")


@pytest.mark.parametrize(
    "role", ["rewards", "terminations", "dones", "episode", "episode_starts", "life_losses"]
)
@pytest.mark.parametrize("row", [(2,), (1, 2), (0,)])
def test_what_is_one_number_per_step_is_not_several(role, row):
    given = {name: rows for name, rows in FLAT.items() if name != "rews" or role != "rewards"}
    for called, named in (
        (None, ""),
        ({}, f"name another column with {role}=NAME (-o {role}=NAME), "),
    ):
        with pytest.raises(FormatError) as caught:
            columns = columns_of(given | {role: np.zeros((N, *row))})
            Tables(columns, "here", Losses(called=called), "repeat")
        assert str(caught.value) == (
            f"here: {role}: expected one number per step, found rows of shape {row}; write the one "
            f"that counts as a column of its own, {named}or pass leave_out=['{role}']"
        )
    tables(given | {role: np.zeros((N, 1, 1))})


@pytest.mark.parametrize("name", ["is_first", "is_last", "step_type", "masks"])
def test_ends_under_a_name_that_says_something_else_are_refused(name):
    with pytest.raises(FormatError, match=f"found {name}; name one .*truncations={name}"):
        tables(FLAT | {name: np.zeros(N)})
    tables(FLAT | {name: np.zeros(N), "dones": np.zeros(N)})


@pytest.mark.parametrize(
    ("flags", "terminal", "ends"),
    [
        ({"terminals": [0, 1, 0, 0, 0, 1]}, [1, 5], [1, 5]),
        ({"terminals": [0, 1, 0, 0, 0, 0], "timeouts": [0, 0, 0, 1, 0, 0]}, [1], [1, 3]),
        ({"terminals": [0, 1, 0, 0, 0, 0], "timeouts": [0, 1, 0, 0, 0, 0]}, [1], [1]),
        ({"terminals": [0, 1, 0, 0, 0, 0], "dones": [0, 1, 0, 1, 0, 0]}, [1], [1, 3]),
        ({"timeouts": [0, 1, 0, 0, 0, 0], "dones": [0, 1, 0, 1, 0, 0]}, [3], [1, 3]),
        ({"dones": [0, 1, 0, 1, 0, 0]}, [1, 3], [1, 3]),
        ({"terminals": [0] * 6, "episode_terminals": [0, 1, 0, 1, 0, 0]}, [], [1, 3]),
        ({"terminated": [0, 0, 0, 0, 0, 1], "life_losses": [0, 1, 0, 0, 0, 0]}, [1, 5], [5]),
        ({"episode": [0, 0, 1, 1, 1, 2]}, [], [1, 4, 5]),
        ({"episode_starts": [1, 0, 0, 1, 0, 0]}, [], [2, 5]),
        ({"episode_starts": [1, 0, 0, 1, 0, 0], "dones": [0, 0, 1, 0, 1, 0]}, [2, 4], [2, 5]),
        ({"dones_float": [0, 1, 0, 1, 0, 0], "masks": [1, 0, 1, 1, 1, 1]}, [1], [1, 3]),
        ({"dones_float": [0, 1, 0, 0, 0, 0]}, [1], [1]),
        ({"episode": [4, 4, 4, 4, 2, 2], "dones": [0, 0, 0, 1, 0, 0]}, [3], [3, 5]),
        ({"episode": [4] * 6, "truncated": [0, 0, 1, 0, 0, 0]}, [], [5]),
        ({}, [], []),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 6])
def test_flags_by_every_name(flags, terminal, ends, size):
    given = FLAT | {key: np.array(rows) for key, rows in flags.items()}
    found = tables(given)[0]
    blocks = [{k: v[at : at + size] for k, v in given.items()} for at in range(0, N, size)]
    parts = list(found.tables(blocks, {}))
    assert np.flatnonzero(np.concatenate([one.terminal for one in parts])).tolist() == terminal
    assert np.flatnonzero(np.concatenate([one.ends for one in parts])).tolist() == sorted(
        {*ends, N - 1}
    )
