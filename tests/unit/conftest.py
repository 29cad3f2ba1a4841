"""What the tests of several modules need: small stores, and what was written to them."""

import dataclasses
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, PrioritizedReplayBuffer, ReplayBuffer
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage import priority_column
from tests.support import prioritized
from tests.support.disks import faults
from tests.support.writers import LaneWriters, make_lanes

RAW = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}


class Story:
    """Steps whose values follow from their number, and a list of what happened in each.

    Attributes:
        lanes: by path, a dict for each step: the numbers of the observations before and after it,
            whether its episode begins and ends with it, its flag, and its number in the episode.
    """

    def __init__(self):
        self.lanes, self._pending, self._seen = {}, {}, {}

    # ------------------------------------------------------------ what a step holds

    @staticmethod
    def value(field, number, salt=0):
        """Of a numbered row of a field: never zero, and hardly ever that of its neighbours."""
        count = int(np.prod(field.shape))
        numbers = 1 + (number * 7 + salt * 5 + np.arange(count) * 3) % 120
        return numbers.astype(field.dtype).reshape(field.shape)

    def frame(self, schema, number):
        """The observation with a number."""
        values = {
            key: self.value(one, number, salt)
            for salt, (key, one) in enumerate(schema.frames.items())
        }
        return values if schema.is_dict else values["frame"]

    @staticmethod
    def reward(row):
        return row / 4 + 1

    # ------------------------------------------------------------ writing

    def _new_frame(self, writer):
        number = self._seen[writer.path] = self._seen.get(writer.path, 0) + 1
        return number, self.frame(writer.schema, number)

    def reset(self, writer):
        steps = self.lanes.setdefault(writer.path, [])
        number, frame = self._new_frame(writer)
        writer.reset(frame)
        if steps:
            steps[-1]["end"] = True
        self._pending[writer.path] = number, 1

    def step(self, writer, terminated=False, truncated=False, life_lost=False):
        steps, (before, count) = self.lanes[writer.path], self._pending[writer.path]
        row, schema = len(steps), writer.schema
        after, frame = self._new_frame(writer)
        extras = {
            name: self.value(one, row, 9).astype(one.dtype) for name, one in schema.extras.items()
        }
        writer.step(
            self.value(schema.action, row),
            self.reward(row),
            frame,
            terminated,
            truncated,
            life_lost=life_lost,
            **extras,
        )
        about = {"before": before, "after": after, "flag": int(not (terminated or life_lost))}
        steps.append({**about, "step": count, "end": terminated or truncated})
        self._pending[writer.path] = after, count + 1

    def play(self, writer, n_steps, end="", *, reset=True):
        """Steps of one episode in one lane, or in every lane of a store of many."""
        if isinstance(writer, LaneWriters):
            for one in writer.writers:
                self.play(one, n_steps, end, reset=reset)
            return
        if reset:
            self.reset(writer)
        for left in range(n_steps - 1, -1, -1):
            ends = end if not left else ""
            self.step(writer, ends == "terminated", ends == "truncated")

    def play_every_end(self, writer):
        """33 steps a lane: an episode of each end, one of no step, and one that runs."""
        for one in getattr(writer, "writers", (writer,)):
            self.play(one, 9, "terminated")
            self.play(one, 11, "truncated")
            self.reset(one)
            self.play(one, 13)

    def copy(self, source, target, stop=None):
        """Expect of `target` the first steps of `source`, with the last of which its episode ends.

        So it is of `source` itself once its writer has closed it, or died.
        """
        self.lanes[target] = [dict(one) for one in self.lanes[source][:stop]]
        if self.lanes[target]:
            self.lanes[target][-1]["end"] = True

    # ------------------------------------------------------------ comparing

    def columns(self, path, schema):
        """Every column of a lane as it must read, by its path."""
        steps = self.lanes[path]
        out = {}
        for salt, (key, one) in enumerate(schema.frames.items()):
            name = f"frames/{key}" if schema.is_dict else "frames"
            out[name] = self._array(one, [about["before"] for about in steps], salt)
        numbers = range(len(steps))
        out["actions"] = self._array(schema.action, numbers)
        for name, one in schema.extras.items():
            out[f"extras/{name}"] = self._array(one, numbers, 9)
        out["rewards"] = np.array([self.reward(row) for row in numbers], schema.reward_dtype)
        out["non_terminals"] = np.array([about["flag"] for about in steps], np.uint8)
        out["resets"] = np.array([about["step"] == 1 for about in steps], np.uint8)
        out["ends"] = np.array([about["end"] for about in steps], np.uint8)
        out["step"] = np.array([about["step"] for about in steps], np.int64)
        return out

    def _array(self, field, numbers, salt=0):
        values = [self.value(field, number, salt) for number in numbers]
        return np.array(values, field.dtype).reshape(len(values), *field.shape)

    def check(self, store, *, start=0):
        """Every column of every lane, from row `start` on, byte for byte, and what came after."""
        for number, view in enumerate(store.lanes):
            if store.live.readers[number].is_closed:
                self.copy(view.path, view.path)
            frames = view.frames
            found = {name: getattr(view, name) for name in _SCALARS}
            found |= (
                {f"frames/{key}": one for key, one in frames.items()}
                if isinstance(frames, dict)
                else {"frames": frames}
            )
            found |= {f"extras/{name}": one for name, one in view.extras.items()}
            expected = self.columns(view.path, store.schema)
            assert found.keys() == expected.keys()
            for name, column in found.items():
                assert column.shape == expected[name].shape, name
                assert column.dtype == expected[name].dtype, name
                assert column[start:].tobytes() == expected[name][start:].tobytes(), name
            rows = range(max(start, view.first), len(view.rewards))
            self.check_transitions(store, number, rows)

    def check_transitions(self, store, lane, rows):
        """What steps are seen to have led to."""
        steps = [self.lanes[store.lanes[lane].path][row] for row in rows]
        batch = store.transitions(np.array(rows, np.int64) + (lane << LANE_SHIFT), stack=None)
        for salt, (key, one) in enumerate(store.schema.frames.items()):
            frames = batch.next_observation
            frames = frames[key] if store.schema.is_dict else frames
            expected = self._array(one, [about["after"] for about in steps], salt)
            assert frames.tobytes() == expected.tobytes(), key
        over = [about["end"] for about in steps]
        assert (batch.terminated | batch.truncated).tolist() == over
        assert batch.terminated.tolist() == [one["end"] and not one["flag"] for one in steps]

    def observed(self, path, schema, rows):
        """The observations before steps: (n, *frame)."""
        steps = self.lanes[path]
        return np.stack([self.frame(schema, steps[row]["before"]) for row in rows])

    def transitions(self, path):
        """Rows of a lane that are transitions: all of them."""
        return list(range(len(self.lanes[path])))


