"""Actors on one machine: each step is there once, whoever of them is killed."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil

import mmreplay

EXAMPLE = Path(__file__).parents[2] / "examples" / "actors.py"
N_ACTORS, N_BATCHES, RATIO = 2, 1_000, 8
KILLS = (1, 6, 11)


def kill_one(process, chance):
    """Kill one of the actors of a learner."""
    actors = []
    while not actors:  # one that was just started may not have its name yet
        children = psutil.Process(process.pid).children()
        actors = [one for one in children if "spawn_main" in " ".join(one.cmdline())]
    chance.choice(actors).kill()


def test_actors_that_are_killed_go_on_in_their_lanes(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "--actors", str(N_ACTORS)]
    command += ["--batches", str(N_BATCHES), "--samples-per-step", str(RATIO)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines, chance = [], random.Random(0)
        for line in process.stdout:  # one for every fifty batches
            lines.append(line)
            if len(lines) in KILLS:
                kill_one(process, chance)
    assert process.returncode == 0
    result = json.loads(lines[-1])
    assert result["lanes"] == N_ACTORS
    assert result["restarts"] == len(KILLS)
    path = tmp_path / "run.zarr"
    assert mmreplay.verify(path).findings == []
    with mmreplay.open(path) as store:
        assert len(store) == result["steps"]
        episodes = store.episodes
        assert episodes["length"].sum() == len(store)
        np.testing.assert_array_equal(episodes["return"], episodes["length"])
