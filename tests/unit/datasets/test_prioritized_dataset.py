"""`load(prioritized=True)`: priorities of rows that others write."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import PrioritizedReplayBuffer
from mmreplay.errors import ClosedError, InvalidIdError, LockedError, SchemaError
from mmreplay.storage import priority_column
from tests.support.prioritized import RAW, ROWS, play

pytestmark = pytest.mark.usefixtures("quick_disk")


class Played:
    """What `play` takes, around a writer."""

    def __init__(self, writer):
        self.writer, self.reset, self.step = writer, writer.reset, writer.step


def opened(path, **more):
    return mmreplay.create(path, **RAW, flush_s=0, **more)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(priority_column, "_CHUNK_ROWS", ROWS)


def names(path):
    return sorted(one.name for one in path.iterdir() if one.name != "zarr.json")


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("variant", ["proportional", "rank"])
@pytest.mark.usefixtures("short")
def test_batches_are_those_of_a_prioritized_buffer_bit_for_bit(tmp_path, lanes, variant):
    how = {"alpha": 0.7, "beta": 0.5, "betasteps": 30, "variant": variant, "stratified": True}
    given = {**RAW, "lanes": lanes, "capacity": 2000, "flush_s": 0}
    buffer = PrioritizedReplayBuffer(tmp_path / "a.zarr", seed=5, stack=None, **given, **how)
    writer = mmreplay.create(tmp_path / "b.zarr", **given)
    data = mmreplay.load(tmp_path / "b.zarr", stack=None, seed=5, prioritized=how)
    random = np.random.default_rng(1)
    for _ in range(60):
        n = int(random.integers(1, 150))
        play(buffer, n)
        play(Played(writer), n)
        batches = [one.sample(16) for one in (buffer, data)]
        assert batches[0].id.tolist() == batches[1].id.tolist()
        assert batches[0].weight.tobytes() == batches[1].weight.tobytes()
        errors = random.normal(size=16)
        for one in (buffer, data):
            one.update_priorities(batches[0].id, errors)
    assert buffer.n_late_updates == data.n_late_updates == 0
    assert buffer.priorities(buffer.ids).tolist() == data.priorities(data.ids).tolist()
    assert buffer.store.lanes[0].first > 0  # some were evicted
    buffer.close()
    data.close()
    writer.close()


@pytest.mark.usefixtures("short")
def test_the_writer_takes_in_the_column_evicts_its_files_and_closes_it(tmp_path):
    path = tmp_path / "store.zarr"
    with opened(path, capacity=2 * ROWS) as writer:
        play(Played(writer), 10)
        with mmreplay.load(path, prioritized=True) as data:
            for _ in range(5):
                play(Played(writer), ROWS)
                data.sample(4)
            writer.flush()
            play(Played(writer), 1)
            writer.flush()
            files = names(path / "priorities")
            assert "c.0" not in files
            assert "c.5" in files
            data.update_priorities(data.ids[-2:], [7.0, 8.0])
            writer.close()  # while another one changes the priorities
            assert mmreplay.verify(path).findings == []
            data.update_priorities(data.ids[-1:], [9.0])
            kept = data.priorities(data.ids).tolist()
        assert mmreplay.verify(path).findings == []
    with mmreplay.load(path, prioritized=True) as data:
        assert data.priorities(data.ids).tolist() == kept
        assert data.sampler.largest == 9.0 + 1e-6
    with PrioritizedReplayBuffer(path) as buffer:
        assert buffer.priorities(buffer.ids).tolist() == kept


def test_a_closed_store_gets_a_column_and_stays_sound(tmp_path):
    path = tmp_path / "store.zarr"
    for name in ("a", "b"):
        with opened(path, lane=name) as writer:
            play(Played(writer), 20)
    with mmreplay.load(path, prioritized=True, stack=None) as data:
        data.update_priorities([3, (1 << 40) + 4], [5.0, 6.0])
        assert mmreplay.verify(path).findings == []
        assert data.priorities([3, 4]).tolist() == [5.0 + 1e-6, 1.0]
        assert len({*(data.sample(1000).id >> 40).tolist()}) == 2
        data.flush()
    assert mmreplay.verify(path).findings == []
    assert mmreplay.open(path).info()["state"] == "closed"
    with mmreplay.load(path, prioritized=True) as data:
        assert data.priorities([3, (1 << 40) + 4]).tolist() == [5.0 + 1e-6, 6.0 + 1e-6]


def test_new_rows_of_all_lanes_get_the_largest_priority(tmp_path):
    path = tmp_path / "store.zarr"
    writers = [opened(path, lane=str(n)) for n in range(3)]
    for writer in writers:
        play(Played(writer), 5, end=False)
    with mmreplay.load(path, prioritized=True) as data:
        data.update_priorities([0], [4.0])
        for writer in writers:
            play(Played(writer), 1, end=False, reset=False)
        writers.append(opened(path, lane="later"))
        play(Played(writers[-1]), 5)
        data.refresh()
        of_lanes = [[(n << 40) + 4, (n << 40) + 5] for n in range(3)]
        assert [data.priorities(ids).tolist() for ids in of_lanes] == [[1.0, 4.0 + 1e-6]] * 3
        assert data.priorities((3 << 40) + np.arange(5)).tolist() == [4.0 + 1e-6] * 5
        with pytest.raises(InvalidIdError, match="lane 9"):
            data.update_priorities([(9 << 40) + 1], [1.0])
        with pytest.raises(InvalidIdError):
            data.update_priorities([-1], [1.0])
        with pytest.raises(InvalidIdError):
            data.update_priorities([(1 << 40) + 99], [1.0])
    for writer in writers:
        writer.close()
    assert mmreplay.verify(path).findings == []


def test_one_object_at_a_time_changes_the_priorities(tmp_path):
    path = tmp_path / "store.zarr"
    with opened(path) as writer:
        play(Played(writer), 5)
        with mmreplay.load(path, prioritized=True):
            with pytest.raises(LockedError, match="priorities: open for writing"):
                mmreplay.load(path, prioritized=True)
            mmreplay.load(path).close()
        mmreplay.load(path, prioritized=True).close()
    with (
        mmreplay.load(path, prioritized=True),
        pytest.raises(LockedError, match="priorities: open for writing"),
    ):
        PrioritizedReplayBuffer(path)
    with (
        PrioritizedReplayBuffer(path),
        pytest.raises(LockedError, match="priorities: open for writing"),
    ):
        mmreplay.load(path, prioritized=True)


def test_the_state_has_largest_beta_and_generator(tmp_path):
    path = tmp_path / "store.zarr"
    with opened(path) as writer:
        play(Played(writer), 50)
    how = {"beta": 0.4, "betasteps": 10}
    with mmreplay.load(path, prioritized=how, seed=1) as data:
        data.update_priorities([7], [9.0])
        data.update_priorities([7], [2.0])
        data.sample(4)
        state = pickle.loads(pickle.dumps(data.state_dict()))
        expected = data.sample(16), data.beta
    with mmreplay.load(path, prioritized=how, seed=2) as data:
        assert data.sampler.largest == 2.0 + 1e-6
        data.load_state_dict(state)
        assert data.sampler.largest == 9.0 + 1e-6
        found = data.sample(16), data.beta
        with pytest.raises(SchemaError, match="largest"):
            data.load_state_dict({**state, "largest": "a"})
    assert found[0].id.tolist() == expected[0].id.tolist()
    assert found[0].weight.tolist() == expected[0].weight.tolist()
    assert found[1] == expected[1]


def test_what_is_refused(tmp_path):
    path = tmp_path / "store.zarr"
    with opened(path) as writer:
        play(Played(writer), 5)
    with pytest.raises(SchemaError, match="prioritized: expected"):
        mmreplay.load(path, prioritized=1)
    with pytest.raises(SchemaError, match=r"prioritized: expected settings.*alfa"):
        mmreplay.load(path, prioritized={"alfa": 1})
    with pytest.raises(SchemaError, match="alpha"):
        mmreplay.load(path, prioritized={"alpha": -1})
    assert not (path / "priorities").exists()
    with mmreplay.load(path, prioritized=True) as data:
        with pytest.raises(SchemaError, match="pickled"):
            pickle.dumps(data)
        with pytest.raises(SchemaError, match="replace"):
            data.sample(2, replace=False)
        assert type(data.select(ids=[1, 2])) is mmreplay.Dataset
    with pytest.raises(ClosedError):
        data.sample(2)
    with pytest.raises(ClosedError):
        data.update_priorities([1], [1.0])


def test_another_store_at_the_path_has_priorities_of_its_own(tmp_path, caplog):
    path, other = tmp_path / "store.zarr", tmp_path / "other.zarr"
    for one, n in ((path, 5), (other, 8)):
        with opened(one) as writer:
            play(Played(writer), n)
    with mmreplay.load(path, prioritized=True) as data:
        data.update_priorities([3], [5.0])
        path.rename(tmp_path / "moved.zarr")
        other.rename(path)
        data.refresh()
        assert "another store is now at this path" in caplog.text
        assert data.priorities(np.arange(8)).tolist() == [5.0 + 1e-6] * 8  # as new ones
        data.update_priorities([6], [0.5])
    for one in (path, tmp_path / "moved.zarr"):
        assert mmreplay.verify(one).findings == []
    with mmreplay.load(path, prioritized=True) as data:
        assert data.priorities([6]).tolist() == [0.5 + 1e-6]
    with mmreplay.load(tmp_path / "moved.zarr", prioritized=True) as data:
        assert data.priorities([2, 3]).tolist() == [1.0, 5.0 + 1e-6]


def test_a_forked_child_has_no_priorities(tmp_path):
    path = tmp_path / "store.zarr"
    with opened(path) as writer:
        play(Played(writer), 5)
    with mmreplay.load(path, prioritized=True) as data:
        child = os.fork()
        if not child:
            try:
                data.sample(1)
            except ClosedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        data.sample(1)
        with pytest.raises(LockedError):
            mmreplay.load(path, prioritized=True)


_WRITER = """
import sys, numpy as np, mmreplay
from tests.support.prioritized import RAW, play
class Played:
    def __init__(self, writer): self.writer, self.reset, self.step = writer, writer.reset, writer.step
