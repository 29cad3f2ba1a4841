"""A run on a cluster of three raylets, in processes of their own: Ray leaves threads behind."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
HERE = Path(__file__).parent


def run(script, *arguments, timeout_s):
    """The output of a script; what it started ends with it."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=(log := Path(arguments[0]) / "log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
    text = log.read_text()
    assert status == 0, text[-8000:]
    return text


def test_whatever_is_killed_each_step_is_there_once_and_in_order(tmp_path):
    kinds = ("actor", "receiver", "learner", "raylet")
    out = run("kills.py", tmp_path, 3, *kinds, timeout_s=600)
    for kind in kinds:
        assert out.count(f"{kind}: at work after") == 3


def test_a_run_is_used_as_a_store_by_actors_and_a_learner(tmp_path):
    out = run("usage.py", tmp_path, timeout_s=300)
    assert "all is as it should be" in out
