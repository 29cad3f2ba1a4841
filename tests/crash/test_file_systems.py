"""Real file systems, cut off while a process records into them, and filled to the last page.

Invariant: what is read after the cut is a prefix that has every row of the last flush or close that
returned; a full disk is told, ends no process, loses nothing, and the same writer goes on.
"""

import collections
import contextlib
import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from tests.support.disks import faults, mounts
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle import disk as disk_layout
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.oracle.script import IMAGE_AND_JOINTS, with_session
from tests.support.processes import actor, aftermath

pytestmark = pytest.mark.deep

# ---------------------------------------------------------------- cut off

FRAMES = {
    "raw": {"frame": [(6, 8), "uint8", "raw", 5]},
    "raw-pages": {"frame": [(64, 64), "uint8", "raw", 8]},
    "lz4": {"frame": [(6, 8), "uint8", "lz4", 3, 6]},
    "lz4-pages": {"frame": [(64, 64), "uint8", "lz4", 2, 8]},
    "dict": {**IMAGE_AND_JOINTS, "depth": [(3, 4), "uint16", "zstd", 4, 8]},
}
OPTIONS = {"ext4": ["", "data=journal", "data=writeback"]}
N_STORES = {"ext4": 10, "xfs": 4, "btrfs": 4} if THOROUGH else {"ext4": 1, "xfs": 1, "btrfs": 1}
N_CUTS = by_effort(2, 4, 40)


@contextlib.contextmanager
def mounted(fs, folder, n_bytes=0, options=""):
    reason = mounts.unavailable(fs)
    if reason:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        try:
            mount = stack.enter_context(mounts.mounted(fs, folder, n_bytes, options))
        except OSError as error:
            pytest.skip(f"cannot be mounted here: {error}")
        yield mount


def random_script(disk, folder, luck):
    return actor.Script(
        path=str(disk / "s.zarr"),
        report=str(folder / "report"),
        seed=luck.randrange(2**32),
        frame=FRAMES[luck.choice(sorted(FRAMES))],
        action_chunk=luck.choice([16, 100, 4096]),
        envs=luck.choice([None, None, 2]),
        capacity=luck.choice([None, None, 40, 150]),
        flush_s=luck.choice([0, 0.005]),
        rows=luck.choice([60, 300]),
        pause_s=luck.choice([0, 0.001]),
    )


def record_and_cut(actors, chronicle, script, mount, luck):
    """One process records until the disk is cut off; returns what it was doing."""
    if luck.random() < 0.5:
        # Before one of its own calls, so in the middle of creating, flushing, closing, recovering.
        fatal = luck.randrange(1, luck.choice([30, 60, 400]))
        script = with_session(script, script.session, die_at=fatal, mount=str(mount.path))
        pid = actors.start(script)
    else:
        pid = actors.start(script)
        if luck.random() < 0.7:
            for _ in range(luck.randrange(4)):
                chronicle.wait_for_rows(luck.randrange(20))
                mounts.write_back(mount.path, luck)
        mounts.write_back(mount.path, luck)
        mounts.cut_off(mount.path, luck)
        with contextlib.suppress(ProcessLookupError):
            actors.kill(pid, however=True)
            return chronicle.phase
    actors.wait(pid, however=True)
    return chronicle.phase