writer = mmreplay.create(sys.argv[1], **RAW, lane=sys.argv[2], lanes=4, capacity=3000, flush_s=0.1)
played = Played(writer)
play(played, 5)
print("ready", flush=True)
while True:
    play(played, 50)
"""


@pytest.mark.usefixtures("short")
def test_writers_of_other_processes_are_killed_and_come_back(tmp_path):
    path, known = tmp_path / "store.zarr", {}

    def start(name):
        one = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), name], stdout=subprocess.PIPE, text=True
        )
        assert one.stdout.readline() == "ready\n"
        return one

    running = [start("a")]
    random = np.random.default_rng(0)
    with mmreplay.load(path, prioritized={"alpha": 1.0}) as data:
        for round_ in range(60):
            if round_ == 10:
                running.append(start("b"))
                data.refresh()
            if round_ % 20 == 15:
                running[0].kill()
                running[0].communicate()
                running[0] = start("a")
            batch = data.sample(64)
            errors = random.random(64)
            data.update_priorities(batch.id, errors)
            known |= dict(zip(batch.id.tolist(), (errors + 1e-6).tolist(), strict=True))
        for one in running:
            one.kill()
            one.communicate()
        ids = data.ids
        found = dict(zip(ids.tolist(), data.priorities(ids).tolist(), strict=True))
        assert {i: found[i] for i in known if i in found} == {
            i: known[i] for i in known if i in found
        }
        assert {found[i] for i in found.keys() - known.keys()} == {data.sampler.largest}
        assert {*(ids >> 40).tolist()} == {0, 1}
        assert abs(data.probabilities(ids).sum() - 1) < 1e-9
    for name in ("a", "b"):
        mmreplay.create(path, lane=name).close()
    assert mmreplay.verify(path).findings == []
