"""The example of Ape-X, with short settings: actors and learner are killed, and all goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mmreplay

for needed in ("ray", "torch", "minatar"):
    pytest.importorskip(needed)
SCRIPT = Path(__file__).parents[2] / "examples" / "ape_x.py"


def test_killed_actors_and_learners_go_on(tmp_path, monkeypatch):
    for name, value in (("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"), ("RAY_AUTH_MODE", "disabled")):
        monkeypatch.setenv(name, value)
    given = ["--updates", "1200", "--kill-actors", "10", "--kill-learner", "500", "--episodes", "5"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "run"), *given],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()  # Ray's own may come last
    result = json.loads(next(one for one in reversed(lines) if one.startswith("{")))
    assert result["killed"]["actors"] >= 1
    assert 1 <= result["killed"]["learner"] <= 2
    # 64 samples each of 1,200 updates, at 32 samples per step, from 1,000 steps on.
    assert result["stored"] >= 1_000 + 64 * 1_200 / 32 - 2 * 8 * 32 - 32
    store = tmp_path / "run" / "store.zarr"
    assert mmreplay.verify(store).findings == []
    with mmreplay.load(store, stack=None, prioritized=True) as data:
        assert len(set(data.priorities(data.ids).tolist())) > 300
