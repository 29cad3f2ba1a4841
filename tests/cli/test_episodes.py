"""``mmreplay episodes``: every trajectory that is kept whole."""

import json

import numpy as np
import pytest

import mmreplay

BY_ID = """\
#  id  lane  row  length  return  end
0   0     0    0       4       4  terminated
1   4     0    4       9       9  truncated
2  13     0   13       4       4  terminated
3  17     0   17      11      11  truncated
4  28     0   28       2       5  truncated
"""


def numbers(out):
    """The first column."""
    return [int(line.split()[0]) for line in out.splitlines()[1:]]


def test_in_the_order_of_lanes_and_rows(command, store):
    result = command("episodes", store)
    assert (result.status, result.out, result.err) == (0, BY_ID, "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "id"], [0, 1, 2, 3, 4]),
        (["--reverse"], [4, 3, 2, 1, 0]),
        (["--sort", "return"], [3, 1, 4, 0, 2]),
        (["--sort", "length"], [3, 1, 0, 2, 4]),
        (["--sort", "return", "--reverse"], [2, 0, 4, 1, 3]),
        (["--sort", "end"], [0, 2, 1, 3, 4]),
    ],
)
def test_sorted(command, store, options, expected):
    assert numbers(command("episodes", store, *options).out) == expected


def test_limit(command, store):
    out = command("episodes", store, "--sort", "return", "--limit", "2").out
    assert (
        out
        == """\
#  id  lane  row  length  return  end
3  17     0   17      11      11  truncated
1   4     0    4       9       9  truncated
and 3 more
"""
    )
    assert command("episodes", store, "--limit", "0").out.splitlines()[1:] == ["and 5 more"]
    assert command("episodes", store, "--limit", "5").out == BY_ID


def test_json(command, store):
    document = json.loads(command("episodes", store, "--json", "--sort", "return").out)
    assert document.keys() == {"path", "total", "episodes"}
    assert (document["path"], document["total"]) == (store, 5)
    assert document["episodes"][1].pop("started") > 0
    assert document["episodes"][1] == {
        "number": 1,
        "id": 4,
        "lane": 0,
        "row": 4,
        "environment": 0,
        "length": 9,
        "return": 9.0,
        "terminated": False,
        "truncated": True,
        "end": "truncated",
    }


def test_the_number_is_that_of_store_trajectory(command, store):
    rows = json.loads(command("episodes", store, "--json").out)["episodes"]
    with mmreplay.open(store) as opened:
        for row in rows:
            trajectory = opened.trajectory(row["number"])
            assert trajectory.ids[0] == row["id"]
            assert len(trajectory) == row["length"]


def test_many_environments(command, vector_store):
    lines = command("episodes", vector_store, "--limit", "3").out.splitlines()
    assert lines[0].split() == ["#", "id", "lane", "row", "env", "length", "return", "end"]
    assert [line.split()[:5] for line in lines[1:4]] == [
        ["0", "0", "0", "0", "0"],
        ["1", "1", "0", "0", "1"],
        ["2", "20", "0", "10", "0"],
    ]
    rows = json.loads(command("episodes", vector_store, "--json").out)["episodes"]
    assert [(one["row"], one["environment"]) for one in rows[1:3]] == [(0, 1), (10, 0)]


def test_an_empty_store(command, write):
    write().close()
    result = command("episodes", "store.zarr")
    assert (result.status, result.out) == (0, "#  id  lane  row  length  return  end\n")
    assert json.loads(command("episodes", "store.zarr", "--json").out)["episodes"] == []


def test_episodes_that_lost_their_beginning_are_left_out_and_it_says_so(command, write, play):
    with write(capacity=10) as writer:
        play(writer, 30, "terminated")
    *lines, last = command("episodes", "store.zarr").out.splitlines()
    assert lines == ["#  id  lane  row  length  return  end"]
    assert last == ("Partly evicted episodes are not listed; `mmreplay view` shows them")


def test_the_running_episode_is_open_until_its_writer_dies(command, write, play, die):
    writer = write()
    play(writer, 3)
    assert command("episodes", "store.zarr").out.splitlines()[1].split()[-1] == "running"
    die(writer)
    assert command("episodes", "store.zarr").out.splitlines()[1].split()[-1] == "truncated"


def test_a_return_that_is_not_a_number(command, write):
    with write() as writer:
        for reward in (1.0, np.nan, np.inf, 2.0):
            writer.reset(np.zeros(3, np.uint8))
            writer.step(1, reward, np.zeros(3, np.uint8), True)
    out = command("episodes", "store.zarr", "--sort", "return").out
    assert [line.split()[5] for line in out.splitlines()[1:]] == ["inf", "2", "1", "nan"]
    rows = json.loads(command("episodes", "store.zarr", "--json").out)["episodes"]
    assert [row["return"] for row in rows] == [1.0, None, None, 2.0]
