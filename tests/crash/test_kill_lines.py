"""A writer process that dies at any line of the write path loses nothing that it had committed.

Invariant: every line at which a writer can be killed is one at which it is killed here, or is named
below with the reason why not; what is found after each of these deaths is what `aftermath` asks for.
"""

import collections
import dataclasses
import json
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.support.effort import THOROUGH, by_effort
from tests.support.power_cut import lines
from tests.support.processes import actor, aftermath

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
N_LINES = by_effort(3, 12, 12)  # of a scene

RAW = {"frame": [(6, 8), "uint8", "raw", 5]}
BY_ENVIRONMENT = {"frame": [(64, 64), "uint8", "raw", 5]}  # so they lie in a vector lane
LZ4 = {"frame": [(6, 8), "uint8", "lz4", 3, 6]}
GZIP = {"frame": [(6, 8), "uint8", {"name": "gzip", "configuration": {"level": 1}}, 3, 6]}
LARGE = {"frame": [(512, 512), "uint8", "raw", 4]}  # chunk files that are allocated ahead
DICT = {
    "image": [(5, 5, 3), "uint8", "lz4", 2, 8],
    "joints": [(7,), "float32", "raw", 16],
    "depth": [(3, 4), "uint16", "zstd", 4, 8],
}


def scene(frame, acts, *, watch_from=0, **more):
    """What a writer does; `watch_from`: lines count from this act on."""
    # The seed: within twenty rows something of everything happens.
    return actor.Script(
        "", "", 5, frame, **{"action_chunk": 7} | more, acts=acts.split("; "), watch_from=watch_from
    )


