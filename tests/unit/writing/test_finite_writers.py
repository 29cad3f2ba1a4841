"""Stores made with ``finite=True``: what is refused has changed nothing, also after a reopening."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError, VectorWriter, Writer, verify
from mmreplay.writing.finite_writers import FiniteVectorWriter, FiniteWriter
from tests.support.writers import attributes

pytestmark = pytest.mark.usefixtures("quick_disk")

NAN = float("nan")
FIELDS = {"frame": Field((2,), "float32", chunk=8), "action": Field((), "float32", chunk=8)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.zarr"


def create(path, **more):
    given = FIELDS | {"flush_s": 0} | more
    return mmreplay.create(path, given.pop("frame"), given.pop("action"), **given)


def reopened(path, **more):
    return mmreplay.create(path, append=True, flush_s=0, **more)


def frame(value=0.0):
    return np.full(2, value, "float32")


def refuses(writer):
    """Each of these calls, in the middle of an episode, raises and leaves no row."""
    rows = writer.rows
    for call in (
        lambda: writer.step(0.5, NAN, frame()),
        lambda: writer.step(0.5, 0, frame(np.inf)),
        lambda: writer.step(NAN, 0, frame()),
        lambda: writer.reset(frame(NAN)),
    ):
        with pytest.raises(SchemaError, match="finite=True"):
            call()
        assert writer.rows == rows
        assert writer.running


def test_one_environment(path):
    with create(path, finite=True) as writer:
        assert isinstance(writer, Writer)
        writer.reset(frame())
        refuses(writer)
        writer.step(0.5, 1.5, frame(1))
        refuses(writer)
    with reopened(path) as writer:
        writer.reset(frame(2))
        refuses(writer)
        writer.step(0.25, 2.5, frame(3))
    with mmreplay.open(path) as store:
        assert store.rewards[:].tolist() == [1.5, 0, 2.5, 0]
        assert store.actions[:].tolist() == [0.5, 0, 0.25, 0]
        assert store.frames[:, 0].tolist() == [0, 1, 2, 3]
        assert store.info()["finite"]
    assert verify(path).sound


def test_it_holds_after_a_death(path):
    with create(path, finite=True) as writer:
        writer.reset(frame())
        writer.flush()
        writer._background.detach(writer)
        writer._session.abandon()
        writer.files.release()
    with reopened(path) as writer:
        writer.reset(frame())
        refuses(writer)


def vector_step(writer, odd=0.0, where=None, **more):
    values = np.zeros(3)
    frames = np.zeros((3, 2), "float32")
    given = {"actions": values.copy(), "rewards": values.copy(), "frames": frames}
    if where is not None:
        given[where][1] = odd
    no = np.zeros(3, bool)
    writer.step(**given, **{"terminated": no, "truncated": no} | more)


def test_no_cell_of_a_tick_is_there(path):
    with create(path, finite=True, lanes=3) as writer:
        assert isinstance(writer, VectorWriter)
        odd = np.zeros((3, 2), "float32")
        odd[2] = NAN
        with pytest.raises(SchemaError, match="frames of environment 2"):
            writer.reset(odd)
        writer.reset(odd, mask=[True, True, False])
        with pytest.raises(SchemaError, match="frames of environment 2"):
            writer.reset(odd, mask=[False, False, True])
        writer.reset(np.zeros((3, 2), "float32"))
        for where in ("actions", "rewards", "frames"):
            with pytest.raises(SchemaError, match=f"{where} of environment 1"):
                vector_step(writer, np.inf, where)
        assert writer.rows == 0
        vector_step(writer, terminated=np.array([False, True, False]))
        vector_step(writer, NAN, "rewards", mask=[True, False, True])
        assert writer.rows == 2
    with reopened(path) as writer:
        writer.reset(np.zeros((3, 2), "float32"))
        with pytest.raises(SchemaError, match="rewards of environment 1"):
            vector_step(writer, NAN, "rewards")
    report = verify(path)
    assert (report.sound, report.warnings) == (True, [])


@pytest.mark.parametrize("lanes", [None, 2])
def test_it_belongs_to_the_store(path, lanes):
    create(path, lanes=lanes, finite=True).close()
    reopened(path, finite=True).close()
    with pytest.raises(SchemaError, match="expected finite=True, as the store was made, found Fal"):
        reopened(path, finite=False)
    other = path.with_name("other.zarr")
    create(other, lanes=lanes, finite=False).close()
    assert "finite" not in attributes(other)
    with pytest.raises(SchemaError, match="expected finite=False, as the store was made, found Tr"):
        reopened(other, finite=True)


@pytest.mark.parametrize("given", [1, "yes", [True]])
def test_what_is_no_bool_is_refused(path, given):
    with pytest.raises(SchemaError, match="finite: expected True, False or None"):
        create(path, finite=given)
    assert not path.exists()


@pytest.mark.parametrize("lanes", [None, 3])
def test_other_stores_take_everything(path, lanes):
    with create(path, lanes=lanes) as writer:
        assert not isinstance(writer, (FiniteWriter, FiniteVectorWriter))
        if lanes is None:
            writer.reset(frame(NAN))
            writer.step(NAN, NAN, frame(np.inf))
        else:
            writer.reset(np.full((3, 2), NAN, "float32"))
            vector_step(writer, NAN, "rewards")
    assert verify(path).sound


@pytest.mark.parametrize("kind", [mmreplay.ReplayBuffer, mmreplay.PrioritizedReplayBuffer])
def test_buffers(path, kind):
    with kind(path, stack=None, finite=True, flush_s=0, **FIELDS) as buffer:
        buffer.reset(frame())
        with pytest.raises(SchemaError, match="reward"):
            buffer.step(0.5, NAN, frame())
        buffer.step(0.5, 1.0, frame())
        assert len(buffer) == 1


def test_copies_stay_finite(path, tmp_path):
    with create(path, finite=True) as writer:
        writer.reset(frame())
        writer.step(0.5, 1.0, frame())
    mmreplay.snapshot(path, tmp_path / "snapshot.zarr")
    mmreplay.pack([path], tmp_path / "packed.zarr", codec="zstd")
    mmreplay.pack([path, tmp_path / "snapshot.zarr"], tmp_path / "both.zarr")
    for name in ("snapshot.zarr", "packed.zarr"):
        with reopened(tmp_path / name) as writer:
            writer.reset(frame())
            refuses(writer)
    with mmreplay.open(tmp_path / "both.zarr") as store:
        assert store.info()["finite"]
    assert attributes(tmp_path / "both.zarr")["finite"]
    assert verify(tmp_path / "both.zarr").findings == []
