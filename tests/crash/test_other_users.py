"""Stores of root in the hands of another user, with rights and without; and of a group of users.

Invariant: what may be read is read; what may not is an error that says so, on the command line a
message; nothing of it changes by that, and whoever has the rights goes on.
"""

import collections
import contextlib
import functools
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import mmreplay
from mmreplay.system import locks
from tests.support.disks import faults, trees
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.script import IMAGE_AND_JOINTS, with_session
from tests.support.processes import actor, aftermath, users
from tests.support.writers import drain

pytestmark = [
    pytest.mark.skipif(bool(users.unavailable()), reason=users.unavailable()),
]
STRANGER = 65534  # uid and gid
GROUP = 65533
REFUSED = re.compile("Permission denied|another writer holds|is not readable")
N_PATHS = by_effort(1, 2, None)  # of each store, from which the rights are taken
N_SESSIONS = by_effort(6, 8, 150)

STORES = ("closed", "live", "crashed")


def make(path, kind):
    """A store with evicted rows, and whoever writes it."""
    writer = aftermath.left(actor.Script(str(path), "", 5, IMAGE_AND_JOINTS, 7, capacity=40), kind)
    if kind == "live":  # what is done behind its back would be taken for a change by somebody else
        for lane in faults.lanes_of(writer):
            drain(lane)
    return writer


def sample(path):
    with mmreplay.load(path, stack=3) as data:
        data.sample(64)
        list(data.batches(64))


def append(path):
    mmreplay.create(path, append=True).close()


def command(name, path, *more):
    """A command's message on stderr, which must be one, and no traceback."""
    from mmreplay_cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.raises(SystemExit) as ended:
            main([name, str(path), *map(str, more)])
    text = err.getvalue()
    assert (ended.value.code == 0) == ("Error:" not in text), text
    return text[text.index("Error:") :] if ended.value.code else ""


def every_call(path):
    """By name, what comes of each call that only reads, and of each that would write."""
    beside = path.with_name("beside.zarr")
    with tempfile.TemporaryDirectory() as own:
        reading = {
            "open": lambda: mmreplay.open(path).close(),
            "sample": lambda: sample(path),
            "info": lambda: mmreplay.open(path).info(),
            "verify": lambda: mmreplay.verify(path),
            "snapshot": lambda: mmreplay.snapshot(path, Path(own, "copy.zarr")),
        }
        writing = {
            "append": lambda: append(path),
            "buffer": lambda: mmreplay.PrioritizedReplayBuffer(path),
            "repair": lambda: mmreplay.repair(path),
            "snapshot beside": lambda: mmreplay.snapshot(path, beside),
            "create beside": lambda: mmreplay.create(
                beside, mmreplay.Field((2,)), mmreplay.Field(())
            ),
        }
        calls = [
            {name: aftermath.outcome(one) for name, one in some.items()}
            for some in (reading, writing)
        ]
    commands = {name: command(name, path) for name in ("info", "verify", "episodes", "repair")}
    commands["snapshot"] = command("snapshot", path, beside)
    return [*calls, commands]


# ---------------------------------------------------------------- in a process of its own


def try_all(folder, n_paths):
    """Each store as it is, then with the rights to one path in it taken away; and what came of it."""
    own = folder / "of all"
    own.mkdir()
    own.chmod(0o777)
    tempfile.tempdir = str(own)
    warm = folder / "warm" / "s.zarr"  # so that everything is imported before rights are gone
    warm.parent.mkdir()
    make(warm, "closed")
    every_call(warm)
    locks.DirectoryLock.__init__.__kwdefaults__["patience_s"] = 0.0  # nobody will let go
    out, luck, changed = [], random.Random(3), 0
    for kind in STORES:
        home = folder / kind
        home.mkdir()
        path = home / "s.zarr"
        kept = make(path, kind)
        paths = sorted(str(one.relative_to(path)) for one in [path, *path.rglob("*")])
        if n_paths is not None:
            paths = [".", *luck.sample(paths, n_paths), *([".live"] * (kind != "closed"))]
        before = trees.contents(path)
        for below in ["", *paths]:
            one = path / below
            mode = one.stat().st_mode
            if below:
                one.chmod(mode & ~0o077)
            out.append(
                (
                    kind,
                    below,
                    users.as_user(STRANGER, STRANGER, functools.partial(every_call, path)),
                )
            )
            one.chmod(mode)
            changed += trees.contents(path) != before
            assert os.listdir(home) == ["s.zarr"]
        del kept
    return {"tried": out, "changed": changed}


