"""Stores that somebody else made, or tampered with: every call on them ends well, and in time.

Other tests name the single rules: of documents tests/unit/test_format.py, of codecs test_codecs.py,
of shards test_shards.py, of links test_files.py and test_reader.py. Here all of a store is changed
in all ways, also with checksums that fit, and all of the package is let loose on it.
"""

import json
import os
import subprocess
import sys

import pytest

from mmreplay.testing.effort import THOROUGH
from mmreplay.testing.limits import Failure, Guard, Limits, run_limited

pytestmark = [
    pytest.mark.timeout(0 if THOROUGH else 240),
    pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux"),
]

SEED = 20_260_801
N_INPUTS = 205_000 if THOROUGH else 1_200
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
        command = [sys.executable, "-m", "mmreplay.testing.ordeal", str(own), str(SEED), which]
        command += [str(bounds[number]), str(bounds[number + 1])]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    tallies = [json.loads(one.communicate()[0]) for one in running]
    assert [one.returncode for one in running] == [0] * n_workers
    return tallies


def test_whatever_is_in_a_store_nobody_comes_to_harm(tmp_path, measured):
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
    result.add("slowest call", max(one["slowest_s"] for one in tallies), "s", at_most=2)
    most = max(one["memory_bytes"] for one in tallies)
    result.add("most memory", most / (1 << 20), "MiB", at_most=200)
    wrong = [one for one in failures if one.kind != "slow"]
    assert not wrong, "\n".join(map(str, wrong[:20]))


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
        if number == 4:
            open(os.path.join(os.environ["CANARY"], "link", "x")).close()
        while number == 5:
            pass
    return 0.5, []


def test_a_child_that_dies_hangs_or_takes_too_much_is_found_out(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.setenv("CANARY", str(tmp_path / "in"))

    def trial(number, guard):
        try:
            return misbehave(number, guard)
        except MemoryError:
            return 0.0, [("foreign", "MemoryError")]

    limits = Limits(patience_s=2.0)
    tally = run_limited(trial, [0, 1, 2, 3, 5, 6], [tmp_path / "in"], limits)
    assert tally.n_trials == 6
    assert tally.slowest_s == 0.5
    found = [(one.number, one.kind) for one in tally.failures]
    assert found == [(1, "crash"), (2, "foreign"), (3, "outside"), (5, "hang")]


def test_a_guard_sees_through_links(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "x").write_bytes(b"secret")

    def trial(number, guard):
        guard.resolve = True
        with guard.limited():
            (tmp_path / "in" / "link" / "x").read_bytes()
            list((tmp_path / "in").iterdir())
        return 0.0, [("outside", one) for one in guard.seen]

    tally = run_limited(trial, [0], [tmp_path / "in"], Limits())
    assert [one.text for one in tally.failures] == [f"open {tmp_path / 'out' / 'x'}"]
    assert Guard([tmp_path]).seen == []
