"""``mmreplay snapshot``: one line about the copy."""

import json
import re

import mmreplay


def test_a_snapshot(command, store):
    result = command("snapshot", store, "copy.zarr")
    assert (result.status, result.err) == (0, "")
    assert re.fullmatch(
        r"copy\.zarr: 30 rows, 30 transitions in 1 lane; [\d.]+ kB shared with store\.zarr, "
        r"[\d.]+ kB its own\n",
        result.out,
    )
    assert mmreplay.verify("copy.zarr").sound


def test_of_a_live_store(command, write, play):
    writer = write()
    play(writer, 9)
    result = command("snapshot", "store.zarr", "copy.zarr")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("copy.zarr: 9 rows, 9 transitions in 1 lane; ")
    play(writer, 9)
    writer.close()
    assert len(mmreplay.open("copy.zarr")) == 9


def test_json(command, store):
    result = command("snapshot", store, "copy.zarr", "--json")
    assert (result.status, result.err) == (0, "")
    made = json.loads(result.out)
    assert list(made) == ["path", "lanes", "rows", "transitions", "shared_bytes", "own_bytes"]
    assert [made[name] for name in ("path", "lanes", "rows", "transitions")] == [
        "copy.zarr",
        1,
        30,
        30,
    ]


def test_the_target_exists(command, store, folder):
    (folder / "copy.zarr").mkdir()
    result = command("snapshot", store, "copy.zarr")
    assert (result.status, result.out) == (1, "")
    assert result.err == ("Error: copy.zarr: already exists; choose another path\n")


def test_the_parent_of_the_target_is_a_file(command, store, folder):
    (folder / "afile").write_text("")
    result = command("snapshot", store, "afile/x")
    assert (result.status, result.out) == (1, "")
    assert result.err == "Error: afile: is not a directory; choose another path\n"