_SCALARS = ("actions", "rewards", "non_terminals", "resets", "ends", "step")


@pytest.fixture
def story():
    return Story()


@pytest.fixture(scope="module")
def story_of_module():
    """For a store that the tests of a module share, and only read."""
    return Story()


@pytest.fixture
def kill():
    """Leave a writer's directory as the death of its process would at this moment."""
    return faults.kill


@pytest.fixture
def child():
    """What a piece of code prints in a process of its own."""

    def run(code, *arguments):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def make(tmp_path, quick_disk, kill):
    """Create a store of short chunks in the test's folder: `make(name, **of_create)`.

    With `n_lanes` it is one in which as many environments have a lane each. Whatever is still open
    when the test ends dies without a word.
    """
    writers = []

    def create(name="store.zarr", **changes):
        given = RAW | {"flush_s": 0} | changes
        if changes.get("append"):
            given = {"flush_s": 0} | changes
        new = make_lanes if "n_lanes" in changes else mmreplay.create
        writers.append(new(tmp_path / name, **given))
        return writers[-1]

    yield create
    for writer in writers:
        kill(writer)


@pytest.fixture
def lz4():
    """Keywords for `make`: compressed frames in shards of 8 rows."""
    return {"frame": Field((3,), "uint8", "lz4", chunk=4, shard=8)}


