"""`columns`, `add-column` and `drop-column`: what they print, and what they refuse."""

import json

import pytest

import mmreplay

FUNCTIONS = """
def togo(episode):
    return episode.reward[::-1].cumsum()[::-1]

def short(episode):
    return episode.reward[:1]

number = 5

def wrong(trajectory): return trajectory.no_such_name
"""


@pytest.fixture
def functions(folder, monkeypatch):
    (folder / "own_functions.py").write_text(FUNCTIONS)
    monkeypatch.delitem(__import__("sys").modules, "own_functions", raising=False)


@pytest.mark.usefixtures("functions")
def test_a_column_is_added_listed_replaced_and_dropped(command, store):
    added = command("add-column", store, "togo", "own_functions:togo")
    assert (added.status, added.out) == (0, "store.zarr: added togo to 30 transitions\n")
    with mmreplay.open(store) as opened:
        assert opened.extras["togo"][:5].tolist() == [4, 3, 2, 1, 9]
    listed = command("columns", store)
    assert listed.out.splitlines()[0].split() == ["name", "kind", "dtype", "shape"]
    assert listed.out.splitlines()[1].split() == ["togo", "derived", "float32", "-"]
    again = command("add-column", store, "togo", "own_functions:togo")
    assert again.status == 1
    assert "pass replace=True (--replace), or choose another name" in again.err
    assert command("add-column", store, "togo", "own_functions:togo", "--replace").status == 0
    dropped = command("drop-column", store, "togo")
    assert (dropped.status, dropped.out) == (0, "store.zarr: dropped togo\n")
    assert command("columns", store).out == "store.zarr: no extra columns\n"
    missing = command("drop-column", store, "togo")
    assert missing.status == 1
    assert missing.err == ("Error: store.zarr: expected a derived column, of none; found 'togo'\n")


def test_json_has_every_extra_column(command, write, play):
    field = mmreplay.Field((2, 3), "int16", fill=7)
    with write(extras={"x": field}, derived={"v": mmreplay.Field((), "float32")}) as writer:
        play(writer, 3)
    found = json.loads(command("columns", "store.zarr", "--json").out)
    assert found == {
        "path": "store.zarr",
        "columns": [
            {"name": "x", "kind": "extra", "dtype": "int16", "shape": [2, 3], "fill": 7},
            {"name": "v", "kind": "derived", "dtype": "float32", "shape": []},
        ],
    }
    assert "2 x 3" in command("columns", "store.zarr").out


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("own_functions:none", "loading it raised AttributeError"),
        ("no_such_module:f", "loading it raised ModuleNotFoundError"),
        ("own_functions:number", "expected a callable source(trajectory)"),
        ("own_functions", "expected an array, an iterator, 'module:callable' or a callable"),
        ("own_functions:wrong", "own_functions.py, line 10: AttributeError: 'LazyTrajectory'"),
        ("own_functions:short", "expected a value for each of 4 steps of the trajectory"),
    ],
)
def test_a_function_that_does_not_fit_is_a_line(command, store, function, says):
    result = command("add-column", store, "x", function)
    assert (result.status, result.out) == (1, "")
    assert says in result.err
    assert command("columns", store).out == "store.zarr: no extra columns\n"


def test_a_store_that_is_written_is_left_alone(command, write):
    writer = write()
    for given in (["add-column", "store.zarr", "x", "a:b"], ["drop-column", "store.zarr", "x"]):
        result = command(*given)
        assert result.status == 1
        assert "open for writing already" in result.err
    assert not writer.files.closed


@pytest.mark.usefixtures("functions")
def test_pack_leaves_columns_out_by_name(command, store):
    command("add-column", store, "togo", "own_functions:togo")
    command("add-column", store, "again", "own_functions:togo")
    assert command("pack", store, "all.zarr").status == 0
    assert command("pack", store, "some.zarr", "--leave-out", "togo").status == 0
    assert mmreplay.open("all.zarr").extras.keys() == {"togo", "again"}
    assert mmreplay.open("some.zarr").extras.keys() == {"again"}
    result = command("pack", store, "none.zarr", "--leave-out", "tog")
    assert result.status == 1
    assert "leave_out: expected extra columns, of ['again', 'togo']; found ['tog']" in result.err
    exported = command("export", "arrays", store, "out.npz", "--leave-out", "again")
    assert exported.status == 0
    import numpy as np

    with np.load("out.npz") as arrays:
        assert "extras/togo" in arrays
        assert "extras/again" not in arrays
