"""A ring that is stepped for long, with kills on the way, takes no more than it took at first.

Invariant: whatever a process takes, and whatever the store takes on disk, depends on the capacity
and not on how many rows came before, nor on how often a writer was killed.
"""

import dataclasses
import json
import mmap
import random
import subprocess
import sys

import numpy as np
import pytest

from tests.support.effort import THOROUGH
from tests.support.oracle import checks
from tests.support.processes import ring

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MB = 1e6
if THOROUGH:
    RUN = {"capacity": 200_000, "window": 100_000}
    ROWS, CALM, KILLS, CLOSES = 10_000_000, 1_800_000, 20, 4
    LOOKS = 3
else:  # chunks so short that as many files come and go as in a run of many million rows
    LENGTH = 2_000
    RUN = {"capacity": LENGTH, "chunk": 512, "shard": 512, "window": LENGTH, "plain_rows": 5_000}
    ROWS, CALM, KILLS, CLOSES = 40_000, 12_000, 1, 1
    LOOKS = 2
# Chunk files that are allocated before their first row: those of a megabyte or more.
AHEAD = {"lz4": 0, "raw": 1 if THOROUGH else 0}
MAPS = 8  # more or fewer: how many depends on where between two chunk files the rows are


class Ring:
    """The processes that step one store, one after the other, and what they saw."""

    def __init__(self, path, codec):
        self.path = path
        self.codec = codec
        self.looks = []
        self.kills = 0

    @property
    def rows(self):
        return self.looks[-1].rows if self.looks else 0

    def process(self, rows):
        order = ring.Order(str(self.path), rows=rows, codec=self.codec, **RUN)
        text = json.dumps(dataclasses.asdict(order))
        command = [sys.executable, "-m", "tests.support.processes.ring", text]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def listen(self, process, most=None):
        """Read what it says, until it ends or has said so much."""
        seen = 0
        while seen != most and (line := process.stdout.readline()):
            self.looks.append(ring.Look(**json.loads(line)))
            seen += 1

    def go_on_to(self, rows):
        with self.process(rows) as process:
            self.listen(process)
        assert process.returncode == 0
        assert self.rows == rows

    def die(self, luck):
        """Killed after some windows, in the next one."""
        with self.process(10 * ROWS) as process:  # longer than anybody waits
            self.listen(process, luck.randint(1, LOOKS))
            process.kill()
            self.listen(process)  # a last line may be half written
        assert process.returncode == -9
        self.kills += 1


@pytest.mark.deep(only=True)
@pytest.mark.parametrize("codec", ["lz4", "raw"])
def test_a_long_run_takes_no_more_in_the_end_than_at_first(tmp_path, measured, codec):
    luck = random.Random(codec if not THOROUGH else None)
    store = Ring(tmp_path / "ring.zarr", codec)
    store.go_on_to(RUN["capacity"] * 3 // 2 // RUN["window"] * RUN["window"])
    store.go_on_to(CALM)  # in a process that has found a full ring, as the last one will
    for leg in luck.sample(["kill"] * KILLS + ["close"] * CLOSES, KILLS + CLOSES):
        if leg == "kill":
            store.die(luck)
        else:
            # The one before may have been killed with the next window done, and not told.
            store.go_on_to(store.rows + 2 * RUN["window"])
    tenth = ROWS // 10
    # A short run ends long after its last opening: what is never let go of is seen to grow. The one
    # before may have been killed with the next window done, and not told.
    end = ROWS if THOROUGH else store.rows + RUN["window"] + 10 * RUN["capacity"] + tenth
    assert store.rows < end - tenth
    store.go_on_to(end)
    checks.check_verified(store.path)

    looks = store.looks
    full = [one for one in looks if one.rows > RUN["capacity"] * 2]
    assert {one.sampled for one in full} == {RUN["capacity"]}
    assert {one.found - one.files for one in looks} <= set(range(AHEAD[codec] + 1))
    # Each process takes some time, and rows, until it has touched all that it will.
    warm = [one for one in full if one.rows - one.opened_at > RUN["capacity"] * 2]
    first = [one for one in warm if one.rows <= warm[0].rows + tenth]
    last = [one for one in warm if one.rows > end - tenth]
    assert min(len(first), len(last)) > 1

    result = measured(f"long_run_{codec}", rows=ROWS, kills=KILLS, closes=CLOSES, **RUN)
    result.add("rows", store.rows, "", at_least=ROWS)
    result.add("kills", store.kills, "", at_least=KILLS)
    result.add("rows of the ring", RUN["capacity"], "")
    result.add("batches checked", sum(one.batches for one in looks), "")
    for what, unit, most in (
        ("anon", "MB", 4),
        ("file", "MB", 4),
        ("deleted", "MB", 4),
        ("descriptors", "", 0),
        ("file_maps", "", MAPS),
        ("threads", "", 0),
        ("other files", "", 4),  # one more of checksums for each 1,024 chunk files
        ("disk", "MB", 2),
    ):
        factor = MB if unit else 1
        before, after = (
            np.array([taken(one, what) for one in some]) / factor for some in (first, last)
        )
        # Memory and disk by what is usual: one look in twenty finds the rows in one chunk file of
        # each column more than the others. What is counted by the most there ever was.
        usual = np.median if what in {"anon", "file", "file_maps", "disk"} else np.max
        result.add(f"{what}, first tenth", float(usual(before)), unit)
        result.add(f"{what}, last tenth", float(usual(after)), unit)
        result.add(f"{what}, growth", float(usual(after) - usual(before)), unit, at_most=most)
    million = max(tenth, RUN["window"])
    for what, unit, rate, least in (
        ("rows a second", "rows/s", lambda one: RUN["window"] / one.seconds, None),
        ("rows a second of the processor", "rows/s", lambda one: RUN["window"] / one.cpu_s, None),
        # A machine has other things to do: its own speed may change by a half within a minute.
        ("speed by a ring in memory", "x", lambda one: one.plain_s / one.seconds, 0.9),
    ):
        rates = [
            float(np.median([rate(one) for one in some]))
            for some in (first[: million // RUN["window"]], last[-million // RUN["window"] :])
        ]
        result.add(f"{what}, first million", rates[0], unit)
        result.add(f"{what}, last million", rates[1], unit)
        result.add(f"{what}, last by first", rates[1] / rates[0], "x", at_least=least)
    result.details["looks"] = [dataclasses.asdict(one) for one in warm]
    if not THOROUGH:
        check_counts(first, last)


def taken(look, what):
    return look.taken["files"] - look.found if what == "other files" else look.taken[what]


def check_counts(first, last):
    """In a run so short that nothing else moves, no count may grow by one, but for maps.

    A flush that comes late leaves some more for a while: the last looks' least counts. Maps of files
    that were just evicted are let go of in turn: of these there may be as many, of a page.
    """
    spare = {"file_maps": MAPS, "deleted": MAPS * mmap.PAGESIZE}
    for what in ("descriptors", "file_maps", "deleted", "threads", "other files"):
        seen = [[taken(one, what) for one in some] for some in (first, last)]
        assert min(seen[1]) <= max(seen[0]) + spare.get(what, 0), what
    # The checksums of chunk files that are gone stay, in four bytes each: a page at times.
    seen = [[one.taken["disk"] for one in some] for some in (first, last)]
    assert min(seen[1]) <= max(seen[0]) + 2 * 4096
