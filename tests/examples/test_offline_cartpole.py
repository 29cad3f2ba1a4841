"""The example does what it says, in fewer than a hundred lines and with numpy alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "offline_cartpole.py"


def test_what_it_learned_offline_balances_the_pole(tmp_path):
    result = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = re.search(r"mean return: random (\d+), recorded (\d+), learned (\d+)", result.stdout)
    assert found, result.stdout
    random, recorded, learned = map(int, found.groups())
    assert random < 40
    assert recorded > 300
    assert learned >= 400


def test_it_is_short_and_needs_numpy_alone():
    source = EXAMPLE.read_text()
    assert source.count("\n") < 100
    names = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module)])
    }
    assert names - set(sys.stdlib_module_names) == {"gymnasium", "mmreplay", "numpy"}