def cut_stores(fs, folder, actors, luck):
    """Cut one store after the other; returns what was being done, and how many rows were lost."""
    phases, n_lost = [], 0
    for number in range(N_STORES[fs]):
        here = folder / str(number)
        here.mkdir()
        with mounted(fs, here, options=luck.choice(OPTIONS.get(fs, [""]))) as mount:
            try:
                mounts.cut_off(mount.path, luck)
            except OSError as error:
                pytest.skip(f"{fs}: this kernel cannot cut it off (FS_IOC_SHUTDOWN): {error}")
            mount.remount()
            chronicle = actor.Chronicle(random_script(mount.path, here, luck))
            for _ in range(N_CUTS):
                script = with_session(
                    chronicle.script, luck.randrange(2**32), boot=luck.randbytes(16).hex()
                )
                chronicle.acknowledge(chronicle.committed)
                phases.append(record_and_cut(actors, chronicle, script, mount, luck))
                mount.remount()
                boot = luck.randbytes(16)
                with mounts.booted(boot):
                    if not Path(script.path).exists():
                        assert not any(chronicle.committed)
                        continue
                    written = sum(chronicle.committed)
                    aftermath.check_found(chronicle, power_cut=True)
                    n_lost += max(written - sum(chronicle.committed), 0)
            # Writing goes on, to the end.
            last = {"session": 1, "sessions": 1, "rows": 40, "boot": boot.hex()}
            assert actors.wait(actors.start(with_session(chronicle.script, **last))) == 0
            aftermath.check_found(chronicle)
            disk_layout.check_plain_zarr(Path(script.path))
        shutil.rmtree(here)
    return collections.Counter(phases), n_lost


@pytest.mark.parametrize("fs", by_effort(["ext4"], *[["ext4", "xfs", "btrfs"]] * 2))
def test_file_system_cut_off_while_it_is_written_keeps_what_was_flushed(
    tmp_path, actors, measured, fs
):
    luck = random.Random(fs if not THOROUGH else None)
    phases, n_lost = cut_stores(fs, tmp_path, actors, luck)
    result = measured(f"file_systems_cut_{fs}", stores=N_STORES[fs], cuts_of_each=N_CUTS)
    least = {"ext4": 400, "xfs": 160, "btrfs": 160}[fs]
    result.add("cuts", phases.total(), "", at_least=least)
    for phase, name in enumerate(("opening", "appending", "flushing", "closing")):
        result.add(f"of these while {name}", phases[phase], "", at_least=5)
    result.add("unflushed rows lost", n_lost, "", note="what a cut may cost")
    result.add("violations", 0, "", at_most=0, note="one would have ended the test")


# ---------------------------------------------------------------- filled

Field = mmreplay.Field
LAYOUTS = {
    "raw": Layout(Field((3, 4), "uint8", "raw", 8), Field((), "int64", chunk=11), {}, capacity=30),
    "raw-pages": Layout(Field((64, 64), "uint8", "raw", 16), Field((), "int64", chunk=64), {}),
    "lz4": Layout(Field((64, 64), "uint8", "lz4", 2, 4), Field((), "int64", chunk=512), {}),
    "dict": Layout(
        {"a": Field((5,), "float32", "raw", 6), "b": Field((2, 2), "uint16", "zstd", 3, 6)},
        Field((2,), "float32", chunk=9),
        {"thought": Field((), "float64", chunk=5)},
        capacity=40,
    ),
    "as-is": Layout(Field((4,), "float32"), Field((), "int64"), {}),
}
SOME = {"ext4": by_effort([], ["lz4"], []), "tmpfs": ["as-is"], "btrfs": [], "xfs": []}
N_ROWS = by_effort((8, 4, 2), (12, 6, 3), (40, 25, 12))
FILL_BYTES = {"tmpfs": 8 << 20, "ext4": 32 << 20}