def refused_opening(folder):
    """What is left of an opening by one who may write all of a closed store but one file."""
    path = folder / "s.zarr"
    make(path, "closed")
    append(path)  # imports what it needs
    for one in [path, *path.rglob("*")]:
        os.chown(one, 0, GROUP)
        one.chmod(0o775 if one.is_dir() else 0o664)
    newest = max((path / "actions").glob("c.*"), key=lambda file: int(file.name[2:]))
    newest.chmod(0o644)
    before = trees.contents(path)
    told = users.as_user(1000, GROUP, lambda: aftermath.outcome(lambda: append(path)))
    after = trees.contents(path)
    newest.chmod(0o664)
    next_one = users.as_user(1001, GROUP, lambda: aftermath.outcome(lambda: append(path)))
    return {"told": told, "changed": before != after, "next": next_one}


def in_a_process(*arguments):
    """No thread of the tests' own process is to be forked."""
    order = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- the tests


@pytest.fixture
def open_path(tmp_path):
    """A folder that other users may look into, as those of pytest are not."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.deep(only=True)
def test_store_of_another_user_is_read_as_far_as_rights_go_and_never_changed(open_path, measured):
    found = in_a_process("try_all", open_path, N_PATHS)
    assert found["changed"] == 0
    counts = collections.Counter()
    for kind, below, (reading, writing, commands) in found["tried"]:
        where = f"{kind}, without the right to {below!r}"
        for name, told in {**reading, **writing, **commands}.items():
            counts["calls"] += 1
            counts["refused"] += bool(told)
            assert not told or REFUSED.search(told), f"{where}: {name}: {told}"
        if kind == "closed" and not below:
            assert writing.pop("repair") == ""  # there is nothing to write
        assert all(writing.values()), f"{where}: {writing}"
        if not below:
            assert not any(reading.values()), f"{where}: {reading}"
            locked = "LockedError" if kind == "live" else "FailedStoreError"
            assert writing["append"].startswith(locked), writing
            assert writing["buffer"].startswith(locked), writing
            assert not any(commands[name] for name in ("info", "verify", "episodes"))
        else:
            assert "may not be read" in reading["verify"], f"{where}: {reading}"
        if below == ".":
            assert all("may not be read" in told for told in reading.values()), reading
        counts["stores"] += not below
    result = measured("other_users", stores=list(STORES), uid=STRANGER)
    result.add("paths without rights", len(found["tried"]) - counts["stores"], "", at_least=100)
    result.add("calls", counts["calls"], "", at_least=1_500)
    result.add("refused", counts["refused"], "")
    result.add("stores changed", found["changed"], "", at_most=0)
    result.add("errors of others", 0, "", at_most=0, note="one would have ended the test")


@pytest.mark.deep(only=True)
def test_users_of_a_group_write_a_store_in_turns_and_lose_no_row(open_path, actors, measured):
    luck = random.Random(None if THOROUGH else 4)
    shared = open_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, GROUP)
    shared.chmod(0o2775)  # what is made in it is the group's
    script = actor.Script(
        path=str(shared / "s.zarr"),
        report=str(shared / "report"),
        seed=6,
        frame=IMAGE_AND_JOINTS,
        action_chunk=7,
        capacity=60,
        rows=60,
        sessions=1,
    )
    chronicle = actor.Chronicle(script)
    for name in ("report", "report.log"):
        (shared / name).chmod(0o666)
    deaths = 0
    for number in range(N_SESSIONS):
        user = (1000 + luck.randrange(3), GROUP)
        fatal = luck.choice([0, luck.randrange(1, 300)])
        chronicle.acknowledge(chronicle.committed)
        pid = actors.start(with_session(script, number, user=user, die_at=fatal))
        deaths += actors.wait(pid) == -9
        if Path(script.path).exists():
            owners = {one.stat().st_uid for one in Path(script.path).rglob("*")}
        aftermath.check_found(chronicle, most=10)
    assert len(owners) > 1
    assert actors.wait(actors.start(with_session(script, -1, user=(1004, GROUP)))) == 0
    aftermath.check_found(chronicle)
    aftermath.check_closed(chronicle)
    assert deaths
    result = measured("other_users_in_turns", users=4)
    result.add("sessions", N_SESSIONS, "", at_least=100)
    result.add("of these killed", deaths, "", at_least=20)
    result.add("rows", sum(chronicle.committed), "")
    result.add("committed rows lost", 0, "", at_most=0, note="one would have ended the test")


def test_opening_that_lacks_a_right_leaves_nothing_that_keeps_the_next_user_out(open_path):
    found = in_a_process("refused_opening", open_path)
    assert re.match("FailedStoreError: .*Permission denied.*right to write", found["told"])
    assert not found["changed"]
    assert found["next"] == ""


if __name__ == "__main__":
    what, where, *count = sys.argv[1:]
    if what == "try_all":
        answer = try_all(Path(where), None if count == ["None"] else int(count[0]))
    else:
        answer = globals()[what](Path(where))
    print(json.dumps(answer))
