"""What this process and a store take at this moment: memory, descriptors, maps, threads, disk.

Invariant: nothing but counting; what is counted belongs to this process or lies below the path.

Linux only: it reads /proc.
"""

import dataclasses
import os
from pathlib import Path

from mmreplay.system import checked_reads

_DELETED = " (deleted)"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What is taken; bytes where nothing else is said."""

    anon: int  # resident memory of the process's own
    file: int  # resident memory that is mapped from files, in memory (tmpfs) or on a disk
    descriptors: int  # open ones, counted
    maps: int  # ranges of addresses, counted
    # those of them that show a file. Of the others the allocators of Python and of the C
    # library make one or a dozen for the same bytes
    file_maps: int
    deleted: int  # addresses that still show files which were unlinked: these keep their blocks
    threads: int  # of the process, counted
    files: int  # files and directories of the store, counted
    disk: int  # blocks allocated to the store


def resident():
    """Resident bytes of this process: anonymous, and mapped from files."""
    found = {"anon": 0, "file": 0}
    kinds = {"RssAnon": "anon", "RssFile": "file", "RssShmem": "file"}
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key in kinds:
            found[kinds[key]] += int(value.split()[0]) << 10
    return found


def usage(store):
    """Count, for this process and the store at `store`."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return Usage(
        **resident(),
        descriptors=len(os.listdir("/proc/self/fd")) - 1,  # without the one that lists them
        maps=len(maps),
        file_maps=sum("/" in line for line in maps),
        deleted=sum(_length(line) for line in maps if line.endswith(_DELETED)),
        threads=len(os.listdir("/proc/self/task")),
        files=sum(len(folders) + len(names) for _, folders, names in os.walk(store)),
        disk=sum(checked_reads.allocated_bytes(store).values()),
    )


def _length(line):
    """The bytes of one line of /proc/self/maps."""
    start, _, stop = line.split(maxsplit=1)[0].partition("-")
    return int(stop, 16) - int(start, 16)