class Squeezed:
    """A store on a disk that fills up again and again, by whoever; runs in a process of its own.

    A call that finds it full is made again with a page more, until it works.
    """

    def __init__(self, disk, name, seed):
        self.disk, self.path = disk, disk / "s.zarr"
        self.layout, self.prioritized = LAYOUTS[name], name == "raw"
        self.luck = random.Random(seed)
        self.ballast = mounts.Ballast(disk)
        self.strangers = set(os.listdir(disk))
        self.told = collections.Counter()
        self.model = self.layout.model()
        self.live = False
        self.writer = self.follower = None

    def run(self):
        self.call("create", self.open)
        self.follower = mmreplay.open(self.path)
        self.rows(N_ROWS[0])
        self.call("close", self.close)
        self.read_closed()
        self.call("snapshot", lambda: mmreplay.snapshot(self.path, self.disk / "copy.zarr"))
        shutil.rmtree(self.disk / "copy.zarr")
        closed = self.blocks()
        self.call("reopen", self.open, lambda: self.prioritized or self.blocks() < closed + 64)
        self.rows(N_ROWS[1])
        faults.kill(self.writer)
        self.call("recover", self.open)
        self.model.lanes[0].end_session()
        self.rows(N_ROWS[2])
        self.call("close", self.close)
        self.read_closed()
        self.repair()
        return {"told": self.told}

    # ------------------------------------------------------------ the calls

    def open(self):
        if self.prioritized:
            kind = mmreplay.PrioritizedReplayBuffer
            self.writer = self.layout.create_buffer(self.path, kind, stack=None)
        else:
            self.writer = self.layout.create(self.path, append=True)
        self.live = True

    def rows(self, count):
        self.pair = Pair(self.writer, self.model, np.random.default_rng(self.luck.randrange(2**32)))
        for _ in range(count):
            if self.model.lanes[0].running:
                over = [0] * (self.luck.random() < 0.1)
                self.call("step", lambda over=over: self.pair.step(terminated=over))
            else:
                self.call("reset", self.pair.reset)
            if self.luck.random() < 0.15:
                self.call("flush", self.writer.flush)
            if self.prioritized and self.luck.random() < 0.15 and len(self.writer):
                self.call("sample", self.learn)

    def learn(self):
        batch = self.writer.sample(4)
        self.writer.update_priorities(batch.id, np.arange(4.0))

    def close(self):
        self.writer.close()
        self.model.lanes[0].end_session()
        self.live = False

    def blocks(self):
        """What the chunk files take, in 512 bytes; where they lie may take a few more."""
        return sum(one.stat().st_blocks for one in self.path.rglob("c.*"))

    def call(self, stage, call, unchanged=lambda: True):
        print(stage, flush=True)  # the last one is where the process died, if it does
        if stage not in {"step", "reset"} or self.luck.random() < 0.5:
            self.ballast.fill()
        for _ in range(1000):
            try:
                return call()
            except mmreplay.DiskFullError as error:
                assert error.errno == errno.ENOSPC
                assert str(self.disk) in str(error)
                assert "room" in str(error)
                self.told[stage] += 1
                if stage == "close" and not getattr(self.writer, "writer", self.writer).running:
                    self.model.end_session()  # so far it came
                self.check(stage)
                assert unchanged()
                self.ballast.take_off(self.luck.choice([1, 3, 20]))
        raise AssertionError(f"{stage}: told to make room without end")

    # ------------------------------------------------------------ what must hold

    def check(self, stage):
        """The disk is full now: everything committed is there, and no partial file is in the way."""
        while any(one.is_file() for one in self.disk.rglob("*.tmp")):
            pass  # the sealing thread is about to find it full
        if self.follower is None:
            left = set(os.listdir(self.disk)) - self.strangers
            if self.prioritized and left == {self.path.name}:  # no room for its random state
                assert len(mmreplay.open(self.path)) == 0
                checks.check_verified(self.path)
                return
            assert not left
            return
        if self.told[stage] % 5 == 1 or THOROUGH:
            with mmreplay.open(self.path) as store:
                if self.prioritized and stage in {"reopen", "recover"}:
                    # A buffer has its random state and priorities to write when its lane is open
                    # already, and closes it again.
                    checks.check_ids(store, self.model)
                    checks.check_verified(self.path)
                    return
                assert store.live.readers[0].is_closed != self.live
                checks.forget(store, self.model)
                checks.check_store(store, self.model, most=10)
            checks.check_verified(self.path)
            self.follower.refresh()
            checks.check_ids(self.follower, self.model)

    def read_closed(self):
        self.ballast.fill()
        self.check("close")
        disk_layout.check_plain_zarr(self.path)

    def repair(self):
        """A flipped bit in the oldest file of frames; the store that has it is not touched."""
        name = next(one for one in self.model.schema.columns() if one.startswith("frames"))
        path = min(disk_layout.chunk_files(self.path, name).items())[1]
        self.ballast.clear()
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        before = {one: one.read_bytes() for one in self.path.rglob("*") if one.is_file()}
        self.follower = None
        self.strangers |= {"s.zarr"}
        result = self.call("repair", lambda: mmreplay.repair(self.path))
        assert result.changed
        after = {
            Path(result.before) / one.relative_to(self.path): data for one, data in before.items()
        }
        assert all(one.read_bytes() == data for one, data in after.items())
        checks.check_verified(self.path)