SCENES = {
    "raw": scene(RAW, "open; rows 9; flush; misuse; interrupt; rows 8; close; open; rows 3; close"),
    "lz4": scene(LZ4, "open; rows 15; flush; rows 4; close; open; second; rows 3; flush; close"),
    "closed at a border": scene(LZ4, "unfinished; open; rows 12; close; open; close"),
    "gzip": scene(GZIP, "open; rows 15; close; open; rows 3; close"),
    "large": scene(LARGE, "open; rows 5; settle; rows 5; settle; drop; open; no_holes; close"),
    "large, closed": scene(LARGE, "open; rows 5; settle; close"),
    "stacks": scene(RAW, "open; rows 25; close", action="float32", stacked=True, capacity=50),
    "stacks of dicts": scene(
        DICT, "open; rows 15; misuse; rows 3; close", action="float32", stacked=True
    ),
    "lanes": scene(LZ4, "open; rows 12; close", action="float32", stacked=True, lanes=2),
    "lanes of dicts": scene(
        DICT,
        "open; rows 12; flush; pause 0.01; rows 8; close; open; rows 3; close",
        stacked=True,
        lanes=2,
        capacity=60,
        flush_s=0.002,
    ),
    "vectors": scene(
        BY_ENVIRONMENT,
        "open; misuse; rows 9; flush; misuse; rows 8; flush; rows 40; close; open; rows 3; close",
        envs=3,
    ),
    "vectors of stacks": scene(
        LZ4,
        "open; rows 25; flush; rows 4; close; open; rows 3; drop; litter; open; rows 2; close",
        action="float32",
        stacked=True,
        envs=3,
    ),
    "vectors whose starts are in a shard": scene(
        LZ4, "short; open; restarts 9; settle; rows 1; end; rows 9; close", stacked=True, envs=3
    ),
    "vectors of dicts": scene(
        DICT,
        "open; rows 12; flush; pause 0.01; rows 8; close; open note; rows 3; close",
        stacked=True,
        envs=2,
        capacity=60,
        flush_s=0.002,
    ),
    "vectors, evicting": scene(
        RAW,
        "open; rows 90; flush; flush; rows 8; flush; rows 4; drop; open; rows 2; close",
        watch_from=2,
        envs=2,
        capacity=20,
    ),
    "vectors, rebooted": scene(
        LZ4,
        "elsewhere; open; rows 4; flush; rows 15; reboot; open; rows 2; close",
        watch_from=6,
        envs=3,
    ),
    "a vector lane of its own": scene(
        LZ4, "open; rows 2; litter; close; open; rows 1; close", lane="actor-3", envs=2
    ),
    "a lane of its own": scene(
        LZ4, "open; rows 2; litter; close; open; rows 1; close", lane="actor-3"
    ),
    "forgotten": scene(RAW, "open; rows 3; forget; pause 0.03; open; rows 2; close", flush_s=0.002),
    # What a death leaves.
    "recovered": scene(LZ4, "open; rows 15; drop; litter; open again; rows 2; close", watch_from=3),
    "both halves full": scene(
        LZ4, "open; hold 9; rows 12; drop; open; rows 2; close", watch_from=4
    ),
    "both halves full, closed": scene(
        LZ4, "open; hold 9; rows 12; drop; open; close", watch_from=4
    ),
    "rebooted": scene(
        LZ4,
        "elsewhere; open; rows 4; flush; rows 15; reboot; open; rows 2; close",
        watch_from=6,
    ),
    "restored": scene(
        LZ4, "open; rows 4; flush; rows 15; restore; open; rows 2; close", watch_from=4
    ),
    "nothing left": scene(
        LZ4, "elsewhere; open; rows 15; settle; reboot; open; close", watch_from=5
    ),
    # In the background.
    "hurry": scene(LZ4, "open; hold 0.1; rows 20; close"),
    "evicting": scene(
        RAW,
        "open; rows 90; flush; rows 8; flush; pause 0.01; rows 4; close",
        watch_from=2,
        capacity=20,
    ),
    "evicting shards": scene(
        LZ4,
        "open; rows 90; rows 14; pause 0.01; rows 4; drop; open; close",
        watch_from=2,
        capacity=20,
    ),
    "evicted before it was summed up": scene(
        RAW, "open; hold 9; rows 110; flush; release; close", watch_from=3, capacity=20
    ),
    # Priorities.
    "priorities": scene(
        RAW,
        "short; buffer; rows 9; batch; rows 4; batch; flush; rows 2; close; "
        "buffer; rows 2; batch; drop; litter; buffer; close",
    ),
    "priorities of vectors": scene(
        RAW,
        "short; buffer; rows 9; batch; flush; rows 2; close; buffer; rows 2; batch; drop; litter; "
        "buffer; rows 9; batch; close",
        envs=3,
    ),
    "many priorities": scene(
        RAW,
        "short; buffer; rows 9; batch; rows 570; rows 60; batch; flush; rows 2; close",
        watch_from=5,
        action_chunk=2048,
        capacity=20,
    ),
    "priorities lost with the power": scene(
        RAW,
        "elsewhere; short; buffer; rows 9; flush; rows 510; batch; reboot; open; close",
        watch_from=8,
        action_chunk=2048,
    ),
    # Full disks.
    "no room to create": scene(LZ4, "full write 3; open; rows 2; close"),
    "no room": scene(
        RAW,
        "full posix_fallocate 1; open; rows 3; full posix_fallocate 1; rows 9; full write 1; "
        "flush; full open 1; rows 12; full write 3; close; full posix_fallocate 1; open; "
        "full write 1; rows 2; close",
    ),
    "no room for a lane": scene(LZ4, "full posix_fallocate 1; open; rows 1; close", lane="a"),
    "no room but what goes": scene(
        RAW, "open; rows 90; scarce posix_fallocate 1; rows 14; close", watch_from=2, capacity=20
    ),
    "no room for the random state": scene(
        RAW, "short; buffer; rows 9; scarce write 1; flush; rows 2; close"
    ),
    "no room for shards": scene(
        LZ4,
        "open; rows 4; full write 1; rows 12; full write 2; close; full posix_fallocate 1; open; "
        "rows 3; close",
    ),
    "no room for the last shard": scene(LZ4, "open; rows 16; settle; full write 2; close"),
    "no room to tell who writes": scene(
        RAW, "open; rows 3; close; full open 16; open; heal; rows 2; close"
    ),
    "no room in the background": scene(
        LZ4, "open; rows 3; full write 1; pause 0.1; heal; rows 2; close", flush_s=0.002
    ),
    "no room for lanes": scene(
        DICT,
        "open; rows 12; close; full posix_fallocate 1; open; rows 1; full write 1; close",
        lanes=2,
    ),
    "no room for priorities of vectors": scene(
        RAW, "open; rows 3; close; full mkdir 3; buffer; rows 1; close", envs=2
    ),
    # Broken disks.
    "no name": scene(RAW, "broken rename 1; open; open; rows 1; close"),
    "no durable name": scene(RAW, "broken fsync 20; open; open note; rows 1; close"),
    "no name for a lane": scene(RAW, "broken rename 2; open; open; rows 1; close", lane="a"),
    "no durable name for a lane": scene(
        RAW, "broken fsync 22; open; open; rows 1; close", lane="a"
    ),
    "no flush": scene(
        RAW,
        "open; rows 5; broken fdatasync 1; flush; open; rows 3; broken write 2; close; open; close",
    ),
    "no flush in the background": scene(
        RAW, "open; rows 5; broken fdatasync 1; pause 0.1; rows 4; open; close", flush_s=0.002
    ),
    "no file to flush": scene(RAW, "open; rows 5; broken reopen 1; flush; open; rows 3; close"),
    "no recovery": scene(
        LZ4, "open; rows 15; drop; broken fdatasync 2; open; open; rows 2; close", watch_from=3
    ),
    "no shard": scene(
        LZ4,
        "open; rows 3; broken write 1; rows 12; open; rows 2; broken write 4; close; open; close",
    ),
}

