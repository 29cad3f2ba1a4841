"""Any call to the disk fails, of any kind, once or from then on: it is told, or made good.

Invariant: nothing but the documented errors comes out; what was committed stays. After a full disk
the same writer goes on, after a broken one the next; neither leaves anything behind.
"""

import dataclasses
import errno
import json
import random
import shutil
from pathlib import Path

import pytest

import mmreplay
from tests.support.disks import faults
from tests.support.disks.trees import contents
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.script import IMAGE_AND_JOINTS
from tests.support.processes import actor, aftermath

pytestmark = pytest.mark.deep

RAW = {"frame": [(6, 8), "uint8", "raw", 5]}
LZ4 = {"frame": [(6, 8), "uint8", "lz4", 3, 6]}
MODES = [(error, forever) for error in (errno.EIO, errno.ENOSPC) for forever in (False, True)]
MODES.append((errno.EDQUOT, True))


def course(frame, before, acts, **more):
    """`before`: done while the disk is sound. In the end the next writer takes over."""
    begin = before.split("; ") if before else []
    every = [*begin, *acts.split("; "), "heal", "drop", "open", "rows 2", "close"]
    return actor.Script(
        "", "", 5, frame, **{"action_chunk": 7} | more, acts=every, watch_from=len(begin)
    )


COURSES = {
    "create": course(LZ4, "", "open; rows 1"),
    "create many": course(IMAGE_AND_JOINTS, "", "open; rows 1", envs=2),
    "make a lane": course(RAW, "", "open; rows 1; close; open; rows 1", lane="actor-3"),
    "append": course(RAW, "open; rows 4", "rows 14"),
    "append and seal": course(LZ4, "open; rows 4", "rows 15"),
    "append in the background": course(
        LZ4, "open; rows 4", "rows 9; pause 0.006; rows 6", flush_s=0.002
    ),
    "flush": course(IMAGE_AND_JOINTS, "open; rows 20", "flush; rows 3; flush"),
    "evict": course(RAW, "open; rows 95", "flush; rows 9; flush", capacity=20),
    "evict shards": course(LZ4, "open; rows 95", "flush; rows 9; flush", capacity=20),
    "close": course(LZ4, "open; rows 15", "close"),
    "close many": course(IMAGE_AND_JOINTS, "open; rows 12", "close", envs=2),
    "reopen": course(LZ4, "open; rows 15; close", "open; rows 2; close"),
    "reopen many": course(IMAGE_AND_JOINTS, "open; rows 12; close", "open; rows 2", envs=2),
    "recover": course(LZ4, "open; rows 15; drop; litter", "open again; rows 2"),
    "recover after a reboot": course(
        LZ4, "elsewhere; open; rows 4; flush; rows 15; reboot", "open; rows 2"
    ),
    "priorities": course(
        RAW, "short; buffer; rows 9", "batch; flush; rows 2; close; buffer; batch; close"
    ),
}


PARTS = {
    "making": ("create", "make"),
    "writing": ("append", "flush", "evict", "priorities"),
    "closing": ("close",),
    "opening": ("reopen", "recover"),
}
"""How the courses of each begin; apart, so that they can be tried side by side."""


def perform(actors, folder, name, **changes):
    """A course from beginning to end; what is left is whole, closed, and nothing else."""
    path, report = str(folder / "s.zarr"), folder / "report"
    script = dataclasses.replace(COURSES[name], path=path, report=str(report), **changes)
    chronicle = actor.Chronicle(script)
    try:
        assert actors.wait(actors.start(script)) == 0
        aftermath.check_closed(chronicle)
    except BaseException as error:
        error.add_note(f"failed in the course {name!r}: {changes}")
        raise
    calls = json.loads(Path(f"{report}.counts").read_text()) if script.count else {}
    shutil.rmtree(path)
    for one in folder.glob("report*"):
        one.unlink()
    assert not list(folder.iterdir())
    return calls


def places(calls):
    """(call, which of them) of all calls that were counted."""
    return [(name, at) for name, n in sorted(calls.items()) for at in range(1, n + 1)]