def in_a_process(*arguments):
    """SIGBUS would be the end of the tests, too."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-300:]}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fs", [fs for fs in SOME if SOME[fs] or THOROUGH])
def test_a_full_file_system_is_an_error_and_ends_no_process(tmp_path, measured, fs):
    seeds = range(2 if THOROUGH else 1)
    told = collections.Counter()
    for seed in seeds:
        for name in LAYOUTS if THOROUGH else SOME[fs]:
            with mounted(fs, tmp_path, FILL_BYTES.get(fs, 0)) as mount:
                found = in_a_process(mount.path, name, seed)
            told.update(found["told"])
    result = measured(f"file_systems_full_{fs}", layouts=list(LAYOUTS), runs_of_each=len(seeds))
    result.add("DiskFullErrors", told.total(), "", at_least=300)
    stages = "create step reset flush sample close reopen snapshot repair".split()
    for stage in stages:
        result.add(f"of these in {stage}", told[stage], "", at_least=1)
    # What a killed process left opens without any room, but XFS wants some to allocate once more.
    assert told.keys() <= {*stages, "recover"} if fs == "xfs" else told.keys() <= set(stages)
    result.add("processes ended by SIGBUS, or rows lost", 0, "", at_most=0)


if __name__ == "__main__":
    disk, name, seed = sys.argv[1:]
    print(json.dumps(Squeezed(Path(disk), name, int(seed)).run()))


# ---------------------------------------------------------------- layers, as of containers


@pytest.mark.parametrize("codec", ["raw", "lz4"])
@pytest.mark.parametrize("end", [faults.kill, mmreplay.Writer.close])
def test_a_reader_of_a_lower_layer_notices_a_writer_in_the_upper_one(tmp_path, codec, end):
    """Whose files are copies with the same inodes; those that a reader has mapped do not change."""

    def play(path, end):
        fields = mmreplay.Field((2,), "uint8", codec), mmreplay.Field((), "int64")
        writer = mmreplay.create(path, *fields, append=True, flush_s=0)
        writer.reset(np.zeros(2, np.uint8))
        for row in range(writer.rows, writer.rows + 50):
            writer.step(row, 1.0, np.full(2, row + 1, np.uint8))
        writer.flush()
        end(writer)

    with mounted("tmpfs", tmp_path, 64 << 20) as disk:
        lower, upper, work, both = (disk.path / name for name in ("lower", "upper", "work", "both"))
        for folder in (lower, upper, work, both):
            folder.mkdir()
        play(lower / "s.zarr", faults.kill)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        try:
            layers = mounts.Mount("overlay", both, None, options)
        except OSError as error:
            pytest.skip(f"cannot be mounted here: {error}")
        with mmreplay.load(both / "s.zarr", stack=None) as data:
            assert len(data) == 50
            play(both / "s.zarr", end)
            assert len(data.refresh()) == 100
            batch = data.transitions(data.ids)
            assert batch.action.tolist() == [*range(100)]
            assert batch.next_observation[:, 0].tolist() == [*range(1, 101)]
        del data, batch
        layers.detach()
