"""Actors on one machine: each step is there once, whoever of them is killed."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

import mmreplay

EXAMPLE = Path(__file__).parents[2] / "examples" / "actors.py"
N_ACTORS, N_BATCHES, RATIO = 2, 1_000, 8


def killed_at_random(process, n, seed):
    """Kill one of the actors now and then, n times."""
    chance = random.Random(seed)
    for _ in range(n):
        time.sleep(chance.uniform(1, 2))
        actors = [
            one
            for one in psutil.Process(process.pid).children()
            if "spawn_main" in " ".join(one.cmdline())
        ]
        chance.choice(actors).kill()


def test_actors_that_are_killed_go_on_in_their_lanes(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "--actors", str(N_ACTORS)]
    command += ["--batches", str(N_BATCHES), "--samples-per-step", str(RATIO)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()  # the first batch
        killed_at_random(process, 3, seed=0)
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    result = json.loads(lines[-1])
    assert result["lanes"] == N_ACTORS
    assert result["restarts"] >= 1
    path = tmp_path / "run.zarr"
    assert mmreplay.verify(path).findings == []
    with mmreplay.open(path) as store:
        assert len(store) == result["steps"]
        episodes = store.episodes
        assert episodes["length"].sum() == len(store)
        np.testing.assert_array_equal(episodes["return"], episodes["length"])
