"""Stores that somebody else made, or tampered with: every call on them ends well, and in time.

Other tests name the single rules: of documents tests/unit/format/test_parse.py, of codecs test_compression.py,
of shards test_shards.py, of links test_reading.py and test_reader.py. Here all of a store is changed
in all ways, also with checksums that fit, and all of the package is let loose on it.
"""

import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import mmreplay
from mmreplay_cli import main
from tests.support.documents import drop_copy, edit
from tests.support.effort import THOROUGH, by_effort
from tests.support.tampering import abuse
from tests.support.tampering.fixtures import Victim, pristine_stores
from tests.support.tampering.limits import Failure, Limits, run_limited
from tests.support.writers import drain, make_lanes

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux"),
]

SEED = 20_260_801
N_INPUTS = by_effort(8, 100, 205_000)
N_WORKERS = os.cpu_count() or 1
KINDS = ("crash", "hang", "foreign", "outside", "accepted", "memory", "slow")


def ordeals(folder, n_inputs):
    """All special cases and random inputs, in as many processes as there are cores."""
    n_workers = N_WORKERS if THOROUGH else 1
    bounds = [n_inputs * number // n_workers for number in range(n_workers + 1)]
    running = []
    for number in range(n_workers):
        own = folder / str(number)
        own.mkdir()
        which = "all" if THOROUGH else "quick"
        command = [
            sys.executable,
            "-m",
            "tests.support.tampering.abuse",
            str(own),
            str(SEED),
            which,
        ]
        command += [str(bounds[number]), str(bounds[number + 1])]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    tallies = [json.loads(one.communicate()[0]) for one in running]
    assert [one.returncode for one in running] == [0] * n_workers
    return tallies


@pytest.mark.deep
def test_no_content_of_a_store_can_do_harm(tmp_path, measured):
    result = measured("hostile", seed=SEED)
    tallies = ordeals(tmp_path, N_INPUTS)
    failures = [Failure(**one) for tally in tallies for one in tally["failures"]]
    counts = {kind: sum(one.kind == kind for one in failures) for kind in KINDS}
    result.add("inputs", sum(one["n_trials"] for one in tallies), "", at_least=200_000)
    result.add("crashes", counts["crash"], "", at_most=0)
    result.add("hangs", counts["hang"], "", at_most=0)
    result.add("errors of another kind", counts["foreign"], "", at_most=0)
    result.add("reads and writes outside the store", counts["outside"], "", at_most=0)
    result.add("wrong data accepted by verify", counts["accepted"], "", at_most=0)
    slowest = max(tallies, key=lambda one: one["slowest_s"])
    result.details["slowest input"] = slowest["slowest"]
    result.add("slowest call", slowest["slowest_s"], "s", at_most=2)
    most = max(one["memory_bytes"] for one in tallies)
    result.add("most memory", most / (1 << 20), "MiB", at_most=200)
    wrong = [one for one in failures if one.kind != "slow"]
    assert not wrong, "\n".join(map(str, wrong[:20]))


@pytest.mark.deep
@pytest.mark.parametrize("name", ["vector", "crashed vector"])
def test_steps_that_break_a_rule_are_found_and_do_no_harm(tmp_path, name):
    ordeal = abuse.Ordeal(tmp_path, pristine_stores(tmp_path / "made", [name]), SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ordeal.read_broken_rules() == []


# ---------------------------------------------------------------- the limits hold


def misbehave(number, guard):
    """A trial of each kind of misbehaviour."""
    with guard.limited():
        if number == 1:
            os.abort()
        if number == 2:
            bytearray(1 << 30)
        if number == 3:
            guard.seen.clear()
            os.listdir("/")
            return 0.0, [("outside", one) for one in guard.seen]
        if number == 5:
            threading.Event().wait()
    return 0.5, []


def test_a_child_that_dies_hangs_or_takes_too_much_is_found_out(tmp_path):
    (tmp_path / "in").mkdir()

    def trial(number, guard):
        try:
            return misbehave(number, guard)
        except MemoryError:
            return 0.0, [("foreign", "MemoryError")]

    tally = run_limited(trial, [0, 1, 2, 3, 6], [tmp_path / "in"])
    assert tally.n_trials == 5
    assert tally.slowest_s == 0.5
    found = [(one.number, one.kind) for one in tally.failures]
    assert found == [(1, "crash"), (2, "foreign"), (3, "outside")]
    tally = run_limited(trial, [5], [tmp_path / "in"], Limits(patience_s=0.2))
    assert [(one.number, one.kind) for one in tally.failures] == [(5, "hang")]


# ---------------------------------------------------------------- what was found


@pytest.fixture
def store(tmp_path):
    """A closed store of 39 steps."""
    path = tmp_path / "s.zarr"
    record(path).close()
    return path


def record(path, codec="lz4", n_steps=39, **settings):
    shard = None if codec == "raw" else 8
    frame, action = mmreplay.Field((3, 4), "uint8", codec, 4, shard), mmreplay.Field(())
    writer = mmreplay.create(path, frame, action, flush_s=0, **settings)
    writer.reset(np.zeros((3, 4), np.uint8))
    for step in range(n_steps):
        writer.step(1, step, np.full((3, 4), step, np.uint8))
    return writer


@pytest.fixture
def crashed(tmp_path):
    """A store as a killed writer leaves it, whose state page is trusted."""
    writer = record(tmp_path / "alive.zarr")
    writer.flush()
    drain(writer)  # a copy takes a while
    path = tmp_path / "crashed.zarr"
    shutil.copytree(tmp_path / "alive.zarr", path)
    writer.close()
    set_words(path, {})
    return path


def set_words(path, words):
    """Words of the state page of the steps; and those of which file and directory both are."""
    for log, changes in ((path, words), (path / "finals", {})):
        page = log / ".live" / "state"
        about, home = page.stat(), log.stat()
        data = bytearray(page.read_bytes())
        own = {5: about.st_dev, 6: about.st_ino, 9: home.st_dev, 10: home.st_ino, 11: 0}
        for number, value in {**changes, **own}.items():
            struct.pack_into("<Q", data, 8 * number, value)
        with page.open("r+b") as file:
            file.write(data)


def own(change):
    return lambda document: change(document["attributes"]["mmreplay"])


@pytest.fixture
def precious(tmp_path):
    """Files of somebody else."""
    folder = tmp_path / "precious"
    (folder / "deep").mkdir(parents=True)
    for name in ("zarr.json", "c.0", "deep/x", "state"):
        (folder / name).write_bytes(b"mine")
    yield folder
    assert {one.name for one in folder.rglob("*")} == {"zarr.json", "c.0", "deep", "x", "state"}
    assert {one.read_bytes() for one in folder.rglob("*") if one.is_file()} == {b"mine"}


def test_litter_of_a_lane_that_is_a_link_is_removed_and_not_what_it_leads_to(tmp_path, precious):
    field = mmreplay.Field((2,))
    path = tmp_path / "lanes.zarr"
    mmreplay.create(path, field, field, lane="a", flush_s=0).close()
    (path / ".lane-00001.tmp").symlink_to(precious)
    mmreplay.create(path, lane="b", flush_s=0).close()


@pytest.mark.parametrize("name", ["resets", "non_terminals"])
def test_checksums_of_flags_are_not_written_through_a_link(store, precious, name):
    shutil.rmtree(store / "checksums" / name)
    (store / "checksums" / name).symlink_to(precious)
    with pytest.raises(mmreplay.CorruptStoreError, match="found a link"):
        mmreplay.create(store, append=True, flush_s=0)


def append(path):
    mmreplay.create(path, append=True, flush_s=0).close()


def copy(path):
    mmreplay.snapshot(path, path.with_name("copy.zarr"))


def test_no_final_observation_is_looked_for_behind_a_link(tmp_path):
    made = pristine_stores(tmp_path / "made", ["vector", "crashed vector"])
    victims = [Victim(tmp_path / f"in-{one.name}" / "s.zarr", one) for one in made]
    for one in victims:
        shutil.copytree(one.path, tmp_path / "out" / one.pristine.name)
    calls = (mmreplay.open, mmreplay.verify, mmreplay.repair, append, copy)
    cases = list(itertools.product(victims, ("finals", "finals/id"), ("out", "itself"), calls))
    cases = cases[:: by_effort(3, 1, 1)]  # no divisor of how many calls there are

    def trial(number, guard):
        victim, log, target, call = cases[number]
        link = victim.spoil(log)
        link.symlink_to(tmp_path / "out" / victim.pristine.name / log if target == "out" else link)
        guard.resolve = True
        guard.seen.clear()
        found = []
        with guard.limited():
            try:
                done = call(victim.path)
            except (mmreplay.CorruptStoreError, mmreplay.FormatError):
                done = None
            except Exception as error:
                found.append(("foreign", repr(error)))
        if done is not None and (call is not mmreplay.verify or done.sound):
            found.append(("accepted", f"{call.__name__}: {log} is a link"))
        victim.restore()
        return 0.0, found + [("outside", one) for one in guard.seen]

    tally = run_limited(trial, range(len(cases)), [one.path.parent for one in victims])
    assert (tally.n_trials, tally.failures) == (len(cases), [])


def test_repair_takes_nothing_from_behind_a_link(crashed, tmp_path):
    shutil.move(crashed / ".live", tmp_path / "out")
    (crashed / ".live").symlink_to(tmp_path / "out")

    def trial(number, guard):
        guard.resolve = True
        with guard.limited():
            with pytest.raises(mmreplay.CorruptStoreError, match="found a link"):
                mmreplay.repair(crashed)
        return 0.0, [("outside", one) for one in guard.seen if str(tmp_path / "out") in one]

    assert run_limited(trial, [0], [crashed]).failures == []
    assert {one.stat().st_nlink for one in (tmp_path / "out").iterdir()} == {1}


def test_rows_that_nobody_wrote_take_verify_no_time(store):
    rows = (1 << 40) - 1
    edit(store / "zarr.json", own(lambda own: own.update(rows=rows)))
    columns = ("frames", "actions", "rewards", "non_terminals", "resets", "ends", "step")
    for name in columns:
        edit(store / name / "zarr.json", lambda document: document["shape"].__setitem__(0, rows))
    report = mmreplay.verify(store)
    assert 4 < len(report.findings) < 40
    gaps = [one for one in report.findings if "after it, found none" in one.message]
    assert {one.array for one in gaps} == {*columns}
    assert {one.rows[1] for one in gaps} == {rows}


def test_a_gap_of_many_lanes_is_one_finding_and_no_repair(tmp_path):
    field = mmreplay.Field((2,))
    path = tmp_path / "lanes.zarr"
    make_lanes(path, n_lanes=2, frame=field, action=field).close()
    (path / "lane-00001").rename(path / "lane-99999")
    texts = [str(one) for one in mmreplay.verify(path).findings]
    assert len(texts) == 1
    assert "and so are the 99,997 after it" in texts[0]
    with pytest.raises(mmreplay.CorruptStoreError, match="expected lanes 0 to 99,999, found 2"):
        mmreplay.repair(path)


@pytest.mark.parametrize("depth", [101, 500, 900, 980])
def test_json_that_is_too_deep_to_be_shown_is_refused(store, depth):
    deep = "[" * depth + "]" * depth
    for name in ("zarr.json", "rewards/zarr.json"):  # with the copy of it, and without one
        text = (store / name).read_text()
        assert ": 0.0" in text
        (store / name).write_text(text.replace(": 0.0", f": {deep}", 1))
        with pytest.raises(mmreplay.FormatError, match=r"levels|JSON"):
            mmreplay.open(store)
        if name == "zarr.json":
            (store / name).write_text(text)
            drop_copy(store)


@pytest.mark.parametrize(
    "words",
    [{4: 1 << 40}, {4: (1 << 64) - 1}, {2: (1 << 64) - 1}, {2: 41}, {2: 1}],
    ids=["head", "largest head", "base", "base past the head", "base within the context"],
)
def test_a_state_page_that_cannot_be_is_damage(crashed, words):
    set_words(crashed, words)
    for call in (mmreplay.open, lambda path: mmreplay.create(path, append=True, flush_s=0)):
        with pytest.raises(mmreplay.CorruptStoreError, match=r"expected a head <|expected base 0"):
            call(crashed)


@pytest.mark.parametrize("command", ["info", "verify", "episodes"])
def test_no_terminal_obeys_what_a_store_says(store, command):
    odd = "\x1b[2J\x07\ud800\u202e\r"
    edit(store / "zarr.json", own(lambda own: own.update(env={"id": odd, odd: odd}, name=odd)))
    result = CliRunner().invoke(main, [command, str(store)])
    assert result.exit_code in (0, 1)
    assert all(one.isprintable() or one == "\n" for one in result.output)


@pytest.mark.parametrize("name", by_effort(["frames"], *[["frames", "actions"]] * 2))
def test_repair_takes_no_memory_for_files_of_holes_without_their_layout(tmp_path, name):
    path = tmp_path / "s.zarr"
    record(path, "raw").close()
    (path / name / "zarr.json").unlink()
    for file in (path / name).glob("c.*"):
        os.truncate(file, 64 << 30)
    code = """
import sys, mmreplay
try:
    mmreplay.repair(sys.argv[1])
except mmreplay.MmreplayError as error:
    print(error)
"""
    limited = f"ulimit -v {2 << 20}; exec {sys.executable} -c '{code}' {path}"
    done = subprocess.run(["/bin/sh", "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["state", "checkpoint", "frames.tail"])
def test_a_link_beside_the_rows_is_damage_to_a_writer_too(crashed, tmp_path, name):
    (crashed / ".live" / name).rename(tmp_path / "outside")
    (crashed / ".live" / name).symlink_to(tmp_path / "outside")
    before = (tmp_path / "outside").read_bytes()
    with pytest.raises(mmreplay.CorruptStoreError, match="found a link"):
        mmreplay.create(crashed, append=True, flush_s=0)
    assert (tmp_path / "outside").read_bytes() == before