KINDS = {
    "raw": Field((3,), "uint8", "raw", chunk=8),
    "lz4": Field((3,), "uint8", "lz4", chunk=4, shard=8),
    "zstd": Field((3,), "uint8", "zstd", chunk=4, shard=16),
    "dict": {
        "pixels": Field((2, 3), "uint8", "lz4", chunk=4, shard=8),
        "seen": Field((), "bool", "raw", chunk=8),
        "speed": Field((2,), "float32", "raw", chunk=16),
    },
}


@pytest.fixture
def kinds():
    """Frames of every kind, by its name."""
    return KINDS


@pytest.fixture(params=KINDS)
def kind(request):
    """The name of each kind of frames in turn."""
    return request.param


@pytest.fixture(params=[None, 3], ids=["one lane", "three lanes"])
def lanes(request):
    """What `create` takes for one lane and for several, in turn."""
    return request.param


@pytest.fixture
def buffer_of(tmp_path, quick_disk, kill):
    """Open a replay buffer in the test's folder; what is left open dies at the end."""
    buffers = []

    def create(name="store.zarr", **changes):
        new = not (tmp_path / name).exists()
        given = (RAW if new else {}) | {"flush_s": 0} | changes
        buffers.append(ReplayBuffer(tmp_path / name, **given))
        return buffers[-1]

    yield create
    for buffer in buffers:
        kill(buffer.writer)
        buffer.store.close()


@pytest.fixture
def twin_of(make, story):
    """What a dataset of 50 transitions draws that nobody else touches."""
    writer = make("twin.zarr")
    story.play(writer, 50, "terminated")
    writer.close()
    return lambda seed: mmreplay.load(writer.path, seed=seed)


@pytest.fixture
def same():
    """Whether two batches are equal in every array."""

    def arrays(batch):
        found = [getattr(batch, one.name) for one in dataclasses.fields(batch)]
        return [one for one in found if isinstance(one, np.ndarray)]

    return lambda one, other: all(
        np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True)
    )


@pytest.fixture
def prioritized_of(tmp_path, monkeypatch, quick_disk, kill):
    """Open a prioritized buffer in the test's folder, with short chunk files of priorities.

    What is left open dies at the end.
    """
    monkeypatch.setattr(priority_column, "_CHUNK_ROWS", prioritized.ROWS)
    buffers = []

    def create(name="store.zarr", kind=PrioritizedReplayBuffer, **changes):
        new = not (tmp_path / name).exists()
        given = (prioritized.RAW if new else {}) | {"flush_s": 0, "stack": None} | changes
        buffers.append(kind(tmp_path / name, **given))
        return buffers[-1]

    yield create
    for buffer in buffers:
        kill(buffer)


@pytest.fixture(scope="module")
def pristine_lane(tmp_path_factory, story_of_module):
    """A closed lane of 19 steps, never changed."""
    writer = mmreplay.create(
        tmp_path_factory.mktemp("pristine") / "store.zarr",
        frame=Field((3,), "uint8", "lz4", chunk=4, shard=8),
        action=Field((), "int64", chunk=8),
        extras={"x": Field((2,), "float32", chunk=4)},
    )
    story_of_module.play(writer, 12, "terminated")
    story_of_module.play(writer, 7)
    writer.close()
    return writer


@pytest.fixture
def closed_lane(pristine_lane, tmp_path):
    """A copy of it to change: its path, its schema and its arrays."""
    path = shutil.copytree(pristine_lane.path, tmp_path / "store.zarr")
    return SimpleNamespace(
        path=path, schema=pristine_lane.schema, specs=pristine_lane.files.rows.specs
    )
