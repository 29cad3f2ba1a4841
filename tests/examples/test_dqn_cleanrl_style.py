"""The example is a short file, trains, and goes on after a kill with what was in the buffer."""

import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import mmreplay

EXAMPLE = Path(__file__).parents[2] / "examples" / "dqn_cleanrl_style.py"
STEPS = 3_000
# `make test-adapters` runs these.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="it needs torch")


def command(run, steps=STEPS):
    options = ["--learning-starts", "200", "--checkpoint-frequency", "1000"]
    return [
        sys.executable, str(EXAMPLE), "--run", str(run), "--total-timesteps", str(steps), *options
    ]  # fmt: skip


def finished(run, steps=STEPS):
    """What it prints when it runs to its end: where it began, and with how many transitions."""
    done = subprocess.run(command(run, steps), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"done: {steps} steps" in done.stdout
    began = re.search(r"begins at step (\d+), with (\d+) transitions", done.stdout)
    return int(began[1]), int(began[2])


@needs_torch
def test_it_goes_on_after_a_kill_with_all_steps_that_were_taken(tmp_path):
    checkpoint, store = tmp_path / "run" / "checkpoint.pt", tmp_path / "run" / "buffer.zarr"
    with subprocess.Popen(command(tmp_path / "run")) as training:
        while not checkpoint.exists() or len(mmreplay.open(store)) < 1_100:
            assert training.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        training.kill()  # SIGKILL
    n_taken = len(mmreplay.open(store))
    begun, found = finished(tmp_path / "run")
    assert begun in {1_000, 2_000}
    assert found == n_taken > begun
    assert len(mmreplay.open(store)) == n_taken + STEPS - begun
    assert mmreplay.verify(store).sound
    assert finished(tmp_path / "run", STEPS + 500) == (STEPS, n_taken + STEPS - begun)
