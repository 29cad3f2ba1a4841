"""``mmreplay stats``: a line for each element, or all of it as JSON."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field


@pytest.fixture
def store(folder):
    """Five steps of a dict observation with an image of 1,024 pixels."""
    fields = {"state": Field((2,), "float32"), "camera": Field((32, 32))}

    def frame(step):
        nan = np.nan if step > 2 else 0.25
        return {"state": [step, nan], "camera": np.full((32, 32), step, "uint8")}

    extras = {"force": Field((40,), "float32"), "none": Field((33,), "float32", fill=np.nan)}
    with mmreplay.create("store.zarr", fields, Field((), "int64"), extras=extras) as writer:
        writer.reset(frame(0))
        for step in range(5):
            writer.step(3, step / 2, frame(step + 1), force=np.arange(40) + step)
    return "store.zarr"


def test_a_line_for_each_element_and_one_for_a_field_of_many(command, store):
    result = command("stats", store)
    assert (result.status, result.err) == (0, "")
    assert (
        result.out
        == """\
store.zarr: 5 transitions

field                          mean     std   min   1 %  99 %   max  not finite
observation.state[0]              2   1.414     0  0.04  3.96     4           0
observation.state[1]           0.25       0  0.25  0.25  0.25  0.25           2
observation.camera, all 1,024     2   1.414     0                 4           0
action                            3       0     3     3     3     3           0
reward                            1  0.7071     0  0.02  1.98     2           0
force, all 40                  21.5   11.63     0                43           0
none, all 33                   none    none  none              none         165
"""
    )


def test_json_of_some_fields_of_several_stores(command, store, write, play):
    mmreplay.pack([store], "other.zarr")
    result = command("stats", store, "other.zarr", "--json", "--fields", "action,reward", "--fields", "force")  # fmt: skip
    found = json.loads(result.out)
    assert [found[name] for name in ("paths", "transitions", "quantiles")] == [
        ["store.zarr", "other.zarr"],
        10,
        [0.01, 0.99],
    ]
    assert [*found["fields"]] == ["action", "reward", "force"]
    assert found["fields"]["reward"] == {
        "mean": 1.0, "std": 0.5**0.5, "min": 0.0, "max": 2.0, "quantiles": [0.0, 2.0], "count": 10,
        "n_nonfinite": 0, "sampled": False,
    }  # fmt: skip
    assert len(found["fields"]["force"]["mean"]) == 40


def test_a_sample_is_said_so(command, folder):
    with mmreplay.create("long.zarr", Field((32, 32)), Field((), "int64")) as writer:
        writer.reset(np.zeros((32, 32), "uint8"))
        for _ in range(1001):
            writer.step(0, 1.0, np.zeros((32, 32), "uint8"))
    out = command("stats", "long.zarr", "--fields", "observation").out
    assert out.splitlines()[-1] == "observation: a random sample of 1,000 transitions"
    assert json.loads(command("stats", "long.zarr", "--json").out)["fields"]["observation"][
        "sampled"
    ]


def test_what_is_not_there_is_an_error(command, store):
    result = command("stats", store, "--fields", "actoin")
    assert (result.status, result.out) == (1, "")
    assert "fields: expected some of ['observation.state'," in result.err
    assert command("stats", "none.zarr").status == 1
    assert command("stats").status == 2
