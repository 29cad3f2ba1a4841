"""Stores that are made, closed, opened again, copied and removed while others open and read them.

Invariant: who opens a path gets a store that was there, whole, or an error of ours that is true: no
row of two stores that had the path one after the other, and nothing of a store that is half removed.
"""

import collections
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay.system import memory_maps
from tests.support.disks import faults
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.script import IMAGE_AND_JOINTS, Script, append_rows

pytestmark = pytest.mark.deep(only=True)
N_PATHS, N_READERS = 2, by_effort(1, 1, 3)
STACK = 3
LEAST = by_effort(1, 15, 1_000)
BEGUN, ENDED = 0, 1  # words of what is removed in the place: how often


def script_of(path, seed):
    return Script(str(path), "", seed, IMAGE_AND_JOINTS, action_chunk=7, capacity=60)


def removals(path):
    """Two words of each path that its owner and its readers share."""
    return memory_maps.map_file(path.with_suffix(".removals"), 16, writable=True).view("<u8")


# ---------------------------------------------------------------- who writes


class Owner:
    """Makes one store after the other at a path, and removes each."""

    def __init__(self, path, seed):
        self.path, self.luck = path, random.Random(seed)
        self.removals = removals(path)
        self.counts = collections.Counter()

    def write(self, script):
        writer = script.open(metadata={"seed": script.seed})
        starts = [None]
        for _ in range(self.luck.randint(1, 90)):
            append_rows(writer, script.plot, starts)
        if self.luck.random() < 0.7:
            writer.close()
            self.counts["closed"] += 1
        else:
            faults.kill(writer)
            self.counts["left as by a crash"] += 1

    def live(self, seed):
        """One store from beginning to end."""
        script = script_of(self.path, seed)
        for _ in range(self.luck.randint(1, 3)):
            self.write(script)
        self.counts["made"] += 1
        copy = self.path.with_suffix(".copy")
        if self.luck.random() < 0.5:
            mmreplay.snapshot(self.path, copy)
            self.counts["copied"] += 1
        if self.luck.random() < 0.5:
            away = self.path.with_suffix(".away")
            self.path.rename(away)
            if copy.exists() and self.luck.random() < 0.5:
                copy.rename(self.path)
            shutil.rmtree(away)
            self.counts["renamed, then removed"] += 1
        if self.path.exists():
            self.removals[BEGUN] += 1
            shutil.rmtree(self.path)
            self.removals[ENDED] += 1
            self.counts["removed in its place"] += 1
        shutil.rmtree(copy, ignore_errors=True)


def own(path, seed, over):
    owner = Owner(path, seed)
    try:
        while not over.exists():
            owner.live(owner.luck.randrange(2**31))
    finally:
        over.touch()
    return owner.counts


# ---------------------------------------------------------------- who reads


def seed_of(store):
    return store.info()["env"]["seed"]


def check_open(path):
    with mmreplay.open(path) as store:
        seed = seed_of(store)
        plot = script_of(path, seed).plot
        view = store.lanes[0]
        rows = np.arange(view.base, view.rows)
        try:
            columns = {name: view.frames[name][rows] for name in plot.frames}
            actions = view.actions[rows]
        except IndexError:
            assert seed_of(store) != seed  # which has fewer
        kept = rows >= view.base  # what was evicted meanwhile reads as zeros
        if seed_of(store) != seed:
            return "followed to the next store"
        for name, found in columns.items():
            assert (plot.frames[name].read(found[kept])[:, 1] == rows[kept]).all()
        for row, action in zip(rows[kept].tolist(), actions[kept].tolist(), strict=True):
            assert action in (plot.action(0, row), 0)  # of a final row it is 0
    return "opened"


def check_load(path):
    with mmreplay.load(path, stack=STACK) as data:
        seed = seed_of(data.store)
        batches = [data.sample(8) for _ in range(4)]
        if seed_of(data.store) != seed:
            return "followed to the next store"
        for batch in batches:
            script_of(path, seed).plot.check_batch(batch, STACK)
    return "loaded"


def check_info(path):
    about = mmreplay.open(path).info()
    assert about["path"] == str(path)
    assert about["transitions"] <= about["rows"]
    assert about["kept_rows"] <= about["rows"]
    assert about["state"] in {"live", "crashed", "closed"}
    return "described"


def check_pattern(path):
    with mmreplay.load(str(path.parent / "*.zarr"), stack=STACK) as data:
        data.sample(8)
    return "loaded by a pattern"


def look(paths, seed, over):
    """Read until enough was seen, or an owner has failed; what came of it, by name."""
    luck, counts = random.Random(seed), collections.Counter()
    words = {path: removals(path) for path in paths}
    while not over.exists() and min(counts["opened"], counts["loaded"]) < LEAST:
        path = luck.choice(paths)
        ended = [int(one[ENDED]) for one in words.values()]
        call = luck.choice([check_open, check_load, check_info, check_pattern])
        try:
            counts[call(path)] += 1
        except mmreplay.EmptyBufferError:
            counts["of a store without a transition"] += 1
        except mmreplay.StoreNotFoundError:
            counts["told that there is none"] += 1
        except mmreplay.MmreplayError:
            begun = [int(one[BEGUN]) for one in words.values()]
            if ended == begun:  # nobody was removing one
                raise
            counts["told of one that was being removed"] += 1
    return counts


# ---------------------------------------------------------------- all of them


def test_stores_that_come_and_go_are_read_whole_or_not_at_all(tmp_path, measured):
    luck = random.Random(None if THOROUGH else 5)
    paths = [tmp_path / f"{number}.zarr" for number in range(N_PATHS)]
    for path in paths:
        path.with_suffix(".removals").write_bytes(bytes(16))
    over = tmp_path / "over"
    orders = [[over, "own", path] for path in paths]
    orders += [[over, "look", *paths]] * N_READERS
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(luck.randrange(2**31)), *map(str, order)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in orders
    ]
    told = [one.communicate() for one in running[N_PATHS:]]
    over.touch()
    told = [one.communicate() for one in running[:N_PATHS]] + told
    wrong = [errors for one, (_, errors) in zip(running, told, strict=True) if one.returncode]
    assert not wrong, "\n".join(wrong)[-6000:]
    counts = [collections.Counter(json.loads(out.splitlines()[-1])) for out, _ in told]
    done, seen = (sum(some, collections.Counter()) for some in (counts[:2], counts[2:]))
    result = measured("coming_and_going", paths=N_PATHS, readers=N_READERS)
    for what, count in sorted(done.items()):
        result.add(f"stores {what}", count, "", at_least=20)
    for what, count in sorted(seen.items()):
        result.add(what, count, "")
    result.add("violations", 0, "", at_most=0, note="the first one ends the run")
    assert seen["opened"]
    assert seen["loaded"]
    assert done["made"]
    left = {path.suffix for path in tmp_path.iterdir() if path != over}
    assert left == {".removals"}


if __name__ == "__main__":
    number, end, what, *where = sys.argv[1:]
    if what == "own":
        result = own(Path(where[0]), int(number), Path(end))
    else:
        result = look([Path(one) for one in where], int(number), Path(end))
    print(json.dumps(result))
