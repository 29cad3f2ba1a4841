"""What the kernel is told of mapped chunk files, and when."""

import numpy as np
import pytest

from mmreplay.storage.raw_column import Pager
from mmreplay.system import memory_maps


@pytest.fixture
def pager():
    """A pager that knows of three large chunks, and the chunks."""
    one = Pager()
    data = {(0, n): np.zeros(1 << 20, np.uint8) for n in range(3)}
    for chunk, values in data.items():
        one.add(chunk, values)
    return one


@pytest.fixture
def advice(monkeypatch):
    """What the kernel was told, and which part of a map is in memory."""
    told = {"resident": 1.0, "calls": []}
    monkeypatch.setattr(memory_maps, "resident", lambda data: told["resident"])
    for name in ("populate_read", "advise_random"):
        monkeypatch.setattr(memory_maps, name, lambda data, name=name: told["calls"].append(name))
    return told


def test_chunks_in_memory_are_populated_once_and_then_forgotten(pager, advice):
    assert pager.active
    assert not pager.before({(0, 0), (0, 1), (7, 7)})
    assert advice["calls"] == ["populate_read"] * 2
    assert not pager.before({(0, 0), (0, 1)})
    assert pager.active
    assert not pager.before({(0, 2)})
    assert not pager.active
    assert len(advice["calls"]) == 3


def test_rows_on_disk_are_asked_for_until_their_chunk_is_in_memory(pager, advice):
    advice["resident"] = 0.5
    for _ in range(3):
        assert pager.before({(0, 0)})
    assert not pager.before({(0, 9)})
    assert advice["calls"] == ["advise_random"]
    advice["resident"] = 1.0
    answers = [pager.before({(0, 0)}) for _ in range(300)]
    assert answers[0]
    assert not answers[-1]
    assert advice["calls"] == ["advise_random", "populate_read"]