DISK = [
    f"system/{name}"
    for name in (
        "platform checked_reads memory_maps disk_errors durable_writes held_directories locks threads"
    ).split()
]
"""The modules that everything else goes through."""
WRITE_PATH = [
    *(
        f"writing/{name}"
        for name in "build_lane create open_lanes request lane_files recover".split()
    ),
    *(f"writing/{name}" for name in "flush close seal open_chunks row_values".split()),
    *(f"writing/{name}" for name in "background writer log kept_rows session".split()),
    *(f"writing/{name}" for name in "vector_writer vector_values appender".split()),
    *(f"storage/{name}" for name in "checkpoint checksums chunk_files priority_column".split()),
    *(f"storage/{name}" for name in "raw_column shard_column shard_file side_by_side".split()),
    *(f"storage/{name}" for name in "state_page tail_file".split()),
    "system/staging",
    *DISK,
]
"""The modules in which the write path lies. What writing calls besides (schema, format, codecs,
episodes, …) are functions of their arguments; their lines are died at as well, but not counted."""

# What of these modules is no line to die at: by module, function and, of functions in which others
# are died at, how the line begins.
ELSEWHERE = {
    "reads, or tells": """
        storage/raw_column RawColumn
        storage/side_by_side SideBySide.chunk
        storage/shard_column ShardColumn
        storage/state_page State.is_in_place
        storage/state_page State.rows_beyond
        system/checked_reads read_filled
        system/checked_reads _next_filled
        system/checked_reads names | except (FileNotFoundError, NotADirectoryError):
        system/checked_reads names | if missing_ok:
        system/checked_reads names | return []
        system/checked_reads names | raise
        writing/writer Writer.specs
        writing/writer Writer.metadata
        writing/writer Writer.base
        writing/writer Writer.running
        writing/writer Writer.__repr__
        writing/lane_files _check_kind | if metadata["kind"] == "lanes":
        writing/vector_writer VectorWriter.__len__
        writing/vector_writer VectorWriter.metadata
        writing/vector_writer VectorWriter.n_steps
        writing/vector_writer VectorWriter.base
        writing/vector_writer VectorWriter.running
        writing/vector_writer VectorWriter.__repr__
        writing/create create | from mmreplay.env_fields import (
        writing/create create | found = env_fields(env)
        writing/create create | advice = advice_for_a_loop(env)
        writing/create create | if frame is None and (on_stacks := advice_on_stacks(env)) is not None:
        writing/create create | warn_caller(on_stacks)
        writing/create create | stack_padding, about_env = found.padding, env_metadata(env)
        writing/create create | frame, action = frame or found.frame, action or found.action
        writing/create create | lanes = lanes if lanes is not None else found.lanes
        system/memory_maps advise_random
        system/memory_maps advise_needed
        system/memory_maps populate_read
        system/memory_maps resident
        system/platform uptime_s
        system/locks is_locked
        system/held_directories HeldDirectory.place
        system/held_directories HeldPath.__repr__
        system/held_directories HeldPath.__eq__ | return NotImplemented
        system/held_directories shown
        system/checked_reads allocated_bytes
        system/checked_reads _rounded
        system/checked_reads check_rights
        system/checked_reads _check_right
    """,
    "makes the text of a refusal": """
        writing/log Log.missing
        writing/lane_files _check_kind | raise SchemaError(
        writing/lane_files _check_kind | f"{path}: expected a lane of kind {kind!r}, found one of kind {metadata['kind']!r}"
        writing/session Session.guard | else f"{self._path}: a flush in the background failed: {self.failure!r}; what is "
        system/disk_errors writing | room, advice = "left in the disk quota", "make room, or have the quota raised,"
        system/disk_errors _advice
        system/checked_reads _no_right
        writing/request _words
        storage/checksums damaged
        storage/state_page State.ahead_of | f"{name}: expected at most that of the checkpoint, {known:,}, found {found:,}"
        storage/tail_file tail_problem | return (
        storage/tail_file tail_problem | f"tail_start: expected a multiple of {half:,} at most {2 * half:,} rows before the "
        storage/tail_file tail_problem | f"head, {head:,}, found {tail_start:,}"
        system/checked_reads name_problem | return "it has a character that no name can have"
        system/checked_reads name_problem | return "it is longer than the file system takes"
    """,
    "runs when the module is imported": """
        system/platform _make_barrier
        system/platform _libc
    """,
    "in a forked child, which writes nothing": """
        writing/session Session.abandon
        system/threads Thread.after_fork_in_child
    """,
    "when the interpreter is ending": """
        writing/background Background.submit | task()
        system/threads Thread.start | except (RuntimeError, MemoryError):
        system/threads Thread.start | self.is_started = False
        system/threads Thread.start | raise
        system/threads Workers.hand_over | self.end()
        system/threads Workers.hand_over | return False
        system/threads Workers.hand_over | for left in todo:
        system/threads Workers.hand_over | left()
        system/threads Workers.hand_over | except (RuntimeError, MemoryError):
        system/threads Workers.hand_over | if thread is self._threads[0]:
        system/threads _start_all | except (RuntimeError, MemoryError):
        system/threads _start_all | return
        system/threads _end_all
    """,
    "other systems or processors": """
        writing/writer Writer.step | _publish()
        writing/vector_writer VectorWriter.step | _publish()
        writing/vector_writer VectorWriter._append_starts | _publish()
        writing/writer Writer._commit | _publish()
        storage/state_page State.start | platform.barrier()
        system/durable_writes _fallocate | have = os.fstat(descriptor).st_size
        system/durable_writes _fallocate | os.lseek(descriptor, have, os.SEEK_SET)
        system/durable_writes _fallocate | _write_all(descriptor, bytes(max(size - have, 0)))
        system/durable_writes _call_fallocate | return False
        system/durable_writes _keep_in_place | return
        system/durable_writes sync_directory | return
        system/durable_writes _fsync | platform.fcntl.fcntl(descriptor, platform.fcntl.F_FULLFSYNC)
        system/durable_writes _fdatasync | _fsync(descriptor)
        system/memory_maps _reserve | raise OSError(errno.ENOSYS, "no mmap in the C library")
        system/memory_maps map_file | access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        system/memory_maps map_file | return np.frombuffer(mmap.mmap(descriptor, size, access=access), np.uint8)
        system/held_directories HeldDirectory.__init__ | raise FailedStoreError(
        system/held_directories HeldDirectory.__init__ | f"{path}: this system cannot hold a directory open, so nothing can be written "
        system/locks DirectoryLock.__init__ | raise FailedStoreError(
        system/locks DirectoryLock.__init__ | f"{path}: this system has no flock, so nothing can be written here; "
        system/platform boot_id | if sys.platform == "darwin":
        system/platform boot_id | command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        system/platform boot_id | run = subprocess.run(command, capture_output=True, check=True, text=True)
        system/platform boot_id | text = run.stdout
        system/platform boot_id | return uuid.UUID(text.strip()).bytes
        system/platform boot_id | except (OSError, ValueError, subprocess.SubprocessError):
        system/platform boot_id | pass
        system/platform boot_id | return _PROCESS_ID
    """,
    "snapshots and repairs; see the tests of these": """
        storage/priority_column is_usable
        storage/priority_column _stored_crc32c
        system/durable_writes share_file
        system/durable_writes copy_file
        system/durable_writes _copy_from
        system/durable_writes exchange
        system/checked_reads identity
        system/durable_writes temporary_directory
        system/staging locked_temporary_directory
        storage/checkpoint CheckpointFile.stored_uuids
    """,
    "damage": """
        storage/checkpoint CheckpointFile._parse | return None
        writing/recover _map_live | State.create(live / "state")
        writing/recover _map_live | durable_writes.sync_all([live / "state"], [live])
        writing/recover recover | _replace_damaged(path, specs, checkpoint, head, tail_start, base)
        writing/recover _replace_damaged
        writing/build_lane write_metadata | data = layout.group_json(new)
        system/disk_errors writing | raise
    """,
    "no room for a new buffer's reader or priorities, after its store was made": """
        writing/create give_up | with contextlib.suppress(MmreplayError, OSError):
        writing/create give_up | lock = DirectoryLock(writer.path, patience_s=0, who=lambda: "")
        writing/create give_up | try:
        writing/create give_up | if read_metadata(lock.directory.root)["uuid"] == uuid_of_it:
        writing/create give_up | remove_atomically(lock.directory)
        writing/create give_up | lock.release()
    """,
    "an error that is none of ours: no memory": """
        writing/seal Sealer.wait | raise job.error
        writing/session Session.close | except BaseException:
        writing/session Session.close | self.release_unclosed()
        writing/session Session.close | raise
        system/threads run_in_threads | raise ended[0]
        writing/vector_writer VectorWriter.__init__ | except BaseException:
        writing/vector_writer VectorWriter.__init__ | self.files.release()
        writing/vector_writer VectorWriter.__init__ | raise
        writing/seal SealJob.run | raise
    """,
    "a race of two threads or processes within one statement": """
        writing/writer Writer._cache_for_step | self._border = 0
        writing/vector_writer VectorWriter._cache_border | self._border = 0
        writing/background Background.tick | break
        writing/background _flush_loop | return
        writing/flush in_turn | raise FailedStoreError(str(lane.failure)) from lane.failure
        system/durable_writes replace_directory | return False
        system/durable_writes sync_file | except FileNotFoundError:
        system/durable_writes sync_file | if missing_ok:
        system/durable_writes sync_file | return
        system/durable_writes sync_file | raise
        system/locks DirectoryLock.__init__ | self.release()
        system/locks DirectoryLock.__init__ | self.directory = HeldDirectory(path)
        system/locks DirectoryLock.__init__ | continue
        system/locks DirectoryLock.__init__ | with writing("flock", path):
        system/locks DirectoryLock.__init__ | raise
        system/locks DirectoryLock.__init__ | deadline = max(deadline, time.monotonic() + patience_s)
        system/locks DirectoryLock.is_on | return False
        writing/background _flush_loop | goes_on &= wake.get() is True
        writing/seal SealJob.work | except IndexError:
        writing/seal SealJob.work | return
        system/threads run_in_threads | except IndexError:
        system/threads run_in_threads | return
    """,
    "starts a thread, in one that nobody traces": """
        system/threads Thread._start_named
    """,
    "an interrupt; see tests/crash/test_ctrl_c.py": """
        system/threads run_in_threads | except BaseException as error:
        system/threads run_in_threads | ended.append(error)
        writing/session Session.release_unclosed | except BaseException:
        writing/session Session.release_unclosed | self.files.abandon()
        writing/session Session.release_unclosed | try:
        writing/session Session.release_unclosed | Thread(self._let_go, "mmreplay-release").start()
        writing/session Session.release_unclosed | except RuntimeError:
        writing/session Session.release_unclosed | self._let_go()
        writing/session Session.release_unclosed | raise
    """,
    "a copy made of hard links; see the simulator": """
        storage/state_page State.make_own
        system/durable_writes make_own
        writing/seal Sealer._replace_tails
        writing/seal Sealer.make_room | self._replace_tails()
    """,
    "a limit of the process; see the tests of limits": """
        system/memory_maps map_file | except OSError as error:
        system/memory_maps map_file | check_limit(error, path)
        system/held_directories HeldDirectory.__init__ | check_limit(error, path)
        system/memory_maps map_file | raise
        system/memory_maps _put | number = ctypes.get_errno()
        system/memory_maps _put | error = OSError(number, os.strerror(number))
        system/memory_maps _put | check_limit(error, path)
        system/memory_maps _put | raise error
        writing/create _make | raise
        writing/flush in_turn | raise
        writing/session Session.failing | raise
    """,
    "a directory that somebody removes or replaces meanwhile": """
        system/held_directories HeldDirectory.__init__ | except OSError as error:
        system/held_directories HeldDirectory.__init__ | check_there(path, error)
        system/held_directories HeldDirectory.__init__ | raise
        system/held_directories HeldPath._stat | except FileNotFoundError as error:
        system/held_directories HeldPath._stat | check_there(self, error)
        system/held_directories HeldPath._stat | raise
        system/held_directories check_there
        writing/flush in_turn | except FileNotFoundError as error:
        writing/flush in_turn | lane.failure = FailedStoreError(
        writing/flush in_turn | f"{lane.path}: {error.filename!r} is missing: somebody is removing this store, or "
        writing/flush in_turn | raise lane.failure from error
        system/durable_writes _make_directory | raise
        system/staging remove_atomically | durable_writes.rename(staged, path)
    """,
    "a file of somebody else": """
        system/durable_writes remove_tree | unlink(path)
        system/durable_writes remove_tree | return
        system/durable_writes sync_file | except OSError as error:
        system/durable_writes sync_file | if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        system/durable_writes sync_file | descriptor = _open(path, os.O_RDONLY)
    """,
}


