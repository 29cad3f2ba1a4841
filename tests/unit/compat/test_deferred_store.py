"""Where the stores of compat buffers lie: what is deleted, what stays, what is continued."""

import gc
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import mmreplay
from mmreplay.compat import baselines, berkeley, keras_gym
from mmreplay.errors import ClosedError, EmptyBufferError, LockedError, SchemaError

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME = np.zeros((2, 2, 1), np.uint8)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder in which temporary folders are made, and what is in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return lambda: list(folder.iterdir())


class Env:
    class action_space:  # noqa: N801 (an attribute of environments)
        n, shape = 3, ()


def filled(path=None, size=8, n=5):
    buffer = baselines.ReplayBuffer(size, path=path)
    for i in range(n):
        buffer.add(np.full(2, i), i, 1.0, np.full(2, i + 1), False)
    return buffer


def test_no_file_is_made_before_the_first_observation(temporary, tmp_path):
    for buffer in (
        baselines.ReplayBuffer(4),
        baselines.PrioritizedReplayBuffer(4, 0.6),
        berkeley.ReplayBuffer(4, 2),
        keras_gym.ExperienceReplayBuffer(Env(), 4),
        baselines.ReplayBuffer(4, path=tmp_path / "later.zarr"),
    ):
        assert len(buffer) == 0
        with pytest.raises(EmptyBufferError, match="nothing was added yet"):
            buffer.core.sample(1)
        buffer.close()
    assert temporary() == []
    assert not (tmp_path / "later.zarr").exists()


def test_close_deletes_a_temporary_store(temporary):
    with filled() as buffer:
        assert len(temporary()) == 1
        assert len(buffer) == 5
    assert temporary() == []
    buffer.close()
    for use in (
        lambda: buffer.sample(1),
        lambda: len(buffer),
        lambda: buffer.add(np.zeros(2, int), 0, 0.0, np.zeros(2, int), False),
    ):
        with pytest.raises(ClosedError):
            use()


def test_dropping_a_buffer_deletes_its_temporary_store(temporary):
    buffer = filled()
    assert len(temporary()) == 1
    del buffer
    gc.collect()
    assert temporary() == []


def test_the_end_of_the_process_deletes_a_temporary_store(temporary):
    code = (
        "import numpy as np; from mmreplay.compat import baselines\n"
        "b = baselines.ReplayBuffer(8)\n"
        "for i in range(20): b.add(np.full(2, i), i, 1.0, np.full(2, i + 1), False)\n"
        "import os, tempfile; print(len(os.listdir(tempfile.gettempdir())))\n"
    )
    environ = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert temporary() == []


def test_a_store_left_by_a_signal_is_deleted_with_the_next_one(temporary, tmp_path):
    code = (
        "import signal, numpy as np; from mmreplay.compat import baselines\n"
        "b = baselines.ReplayBuffer(8)\n"
        "b.add(np.zeros(2), 0, 1.0, np.ones(2), False)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )
    environ = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    with filled():
        [held] = temporary()
        ended = subprocess.run([sys.executable, "-c", code], env=environ, check=False)
        assert ended.returncode == -signal.SIGTERM
        [left] = set(temporary()) - {held}
        kept = {held, left.with_name("mmreplay-mine"), left.with_name(f"{left.name}x")}
        for path in kept - {held}:  # the names of somebody else
            path.mkdir()
        link = left.with_name(f"{left.name[:-8]}a_link_8")
        link.symlink_to(tmp_path)
        with filled() as other:
            [new] = set(temporary()) - {*kept, link}
            assert new != left
            assert len(other) == 5
        assert set(temporary()) == {*kept, link}
        assert tmp_path.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_delete_the_store_of_its_parent(temporary):
    buffer = filled()
    child = os.fork()
    if not child:
        buffer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(temporary()) == 1
    assert len(buffer.sample(4)[1]) == 4
    buffer.close()


def test_a_failed_start_leaves_no_files(temporary):
    buffer = baselines.ReplayBuffer(4)
    with pytest.raises(SchemaError):
        buffer.add(np.array(["a"]), 0, 0.0, np.array(["a"]), False)
    assert temporary() == []


def test_a_store_at_a_path_stays_and_is_continued(tmp_path, temporary):
    path = tmp_path / "kept.zarr"
    with filled(path) as buffer, pytest.raises(LockedError):
        baselines.ReplayBuffer(8, path=path)
    assert sorted(mmreplay.open(path).actions[mmreplay.open(path).ids]) == [0, 1, 2, 3, 4]
    with baselines.ReplayBuffer(8, path=path) as buffer:
        assert len(buffer) == 5
        seen, actions, *_ = buffer.sample(30)
        assert np.array_equal(seen[:, 0], actions)
        for i in range(5, 11):
            buffer.add(np.full(2, i), i, 1.0, np.full(2, i + 1), False)
        assert set(buffer.sample(500)[1]) == set(range(3, 11))
    assert path.exists()
    assert temporary() == []


def test_a_store_of_dicts_is_refused(tmp_path):
    field = mmreplay.Field((2,))
    with mmreplay.create(tmp_path / "d.zarr", {"a": field, "b": field}, field):
        pass
    with pytest.raises(SchemaError, match="one frame per row"):
        berkeley.ReplayBuffer(4, 2, path=tmp_path / "d.zarr")


@pytest.mark.parametrize("size", [0, -1, 1.5, None])
def test_a_size_below_1_is_refused(size):
    for make in (
        lambda: baselines.ReplayBuffer(size),
        lambda: baselines.PrioritizedReplayBuffer(size, 0.6),
        lambda: berkeley.ReplayBuffer(size, 2),
    ):
        with pytest.raises(SchemaError, match="expected a whole number, 1 or more"):
            make()
