"""Openings in which something happens."""

import threading

import pytest

import mmreplay
from mmreplay.storage.raw_column import SideBySide
from mmreplay.system import checked_reads, memory_maps


@pytest.fixture
def between_reads(monkeypatch):
    """Open a store; just before the `at`-th read of its files, something happens."""

    def open_store(path, at, happens):
        count, mine = [0], threading.current_thread()

        def watch(real):

            def call(*args, **kwargs):
                if threading.current_thread() is mine:
                    count[0] += 1
                    if count[0] == at:
                        happens()
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(checked_reads, "read_bytes", watch(checked_reads.read_bytes))
            patch.setattr(checked_reads, "read_ranges", watch(checked_reads.read_ranges))
            patch.setattr(memory_maps, "map_file", watch(memory_maps.map_file))
            patch.setattr(SideBySide, "put", watch(SideBySide.put))
            store = mmreplay.open(path)
        assert count[0] >= at
        return store

    return open_store