@pytest.fixture(scope="module")
def actors():
    with actor.Actors() as running:
        yield running


class Stage:
    """Where scenes are performed, each time in a new store."""

    def __init__(self, actors, folder):
        self.actors, self.folder, self.number = actors, folder, 0

    def script(self, name, **changes):
        self.number += 1
        path, report = (str(self.folder / f"{self.number}.{end}") for end in ("zarr", "report"))
        return dataclasses.replace(SCENES[name], path=path, report=report, **changes)

    def count(self, name):
        """Executions by line, of one performance."""
        script = self.script(name, count=True)
        chronicle = actor.Chronicle(script)
        assert self.actors.wait(self.actors.start(script)) == 0
        found = json.loads(Path(script.report + ".counts").read_text())
        aftermath.check_closed(chronicle)
        self.clear(script)
        return {(file, line): count for file, line, count in found["lines"]}

    def die(self, name, line, at):
        """A death at a line, and all that is asked of what it leaves; False if it came to none."""
        script = self.script(name, die_at_line=(*line, at))
        chronicle = actor.Chronicle(script)
        died = self.actors.wait(self.actors.start(script)) == -9
        try:
            if died:
                aftermath.check_found(chronicle, most=6)
                aftermath.go_on(chronicle, 5, close=True)
                aftermath.check_closed(chronicle)
        except BaseException as error:
            error.add_note(f"killed in the scene {name!r}, before {line}, execution {at}")
            raise
        self.clear(script)
        return died

    def clear(self, script):
        shutil.rmtree(script.path)
        for one in self.folder.glob(f"{self.number}.report*"):
            one.unlink()


