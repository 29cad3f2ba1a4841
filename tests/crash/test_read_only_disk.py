"""Disks that are mounted read-only, or that make themselves read-only under a writer.

Invariant: what can be read is read, in full, and what is sound and closed needs no repair; whoever
would write is told that the disk is read-only, changes nothing, and goes on once it is not; nothing
that was flushed is lost by it.
"""

import collections
import dataclasses
import errno
import random
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import mmreplay
from mmreplay_cli import main
from tests.crash.test_file_systems import mounted, random_script
from tests.support.disks import mounts, trees
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.oracle.script import IMAGE_AND_JOINTS, append_rows, with_session
from tests.support.processes import actor, aftermath

pytestmark = pytest.mark.deep
FILE_SYSTEMS = by_effort(["tmpfs"], ["tmpfs", "ext4"], ["tmpfs", "ext4", "xfs", "btrfs"])
N_ERRORS = by_effort(1, 2, 25)
TOLD = re.compile("FailedS[a-z]+Error: .*(?:Read-only file system|is read-only)")

TOLD_BY_COMMAND = re.compile("Error: .*Read-only file system")

# It is the disk that makes them fail: nobody expects more than what was flushed.
SYNCS_FAIL = ("fsync", errno.EROFS, 10**9, False)


def check_read(path, script, elsewhere):
    """Everything that reads finds all rows, also by a copy on another disk."""
    for one in (path, elsewhere):
        with mmreplay.load(one, stack=3) as data:
            assert len(data) == 40
            for batch in data.batches(16):
                script.plot.check_batch(batch, 3)
            assert data.store.info()["transitions"] == 40
        checks.check_verified(one)
        if one == path:
            mmreplay.snapshot(path, elsewhere)


def refusals(path):
    """By name, what is told to whoever would write to it, or beside it."""
    beside = path.with_name("beside.zarr")
    calls = {
        "append": lambda: mmreplay.create(path, append=True),
        "buffer": lambda: mmreplay.PrioritizedReplayBuffer(path),
        "repair": lambda: mmreplay.repair(path),
        "snapshot": lambda: mmreplay.snapshot(path, beside),
        "create": lambda: mmreplay.create(beside, mmreplay.Field((2,)), mmreplay.Field(())),
    }
    return {name: aftermath.outcome(call) for name, call in calls.items()}


def go_on(mount, path, script):
    """Nothing was lost; and while somebody has maps to write to, no mount becomes read-only."""
    with mmreplay.create(path, append=True) as writer:
        assert writer.rows == 100
        with pytest.raises(OSError, match="busy"):
            mount.set_read_only(True, patience_s=0)
        append_rows(writer, script.plot, [None])


def message(command):
    """What a command says on stderr, which fails."""
    done = CliRunner().invoke(main, [*map(str, command)])
    assert done.exit_code == 1
    return done.stderr


@pytest.mark.parametrize("fs", FILE_SYSTEMS)
def test_read_only_mount_is_read_and_says_why_it_cannot_be_written(tmp_path, measured, fs):
    n_told = 0
    with mounted(fs, tmp_path, 32 << 20 if fs == "tmpfs" else 0) as mount:
        for kind in ("closed", "crashed"):
            path, copy = mount.path / f"{kind}.zarr", tmp_path / "copy.zarr"
            script = actor.Script(str(path), "", 5, IMAGE_AND_JOINTS, 7, capacity=40)
            aftermath.left(script, kind)
            mount.set_read_only(True)
            before = trees.contents(path)
            check_read(path, script, copy)
            told, commands = refusals(path), [["snapshot", path, path.with_name("beside.zarr")]]
            if kind == "closed":
                del told["repair"]
                done = CliRunner().invoke(main, ["repair", str(path)])
                assert (done.exit_code, done.stdout) == (0, f"{path}: sound; nothing to do\n")
            else:
                commands.append(["repair", path])
            for name, text in told.items():
                assert TOLD.match(text), f"{kind}: {name}: {text}"
                assert name != "repair" or ".tmp" not in text
            for command in commands:
                assert TOLD_BY_COMMAND.match(message(command))
            n_told += len(told) + len(commands)
            assert trees.contents(path) == before
            mount.set_read_only(False)
            go_on(mount, path, script)
            checks.check_verified(path)
            shutil.rmtree(copy)
    result = measured(f"read_only_mount_{fs}", stores=2)
    result.add("calls that were told", n_told, "", at_least=12)
    result.add("bytes changed", 0, "", at_most=0, note="one would have ended the test")


