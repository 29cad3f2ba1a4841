"""What the tests of examples share: a run of one, and what it printed last."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = ("torch", "minatar", "stable_baselines3")


@pytest.fixture(scope="session")
def result_of():
    """A function that runs an example in a process, and returns its last line, which is JSON."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        pytest.skip(f"without {', '.join(missing)}: `make examples` runs it")

    def run(name, *given):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *map(str, given)],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def killed_training(result_of, tmp_path_factory):
    """The folder of a short training on MinAtar that was killed and went on, and its result."""
    folder = tmp_path_factory.mktemp("online")
    result = result_of("online_minatar.py", folder, "--steps", 4_800, "--kill", 2_000)
    return folder, result