def entries():
    """(module, function, line or "") of what is named above."""
    for given in ELSEWHERE.values():
        for entry in filter(None, map(str.strip, given.splitlines())):
            where, _, text = entry.partition(" | ")
            yield *where.split(), text


def write_path():
    """The lines of the write path that a scene has to reach, with the function of each."""
    out, used = {}, set()
    for module in WRITE_PATH:
        source = (lines.ROOT / f"{module}.py").read_text().splitlines()
        refusals = lines.refusals(f"{module}.py")
        named = [(entry, *entry[1:]) for entry in entries() if entry[0] == module]
        for function, found in lines.functions(f"{module}.py").items():
            for line in found:
                text = source[line - 1].partition("  # ")[0].strip()
                excused = {
                    entry
                    for entry, what, begins in named
                    if (function == what or function.startswith(f"{what}."))
                    and (not begins or text == begins)
                }
                used |= excused
                if not excused and line not in refusals:
                    out[f"{module}.py", line] = f"{module} {function}: {text}"
    gone = set(entries()) - used
    assert not gone  # named above, and not there (any more)
    return out


def all_points(stage, needed):
    """Executions by line and scene; scenes that take fewest lines come first."""
    found = collections.defaultdict(dict)
    counts = {name: stage.count(name) for name in SCENES}
    for name in SCENES:  # the threads of a scene may be slower once than another time
        if needed - set().union(*counts.values()):
            counts[name] = stage.count(name) | counts[name]
    for name in sorted(SCENES, key=lambda name: sum(counts[name].values())):
        for line, count in counts[name].items():
            found[line][name] = count
    return found


