"""Damaged fields of episodes: `verify` names the file, and `repair` loses nothing but them."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, Text, repair, verify
from mmreplay.format import plan
from tests.support.disks.trees import flip

FIELDS = {"goal": Field((256,), "float64"), "note": Text(20)}  # goals: 2 in a chunk
N_STEPS = 40


@pytest.fixture(params=[None, 3], ids=["one", "three"])
def recorded(request, make, kill, monkeypatch):
    """A store with episodes of 3 steps, that was closed or killed, with capacity or without."""
    monkeypatch.setattr(plan, "_EPISODES_BYTES", 4096)

    def create(*, killed=False, **changes):
        n = request.param
        writer = make(lanes=n, episode=FIELDS, **changes)
        flags, frame = np.zeros(n or (), bool), np.zeros((n, 3) if n else 3, np.uint8)
        for step in range(N_STEPS):
            if step % 3 == 0:
                writer.reset(frame, goal=np.full(256, step + 1.0), note=f"step {step}", started=9)
            action = np.full(n, step % 256) if n else step % 256
            writer.step(action, flags * 1.0, frame, flags | (step % 3 == 2), flags)
        writer.flush()
        kill(writer) if killed else writer.close()
        return writer.path

    return create


def fields(path):
    """{field: those of each transition}, and what each did."""
    with mmreplay.open(path) as store:
        columns = {name: store.live.columns[f"episodes/{name}"] for name in store.live.fields}
        action = store.transitions(store.ids).action
        return {name: one.take(store.ids) for name, one in columns.items()}, action


def chunk(path, array, number):
    return path / "episodes" / array / f"c.{number}{'.0' * (array != 'started')}"


def bit(file):
    flip(file, 3)


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


ONLY_DEEP = pytest.mark.deep(only=True)


def unlink(file):
    file.unlink()


@pytest.mark.parametrize("skip", [False, pytest.param(True, marks=ONLY_DEEP)])
@pytest.mark.parametrize("array", ["goal", "note", pytest.param("started", marks=ONLY_DEEP)])
@pytest.mark.parametrize(
    ("killed", "how"), [(False, bit), (False, unlink), (False, cut), (True, unlink), (True, cut)]
)
def test_a_lost_chunk_costs_its_fields_and_nothing_else(recorded, array, killed, how, skip):
    path = recorded(killed=killed)
    before, action = fields(path)
    number = 2 if array == "goal" else 0
    how(chunk(path, array, number))
    found = verify(path).findings
    assert {(one.array, one.file) for one in found} == {
        (f"episodes/{array}", str(chunk(path, array, number).relative_to(path)))
    }
    done = repair(path, skip_damaged=skip)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (action.size, 0, [])
    assert verify(path).sound
    after, same = fields(path)
    assert np.array_equal(same, action)
    lost = np.ones(action.size, bool)
    if array == "goal":
        numbers = np.unique(before["goal"][:, 0], return_inverse=True)[1]
        n = 1 if action.size == N_STEPS else 3
        lost = (numbers * n + n - 1 >= 4) & (numbers * n < 6)
        kept = after["goal"][~lost]
        assert np.array_equal(kept, before["goal"][~lost])
        lost &= ~after["goal"].any(1)
        assert lost.any()
    blank = np.zeros_like(before[array][lost])
    assert np.array_equal(after[array][lost], blank)
    for name in before.keys() - {array}:
        assert np.array_equal(after[name], before[name]), name


def shorter(file):
    """Says that there is one episode."""
    document = json.loads(file.read_text())
    document["shape"][0] = 1
    file.write_text(json.dumps(document))


SUMS = {
    "a sum": lambda path: flip(path / "checksums/episodes/goal/c.0", 4),
    "sums": lambda path: (path / "checksums/episodes/goal/c.0").write_bytes(bytes(4096)),
    "no sums": lambda path: (path / "checksums/episodes/goal/c.0").unlink(),
    "the first shape": lambda path: shorter(path / "episodes/started/zarr.json"),
    "another shape": lambda path: shorter(path / "episodes/note/zarr.json"),
}
DOCUMENTS = {
    "of sums": lambda path: (path / "checksums/episodes/note/zarr.json").unlink(),
    "of an array": lambda path: (path / "episodes/goal/zarr.json").unlink(),
    "of the group": lambda path: (path / "episodes/zarr.json").write_bytes(b"{"),
}
CASES = [*((False, name) for name in SUMS | DOCUMENTS), *((True, name) for name in DOCUMENTS)]


@pytest.mark.parametrize(("killed", "name"), CASES)
def test_damaged_documents_and_checksums_cost_no_field(recorded, killed, name):
    path = recorded(killed=killed)
    before, action = fields(path)
    (SUMS | DOCUMENTS)[name](path)
    assert verify(path).findings
    done = repair(path)
    assert (done.kept, done.lost) == (action.size, 0)
    assert verify(path).sound
    after, _ = fields(path)
    assert before.keys() == after.keys()
    assert all(np.array_equal(after[name], one) for name, one in before.items())


@pytest.mark.parametrize("killed", [False, True])
def test_fields_follow_their_episodes_behind_the_damage(recorded, killed):
    path = recorded(killed=killed)
    before, action = fields(path)
    (path / "rewards" / ("c.1" if action.size == N_STEPS else "c.1.0")).unlink()
    done = repair(path, skip_damaged=True)
    assert done.lost > 0
    after, left = fields(path)
    assert left.size == done.kept
    of = {int(one): place for place, one in enumerate(action)}
    places = [of[int(one)] for one in left]
    assert all(np.array_equal(after[name], one[places]) for name, one in before.items())


def test_damage_to_fields_of_evicted_episodes_in_a_chunk(recorded):
    path = recorded(capacity=12)
    before, action = fields(path)
    (first,) = {int(one.name.split(".")[1]) for one in (path / "episodes/started").glob("c.*")}
    flip(chunk(path, "started", first), 0)
    assert [one.array for one in verify(path).findings] == ["episodes/started"]
    done = repair(path)
    assert (done.kept, done.lost) == (action.size, 0)
    after, _ = fields(path)
    assert not after["started"].any()
    assert np.array_equal(after["goal"], before["goal"])