@pytest.mark.parametrize("part", PARTS)
def test_a_failing_system_call_is_reported_or_retried_and_costs_no_row(
    actors, tmp_path, measured, part
):
    luck = random.Random(part)
    names = [name for name in COURSES if name.startswith(PARTS[part])]
    names = luck.sample(names, min(by_effort(1, 6, 9), len(names)))
    n_calls = n_trials = 0
    for name in names:
        every = places(perform(actors, tmp_path, name, count=True))
        trials = [(*place, *mode) for place in every for mode in MODES]
        for call, at, error, forever in luck.sample(trials, by_effort(1, 2, len(trials))):
            perform(actors, tmp_path, name, fails=(call, error, at, forever))
        n_calls, n_trials = n_calls + len(every), n_trials + len(trials)
    result = measured(f"failing_calls-{part}", courses=names, modes=len(MODES))
    result.add("calls", n_calls, "", at_least=300)
    result.add("calls that failed", n_trials, "", at_least=1_200)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_close_that_could_not_remove_what_is_private_comes_to_its_end(actors, tmp_path, error):
    perform(actors, tmp_path, "close", fails=("unlink", error, 2, True))
    perform(actors, tmp_path, "close", fails=("rmdir", error, 1, True))


# ---------------------------------------------------------------- snapshots and repairs


def write(path, kind):
    script = actor.Script(str(path), "", 5, IMAGE_AND_JOINTS, action_chunk=7, envs=2)
    aftermath.left(script, kind, 30)


def told(call):
    """Whether a call failed, with one of the errors that it may fail with."""
    try:
        call()
    except (mmreplay.DiskFullError, mmreplay.FailedStoreError):
        return True
    return False


def count_calls(call):
    with faults.faulty_disk() as disk:
        call()
    return places(disk.counts)


def some_trials(every, seed):
    """Each call once, in a mode that is drawn; some of them where it has to be quick."""
    luck = random.Random(seed)
    trials = [(*place, *luck.choice(MODES)) for place in every]
    return luck.sample(trials, by_effort(2, 6, len(trials)))


@pytest.mark.parametrize("kind", ["closed", "crashed"])
def test_failing_call_of_a_snapshot_changes_nothing_and_the_next_one_works(
    tmp_path, measured, kind
):
    source, target = tmp_path / "s.zarr", tmp_path / "copy.zarr"
    write(source, kind)
    every = count_calls(lambda: mmreplay.snapshot(source, target))
    expected, before = contents_of_rows(target), contents(source)
    shutil.rmtree(target)
    trials = some_trials(every, "snapshot")
    for call, at, error, forever in trials:
        with faults.faulty_disk() as disk:
            disk.fail({call}, error, at=at, forever=forever)
            failed = told(lambda: mmreplay.snapshot(source, target))
            disk.heal()
            assert contents(source) == before
            if failed and not target.exists():
                mmreplay.snapshot(source, target)
        assert contents_of_rows(target) == expected
        checks.check_verified(target)
        shutil.rmtree(target)
        if call in {"unlink", "rmdir"}:  # what was left goes with the next one
            mmreplay.snapshot(source, target)
            shutil.rmtree(target)
        assert [one.name for one in tmp_path.iterdir()] == ["s.zarr"], (call, at, error, forever)
    result = measured(f"failing_calls-snapshot_{kind}", environments=2)
    result.add("calls that failed", len(trials), "", at_least=400)


def contents_of_rows(path):
    with mmreplay.open(path) as store:
        return [
            {
                name: column[:].tobytes()
                for name, column in checks.columns_of(v, store.schema).items()
            }
            for v in store.lanes
        ]


def test_failing_call_of_a_repair_costs_nothing_and_the_next_one_works(tmp_path, measured):
    sound, path = tmp_path / "sound.zarr", tmp_path / "s.zarr"
    damaged = tmp_path / "s.zarr.damaged"
    write(sound, "closed")
    (sound / "actions" / "c.2.0").unlink()
    before = contents(sound)
    shutil.copytree(sound, path)
    every = count_calls(lambda: mmreplay.repair(path))
    expected = contents_of_rows(path)
    trials = some_trials(every, "repair")
    for call, at, error, forever in trials:
        shutil.rmtree(path)
        shutil.rmtree(damaged)
        shutil.copytree(sound, path)
        with faults.faulty_disk() as disk:
            disk.fail({call}, error, at=at, forever=forever)
            failed = told(lambda: mmreplay.repair(path))
            disk.heal()
            if failed:
                mmreplay.repair(path)
        assert contents_of_rows(path) == expected
        assert contents(damaged) == before
        checks.check_verified(path)
        names = sorted(one.name for one in tmp_path.iterdir())
        assert names == ["s.zarr", "s.zarr.damaged", "sound.zarr"], (call, at, error, forever)
    result = measured("failing_calls-repair", environments=2)
    result.add("calls that failed", len(trials), "", at_least=400)