def test_the_write_path_has_more_than_a_thousand_lines_to_die_at():
    assert len(write_path()) > 1_000


@pytest.mark.deep
def test_death_at_lines_of_the_write_path_loses_nothing(actors, tmp_path, measured):
    stage = Stage(actors, tmp_path)
    if THOROUGH:
        die_at_every_line(stage, random.Random(), measured)
    else:
        die_at_some_lines(stage, random.Random(3))


def die_at_some_lines(stage, luck):
    n_deaths = n_lines = 0
    for name in ["lz4", "recovered", *luck.sample(sorted(SCENES), by_effort(1, 6, 6))]:
        counts = stage.count(name)
        for line in luck.sample(sorted(counts), N_LINES):
            n_lines += 1
            n_deaths += stage.die(name, line, luck.randint(1, min(counts[line], 9)))
    assert n_deaths > n_lines // 2  # the background may need a line less


def die_at_every_line(stage, luck, measured):
    needed = write_path()
    points = all_points(stage, needed.keys())
    unreached = {line: needed[line] for line in sorted(needed.keys() - points.keys())}
    assert not unreached
    others = sorted(points.keys() - needed.keys())
    began = time.perf_counter()
    deaths, died_at = 0, set()
    for line in [*needed, *luck.sample(others, 300)]:
        scenes = points[line]
        # Threads take turns as they like: a line that was reached once may not be, or in another.
        tries = [name for name in scenes for _ in range(3)]
        while tries and line not in died_at:
            if stage.die(tries.pop(0), line, 1):
                died_at.add(line)
                deaths += 1
        # What everything goes through is executed for the first time when nothing is there yet.
        for _ in range(4 if line[0].removesuffix(".py") in DISK else 1):
            name = luck.choice(list(scenes))
            if scenes[name] > 1:
                deaths += stage.die(name, line, luck.randint(2, scenes[name]))
    missed = {line: needed[line] for line in sorted(needed.keys() - died_at)}
    result = measured("kill_lines", scenes=len(SCENES), modules=WRITE_PATH)
    share = 100 * (1 - len(missed) / len(needed))
    result.add("lines of the write path", len(needed), "")
    result.add("lines of the write path died at", share, "%", at_least=100)
    result.add("deaths", deaths, "", at_least=2_000)
    result.add("seconds", time.perf_counter() - began, "s")
    assert not missed
