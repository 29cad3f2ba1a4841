"""``mmreplay repair``: what was damaged, what is kept, what is lost, and what to do about it."""

import json
import shutil

import mmreplay


def test_a_sound_store(command, store, folder):
    result = command("repair", store)
    assert (result.status, result.out, result.err) == (0, "store.zarr: sound; nothing to do\n", "")
    assert [one.name for one in folder.iterdir()] == ["store.zarr"]


def test_a_store_left_by_a_crash(command, write, play, die):
    writer = write()
    play(writer, 9)
    die(writer)
    result = command("repair", "store.zarr")
    assert (result.status, result.err) == (0, "")
    assert result.out == "store.zarr: sound, but left open by a crash; closed, nothing lost\n"
    assert mmreplay.verify("store.zarr").state == "closed"


def test_a_damaged_store(command, store, folder):
    (folder / store / "rewards" / "c.1").unlink()
    result = command("repair", store)
    assert (result.status, result.err) == (0, "")
    assert result.out == (
        "damaged       rows      what\n"
        "rewards/c.1   8 to 15   expected this chunk file, found none\n"
        "\n"
        "store.zarr: repaired; kept 8 of 30 transitions, 22 lost\n"
        "store.zarr.damaged: the damaged store, unchanged; the two share their sound "
        "files\n"
        "14 of the lost transitions are sound, after the damage; to keep them with new ids: "
        "`rm -r store.zarr && mv store.zarr.damaged store.zarr && mmreplay repair "
        "--skip-damaged store.zarr`\n"
    )
    assert mmreplay.verify(store).sound


def test_status_1_where_no_row_could_be_kept(command, store, folder):
    (folder / store / "rewards" / "c.0").unlink()
    result = command("repair", store)
    assert "store.zarr: repaired; kept 0 of 30 transitions, 30 lost\n" in result.out
    assert (result.status, result.err) == (
        1,
        "Error: store.zarr: no transition could be kept; the store as it was is store.zarr.damaged\n",
    )
    assert command("repair", store).status == 0  # sound by now, and empty


def test_status_1_where_nothing_tells_whether_there_were_rows(command, write, folder, die):
    die(write(n_lanes=2))
    (folder / "store.zarr" / "lane-00000" / "zarr.json").unlink()
    result = command("repair", "store.zarr", "--json")
    done = json.loads(result.out)
    assert (done["kept"], done["lost"], done["lanes"][0]["missing"]) == (0, 0, True)
    assert (result.status, "no transition could be kept" in result.err) == (1, True)


def test_a_path_in_a_command_is_quoted(command, store, folder):
    path = "my $(touch x) store.zarr"
    (folder / store).rename(folder / path)
    (folder / path / "rewards" / "c.1").unlink()
    result = command("verify", path)
    assert result.err.endswith(
        "not sound; `mmreplay repair 'my $(touch x) store.zarr'` keeps the rows before the damage\n"
    )
    result = command("repair", path)
    assert result.out.endswith(
        "with new ids: `rm -r 'my $(touch x) store.zarr' && mv 'my $(touch x) store.zarr.damaged' "
        "'my $(touch x) store.zarr' && mmreplay repair --skip-damaged 'my $(touch x) store.zarr'`\n"
    )


def test_a_copy_of_a_store_left_by_a_crash_is_told_once(command, write, play, die, folder):
    writer = write("one.zarr")
    play(writer, 9)
    writer.flush()
    play(writer, 9)
    die(writer)
    shutil.copytree("one.zarr", "copy.zarr")
    assert command("verify", "copy.zarr").out.count("last flush") == 1
    result = command("repair", "copy.zarr")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("copy.zarr: sound, but left open by a crash; closed, ")
    assert result.out.count("after the last flush") == 1


def test_what_cannot_be_repaired_is_named_once(command, store, folder):
    (folder / store / "zarr.json").write_text("{")
    result = command("repair", store)
    assert result.status == 1
    assert result.err.startswith(f"Error: {store}: cannot be repaired: zarr.json: expected JSON")
    assert result.err.count(store) == 1


def test_skip_damaged(command, store, folder):
    (folder / store / "rewards" / "c.1").unlink()
    result = command("repair", "--skip-damaged", store)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[3:] == [
        "store.zarr: repaired; kept 22 of 30 transitions, 8 lost",
        "store.zarr.damaged: the damaged store, unchanged; the two share their sound files",
    ]


def test_a_store_of_many_lanes(command, write, folder, play):
    for name in ("a", "b", "c"):
        with write("run.zarr", lane=name) as writer:
            play(writer, 9, "terminated")
            play(writer, 9)
    shutil.rmtree(folder / "run.zarr" / "lane-00001")
    (folder / "run.zarr" / "lane-00002" / "rewards" / "c.0").unlink()
    result = command("repair", "run.zarr", "--skip-damaged")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[-6:] == [
        "lane-00000     18      0",
        "lane-00001      0      0   was lost; replaced by an empty one",
        "lane-00002     10      8   rows 0 to 7 damaged; the rows after them have new ids",
        "",
        "run.zarr: repaired; kept 28 of 36 transitions, 8 lost, and all that was in 1 lane",
        "run.zarr.damaged: the damaged store, unchanged; the two share their sound files",
    ]


def test_json(command, store, folder):
    (folder / store / "rewards" / "c.1").unlink()
    findings = mmreplay.verify(store).to_json()["findings"]
    result = command("repair", store, "--json")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out) == {
        "path": "store.zarr",
        "changed": True,
        "before": "store.zarr.damaged",
        "kept": 8,
        "lost": 22,
        "beyond": 14,
        "untrusted": 0,
        "findings": findings,
        "lanes": [
            {
                "lane": "",
                "kept": 8,
                "lost": 22,
                "beyond": 14,
                "damaged": [[8, 16]],
                "renumbered": False,
                "missing": False,
                "untrusted": 0,
            }
        ],
    }


def test_a_store_that_is_being_written(command, write, play):
    play(write(), 9)
    result = command("repair", "store.zarr")
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("Error: store.zarr: open for writing already, in this process")