def rows_of(path):
    with mmreplay.open(path) as store:
        return [view.rows for view in store.lanes]


def record_until_read_only(actors, chronicle, script, mount, luck):
    """One process records; the file system has an error meanwhile, and stops all writing."""
    pid = actors.start(script)
    if luck.random() < 0.8:
        chronicle.wait_for_rows(luck.randrange(60))
    mounts.write_back(mount.path, luck)
    mount.make_error()
    assert actors.wait(pid) == 0  # whatever it was told was an error of ours
    return chronicle.phase


@pytest.mark.deep(only=True)
def test_disk_that_makes_itself_read_only_under_a_writer_keeps_what_was_flushed(tmp_path, measured):
    luck = random.Random(None if THOROUGH else 1)
    phases, n_rows, n_lost, n_copies = collections.Counter(), 0, 0, 0
    script = None
    with actor.Actors() as actors, mounted("ext4", tmp_path, options="errors=remount-ro") as mount:
        for number in range(N_ERRORS):
            if number % 8 == 0:
                if script is not None:
                    shutil.rmtree(script.path, ignore_errors=True)
                    mount.remount()  # so that it is not there again after the next error
                here = tmp_path / str(number)
                here.mkdir()
                script = random_script(mount.path, here, luck)
                chronicle = actor.Chronicle(dataclasses.replace(script, fails=SYNCS_FAIL))
            boot = luck.randbytes(16)
            script = with_session(
                chronicle.script, luck.randrange(2**32), sessions=3, rows=3000, boot=boot.hex()
            )
            chronicle.script = script
            chronicle.acknowledge(chronicle.committed)
            phases[record_until_read_only(actors, chronicle, script, mount, luck)] += 1
            path, copy = Path(script.path), tmp_path / "copy.zarr"
            with mounts.booted(boot):
                if path.exists():
                    known = chronicle.model.copy()  # which may lose rows again below
                    aftermath.check_found(chronicle)
                    chronicle.model = known
                    checks.check_verified(path)
                    mmreplay.snapshot(path, copy)
                    assert rows_of(copy) == rows_of(path)
                    checks.check_verified(copy)
                    shutil.rmtree(copy)
                    n_copies += 1
            mount.remount()
            with mounts.booted(luck.randbytes(16)):
                written = sum(chronicle.committed)
                if not path.exists():
                    assert not any(chronicle.flushed)
                    chronicle = actor.Chronicle(chronicle.script)
                    continue
                aftermath.check_found(chronicle, power_cut=True)
                n_rows, n_lost = n_rows + written, n_lost + written - sum(chronicle.committed)
        last = with_session(chronicle.script, 1, sessions=1, rows=40, boot="", fails=None)
        assert actors.wait(actors.start(last)) == 0
        aftermath.check_found(chronicle)
        check_plain_zarr(Path(last.path))
    result = measured("read_only_errors", file_system="ext4")
    result.add("times that it became read-only", phases.total(), "", at_least=20)
    result.add("snapshots of it to another disk", n_copies, "", at_least=10)
    result.add("rows written", n_rows, "")
    result.add("unflushed rows lost", n_lost, "", note="what it may cost")
    result.add("flushed rows lost", 0, "", at_most=0, note="one would have ended the test")
