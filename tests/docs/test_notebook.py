"""The notebook runs from a clean start, with a real kill in it, and is kept without outputs."""

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_records_trains_is_killed_and_resumes(tmp_path):
    code = "\n\n".join("".join(cell["source"]) for cell in CELLS)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "killed, with" in done.stdout
    assert "transitions kept" in done.stdout


def test_the_notebook_is_kept_without_outputs():
    assert [(cell["outputs"], cell["execution_count"]) for cell in CELLS] == [([], None)] * len(
        CELLS
    )
