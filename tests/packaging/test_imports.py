"""What an import costs, and which way modules may look."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay import Field

ROOT = Path(__file__).parents[2]

EXTRAS = {"ale_py", "cv2", "gymnasium", "hypothesis", "stable_baselines3", "tensorstore", "torch"}
# Needed, but not by everyone who imports mmreplay: loaded where they are used.
LAZY = {"click", "rich", "zarr"}
PUBLIC = {"mmreplay", *(f"mmreplay.{name}" for name in mmreplay.__all__)}


def modules_after(statement):
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_importing_mmreplay_loads_no_extra_and_nothing_heavy():
    assert not modules_after("import mmreplay") & (EXTRAS | LAZY | {"pytest", "mmreplay_cli"})


def test_pickles_of_public_things_name_mmreplay_and_no_module_inside():
    modules = {
        getattr(getattr(mmreplay, name), "__module__", "mmreplay") for name in mmreplay.__all__
    }
    assert modules == {"mmreplay"}


def test_pickle_of_what_a_late_function_returns_names_mmreplay(tmp_path):
    with mmreplay.create(tmp_path / "s.zarr", Field((3,)), Field((), "int64")) as writer:
        writer.reset(np.zeros(3, np.uint8))
    code = f"""
import pickle, mmreplay
report = mmreplay.verify({str(tmp_path / "s.zarr")!r})
assert "Report" in vars(mmreplay) and b"mmreplay.maintenance" not in pickle.dumps(report)
"""
    modules_after(code)


@pytest.mark.parametrize("package", ["mmreplay", "mmreplay.compat.baselines"])
def test_lazily_imported_names_are_listed_before_and_kept_after_their_import(package):
    code = (
        f"import {package} as package\n"
        "listed = set(dir(package))\n"
        "late = set(package.__all__) - set(vars(package))\n"
        "[getattr(package, name) for name in late]\n"
        "print(late and set(package.__all__) <= listed and late <= set(vars(package)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_the_command_starts_without_any_extra():
    assert not modules_after("import mmreplay_cli") & (EXTRAS | {"zarr", "pytest"})


def test_the_command_uses_public_names_only():
    private = []
    for path in (ROOT / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = [f"{node.value.id}.{node.attr}"]
            else:
                continue
            private += [
                f"{path.name}: {name}"
                for name in used
                if name.partition(".")[0] == "mmreplay" and name not in PUBLIC
            ]
    assert not private


def test_the_core_depends_on_five_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.partition(">=")[0] for requirement in project["dependencies"]}
    assert names == {"click", "numcodecs", "numpy", "rich", "zarr"}
