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
from mmreplay.storage import priority_column
from tests.support import prioritized
from tests.support.disks import faults
from tests.support.writers import LaneWriters, make_lanes

RAW = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}


class Story:
    """Rows whose values follow from their number, and a list of what happened in each."""

    def __init__(self):
        self.lanes = {}

    # ------------------------------------------------------------ what a row holds

    @staticmethod
    def value(field, row, salt=0):
        """Of a row of a field: never zero, and hardly ever that of its neighbours."""
        count = int(np.prod(field.shape))
        numbers = 1 + (row * 7 + salt * 5 + np.arange(count) * 3) % 120
        return numbers.astype(field.dtype).reshape(field.shape)

    def frame(self, schema, row):
        values = {
            key: self.value(one, row, salt) for salt, (key, one) in enumerate(schema.frames.items())
        }
        return values if schema.is_dict else values["frame"]

    @staticmethod
    def reward(row):
        return row / 4 + 1

    # ------------------------------------------------------------ writing

    def reset(self, writer):
        rows = self.lanes.setdefault(writer.path, [])
        writer.reset(self.frame(writer.schema, len(rows)))
        rows.append({"reset": 1, "flag": 1, "step": False})

    def step(self, writer, terminated=False, truncated=False, life_lost=False):
        rows = self.lanes[writer.path]
        newest, schema = len(rows) - 1, writer.schema
        extras = {
            name: self.value(one, newest, 9).astype(one.dtype)
            for name, one in schema.extras.items()
        }
        writer.step(
            self.value(schema.action, newest),
            self.reward(newest),
            self.frame(schema, newest + 1),
            terminated,
            truncated,
            life_lost=life_lost,
            **extras,
        )
        flag = int(not (terminated or life_lost))
        rows[-1].update(flag=flag, step=True)
        rows.append({"reset": 0, "flag": flag, "step": False})

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
        """37 rows a lane: an episode of each end, one of a single row, and one that runs."""
        for one in getattr(writer, "writers", (writer,)):
            self.play(one, 9, "terminated")
            self.play(one, 11, "truncated")
            self.reset(one)
            self.play(one, 13)

    def copy(self, source, target, stop=None):
        """Expect of `target` the first rows of `source`, the last of them as a final row."""
        rows = [dict(one) for one in self.lanes[source][:stop]]
        flag = 1 if rows[-1]["reset"] else rows[-2]["flag"]
        rows[-1].update(step=False, flag=flag)
        self.lanes[target] = rows

    # ------------------------------------------------------------ comparing

    def columns(self, path, schema):
        """Every column of a lane as it must read, by its path."""
        rows = self.lanes[path]
        out = {}
        for salt, (key, one) in enumerate(schema.frames.items()):
            name = f"frames/{key}" if schema.is_dict else "frames"
            out[name] = np.array([self.value(one, row, salt) for row in range(len(rows))])
        steps = {"actions": (schema.action, 0)}
        steps |= {f"extras/{name}": (one, 9) for name, one in schema.extras.items()}
        for name, (one, salt) in steps.items():
            out[name] = np.zeros((len(rows), *one.shape), one.dtype)
            for row, about in enumerate(rows):
                if about["step"]:
                    out[name][row] = self.value(one, row, salt)
        out["rewards"] = np.array(
            [self.reward(row) * about["step"] for row, about in enumerate(rows)],
            schema.reward_dtype,
        )
        out["non_terminals"] = np.array([about["flag"] for about in rows], np.uint8)
        out["resets"] = np.array([about["reset"] for about in rows], np.uint8)
        return out

    def check(self, store, *, start=0):
        """Every column of every lane, from row `start` on, byte for byte."""
        for view in store.lanes:
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

    def transitions(self, path):
        """Rows of a lane that are transitions."""
        return [row for row, about in enumerate(self.lanes[path]) if about["step"]]


_SCALARS = ("actions", "rewards", "non_terminals", "resets")


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
    """A closed lane of 21 rows, never changed."""
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
    return SimpleNamespace(path=path, schema=pristine_lane.schema, specs=pristine_lane.specs)
