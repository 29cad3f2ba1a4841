"""A run on a cluster of three raylets, in processes of their own: Ray leaves threads behind."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
HERE = Path(__file__).parent


def run(script, *arguments, timeout_s):
    """The output of a script."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    path = Path(arguments[0]) / "log"
    with path.open("w") as log:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=timeout_s,
            check=False,
        )
    assert done.returncode == 0, path.read_text()[-8000:]
    return path.read_text()


def test_whatever_is_killed_each_step_is_there_once_and_in_order(tmp_path):
    kinds = ("actor", "receiver", "learner", "raylet")
    out = run("kills.py", tmp_path, 3, *kinds, timeout_s=600)
    for kind in kinds:
        assert out.count(f"{kind}: at work after") == 3


def test_a_run_is_used_as_a_store_by_actors_and_a_learner(tmp_path):
    out = run("usage.py", tmp_path, timeout_s=300)
    assert "all is as it should be" in out


def test_ray_data_reads_whole_chunks_and_writes_what_it_reads(tmp_path):
    out = run("data.py", tmp_path, timeout_s=300)
    assert "all is as it should be" in out
