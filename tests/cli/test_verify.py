"""``mmreplay verify``: 0 for a sound store, 1 with the findings."""

import json
import re
import shutil

import pytest

import mmreplay
from tests.support.disks.trees import flip

ADVICE = "`mmreplay repair store.zarr` keeps the rows before the damage"
NONE = "no row before the damage can be sampled: `mmreplay repair --skip-damaged {}` keeps"


def test_a_sound_store(command, store):
    result = command("verify", store)
    assert (result.status, result.err) == (0, "")
    report = mmreplay.verify(store)
    assert result.out == (
        f"store.zarr: sound, closed; 30 rows in 1 lane; {report.files} files, "
        f"{report.bytes / 1000:.0f} kB read\n"
    )


def test_json_is_the_report(command, store):
    result = command("verify", store, "--json")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out) == mmreplay.verify(store).to_json()


def test_findings_are_a_table(command, store, folder):
    (folder / store / "rewards" / "c.1").unlink()
    (folder / store / "actions" / "c.0").write_bytes(b"short")
    (folder / store / "notes.txt").write_text("mine")
    result = command("verify", store)
    assert result.status == 1
    assert "3 findings: not sound; no row before the damage" in result.err
    lines = result.out.splitlines()
    assert lines[:-1] == [
        "damaged       rows      what",
        "actions/c.0   0 to 7    expected 64 bytes, found 5: the file was cut or replaced",
        "rewards/c.1   8 to 15   expected this chunk file, found none",
        "",
        "stray       rows   what",
        "notes.txt          no part of the store: expected arrays and groups of the",
        "                   schema only",
        "",
    ]
    assert re.fullmatch(
        r"store\.zarr: NOT SOUND, closed; 30 rows in 1 lane; \d+ files, [\d.]+ kB read", lines[-1]
    )


def test_a_lost_document_may_have_to_come_back_from_a_copy(command, vector_store, folder):
    (folder / vector_store / "zarr.json").unlink()
    result = command("verify", vector_store)
    assert result.err == f"Error: store.zarr: 1 finding: not sound; {ADVICE}\n"
    assert "from a backup" in command("repair", vector_store).err


def test_a_warning_is_no_failure(command, write, play, die, folder):
    writer = write()
    play(writer, 9)
    die(writer)
    (folder / "store.zarr").rename(folder / "copy.zarr")
    shutil.copytree(folder / "copy.zarr", folder / "store.zarr")
    result = command("verify", "store.zarr")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("warning       rows   what\n.live/state          has 9 rows after")
    assert "store.zarr: sound, crashed; " in result.out


def test_many_findings_are_cut_short(command, write, folder, play):
    with write() as writer:
        play(writer, 500)
    for path in (folder / "store.zarr" / "rewards").glob("c.*"):
        path.write_bytes(b"")
    out = command("verify", "store.zarr").out
    assert re.search(r"^\.\.\. +and 13 more; --json lists all of them$", out, re.MULTILINE)
    assert len(json.loads(command("verify", "store.zarr", "--json").out)["findings"]) == 63


def test_a_damaged_document_is_a_finding(command, store, folder):
    (folder / store / "zarr.json").write_text("{")
    result = command("verify", store)
    assert result.status == 1
    assert result.out.startswith("damaged     rows   what\nzarr.json          expected JSON")
    assert "store.zarr: NOT SOUND, unknown; 0 rows in 0 lanes; 0 files, 0 B read\n" in result.out


def test_a_store_of_many_lanes(command, write, folder, play):
    for name in ("a", "b"):
        with write("run.zarr", lane=name) as writer:
            play(writer, 9)
    assert command("verify", "run.zarr").out.startswith(
        "run.zarr: sound, closed; 18 rows in 2 lanes; "
    )
    flip(folder / "run.zarr" / "lane-00001" / "rewards" / "c.0")
    assert "lane-00001/rewards/c.0   0 to 7   checksum:" in command("verify", "run.zarr").out


def test_many_environments(command, vector_store, folder):
    assert command("verify", vector_store).out.startswith(
        "store.zarr: sound, closed; 30 rows of 2 environments in 1 lane; "
    )
    flip(folder / vector_store / "frames" / "c.1.0.0")
    assert "frames/c.1.0.0   8 to 15   checksum:" in command("verify", vector_store).out


def test_what_is_not_flushed_yet_is_counted(command, write, play):
    writer = write()
    play(writer, 9)
    assert command("verify", "store.zarr").out.startswith(
        "store.zarr: sound, live; 0 rows in 1 lane, 9 not flushed yet; "
    )
    writer.flush()
    assert "; 9 rows in 1 lane; " in command("verify", "store.zarr").out
    writer.close()


@pytest.mark.parametrize("damaged", ["rewards/c.0", "resets/c.0"])
def test_no_row_is_promised_where_repair_keeps_none(command, store, folder, damaged):
    flip(folder / store / damaged)
    result = command("verify", f"{store}/")
    assert NONE.format(store) in result.err
    assert mmreplay.verify(store).from_start
    assert command("repair", store).status == 1


def test_rows_before_a_damaged_inner_chunk_are_promised(command, write, play, folder):
    with write(frame=mmreplay.Field((3,), "uint8", "lz4", chunk=2, shard=8)) as writer:
        play(writer, 7)
    shard = folder / "store.zarr" / "frames" / "c.0.0"
    flip(shard, shard.stat().st_size // 4)  # of the second of four
    assert command("verify", "store.zarr").err.endswith(f"not sound; {ADVICE}\n")
    assert mmreplay.repair("store.zarr").kept > 0


def test_a_writer_has_to_be_ended_before_a_repair(command, write, play, folder):
    writer = write()
    play(writer, 20)
    writer.flush()
    (folder / "store.zarr" / "rewards" / "c.1").unlink()
    assert f"not sound; end its writer; then {ADVICE}" in command("verify", "store.zarr").err


def test_live_and_crashed(command, write, play, die):
    writer = write()
    play(writer, 9)
    writer.flush()
    assert command("verify", "store.zarr").out.startswith("store.zarr: sound, live; 9 rows in")
    die(writer)
    assert command("verify", "store.zarr").out.startswith("store.zarr: sound, crashed; 9 rows")


def test_stray_files_are_named_and_what_to_do_with_them(command, vector_store, folder):
    store = folder / vector_store
    for stray in (".DS_Store", "finals/notes.txt", "rewards/c.7.0"):
        (store / stray).write_text("")
    result = command("verify", vector_store)
    assert result.status == 1
    assert result.err == (
        "Error: store.zarr: 3 findings: not sound; all rows are sound: move the stray files away "
        "(copying over another store leaves some), or `mmreplay repair store.zarr` makes a store "
        "without them\n"
    )
    lines = result.out.splitlines()
    assert lines[0].split() == ["stray", "rows", "what"]
    assert {line.split()[0] for line in lines[1:-2] if not line.startswith(" ")} == {
        *(".DS_Store", "finals/notes.txt", "rewards/c.7.0")
    }
    (store / "rewards" / "c.0.0").unlink()
    result = command("verify", vector_store)
    assert "all rows are sound" not in result.err
    assert "damaged" in result.out
    assert "stray" in result.out
