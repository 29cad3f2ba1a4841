"""What an import costs, and which way modules may look."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mmreplay

ROOT = Path(__file__).parents[2]

# One way down: a module or folder of mmreplay imports only from those before it in this list.
LAYERS = (
    "_version errors lazyframes schema overlap system reading places maps files locks beside "
    "format parsing planning codecs paging columns checksums priorities shards state background "
    "episodes reader recovery disk lane vector lanes gather joined following views trajectories "
    "store info samplers sequences drawing dataset loading buffers prioritized batches goals "
    "hindsight transforms decorated mixture transplant snapshots integrity adapters compat "
    "testing"
).split()
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


def imported_parts(path):
    """The parts of mmreplay that the module at `path` imports when it is imported itself."""
    package = ["mmreplay", *path.relative_to(ROOT / "mmreplay").parts[:-1]]
    parts = set()
    for node in module_level(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join(base + ([node.module] if node.module else []))
            names = [f"{origin}.{alias.name}" for alias in node.names]
        split = [name.split(".") for name in names]
        parts |= {name[1] for name in split if name[0] == "mmreplay" and len(name) > 1}
    return parts


def module_level(tree):
    """Every import statement that is not inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from module_level(node)


def test_importing_mmreplay_loads_no_extra_and_nothing_heavy():
    assert not modules_after("import mmreplay") & (EXTRAS | LAZY | {"pytest", "mmreplay_cli"})


def test_the_command_starts_without_any_extra():
    assert not modules_after("import mmreplay_cli") & (EXTRAS | {"zarr", "pytest"})


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "mmreplay").rglob("*.py")),
    ids=lambda path: path.relative_to(ROOT / "mmreplay").as_posix(),
)
def test_no_module_imports_one_that_stands_later(path):
    part = path.relative_to(ROOT / "mmreplay").parts[0].removesuffix(".py")
    if part == "__init__":
        return  # the package itself looks at everything
    assert part in LAYERS, f"{part} has no place in the order of layers"
    later = set(LAYERS[LAYERS.index(part) + 1 :])
    assert not imported_parts(path) & later


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
