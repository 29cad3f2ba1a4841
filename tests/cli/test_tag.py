"""``mmreplay tag``, and what ``episodes`` and ``info`` show of fields of episodes."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, Text

SHOWN = """\
#  id  lane  row  length  return  task  success  end
0   0     0    0       1       1  lift        1  terminated
1   1     0    1       2       2  push        0  terminated
2   3     0    3       3       3  lift       -1  terminated
"""


@pytest.fixture
def path(tmp_path):
    path, frame = tmp_path / "s.zarr", np.zeros(1, np.uint8)
    fields = {"task": Text(8), "success": Field((), "int8"), "goal": Field((2,), "int8")}
    with mmreplay.create(path, Field((1,)), Field((), "int64"), episode=fields) as writer:
        for number, (task, success) in enumerate([("lift", 1), ("push", 0), ("lift", -1)]):
            writer.reset(frame, task=task, success=success)
            for t in range(number + 1):
                writer.step(0, 1.0, frame, terminated=t == number)
    return path


def numbers(out):
    return [int(line.split()[0]) for line in out.splitlines()[1:]]


def test_fields_are_columns(command, path):
    assert command("episodes", path).out == SHOWN
    first = json.loads(command("episodes", path, "--json").out)["episodes"][0]
    assert (first["task"], first["success"], first["goal"]) == ("lift", 1, [0, 0])
    assert "task" in command("info", path).out
    assert json.loads(command("info", path, "--json").out)["episode_fields"].keys() == {
        "started",
        "task",
        "success",
        "goal",
    }


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("success == 1", [0]),
        ("success != 1 and return > 2", [2]),
        ("task == 'lift' and length>=3", [2]),
        ('task != "lift"', [1]),
        ("task == push", [1]),
        ("end == terminated and row < 3", [0, 1]),
        ("return <= 2.5", [0, 1]),
        ("env == 0 and id > 100", []),
    ],
)
def test_a_condition_chooses(command, path, where, expected):
    assert numbers(command("episodes", path, "--where", where).out) == expected
    found = json.loads(command("episodes", path, "--where", where, "--json").out)
    assert [one["number"] for one in found["episodes"]] == expected


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("", "NAME OPERATOR VALUE"),
        ("return", "NAME OPERATOR VALUE"),
        ("success = 1", "NAME OPERATOR VALUE"),
        ("success == 1 and", "NAME OPERATOR VALUE"),
        ("success == 1 or return > 1", "NAME OPERATOR VALUE"),
        ("(success == 1)", "NAME OPERATOR VALUE"),
        ("__import__('os')", "NAME OPERATOR VALUE"),
        ("other == 1", "no such column"),
        ("task > push", "== and !="),
        ("success == good", "expected a number"),
        ("success == '1'", "expected a number"),
        ("goal == 1", "several values"),
    ],
)
def test_other_conditions_are_refused(command, path, where, problem):
    result = command("episodes", path, "--where", where)
    assert (result.status, result.out) == (2, "")
    assert problem in " ".join(result.err.split())


def test_tag(command, path):
    result = command("tag", path, "--episodes", "0-1", "quality=good", "success=5", "task=3")
    assert (result.status, result.err) == (0, "")
    assert "quality, success, task of 2 episodes" in result.out
    assert command("tag", path, "flag=true", "score=0.5", "n=7").status == 0
    with mmreplay.open(path) as store:
        found = store.episodes
    assert found["quality"].tolist() == ["good", "good", ""]
    assert found["success"].tolist() == [5, 5, -1]
    assert found["task"].tolist() == ["3", "3", "lift"]
    assert [found.dtype[name].kind for name in ("flag", "score", "n")] == ["b", "f", "i"]


@pytest.mark.parametrize("given", [[], ["quality"], ["=1"], ["--episodes", "9", "success=1"]])
def test_a_tag_that_does_not_fit(command, path, given):
    assert command("tag", path, *given).status != 0
    assert command("episodes", path).out == SHOWN
