"""What an import costs, and which way modules may look."""

import ast
import inspect
import subprocess
import sys
import tomllib
import typing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from mmreplay import Field

ROOT = Path(__file__).parents[2]

EXTRAS = {
    *("PIL", "ale_py", "av", "cv2", "datasets", "grain", "gymnasium", "h5py", "hypothesis", "jax"),
    *("matplotlib", "pyarrow", "stable_baselines3", "starlette", "tensorstore", "torch", "uvicorn"),
}
# Needed, but not by everyone who imports mmreplay: loaded where they are used.
LAZY = {"click", "numcodecs", "rich", "zarr"}
# Attributes of public objects that users are not promised.
INSIDE = {"index", "live", "readers", "sampler", "specs"}
PUBLIC = {"mmreplay", *(f"mmreplay.{name}" for name in mmreplay.__all__)}


def modules_after(statement):
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_importing_mmreplay_loads_no_extra_and_nothing_heavy():
    statement = "import mmreplay; mmreplay.exchange_formats()"
    assert not modules_after(statement) & (EXTRAS | LAZY | {"pytest", "mmreplay_cli"})


def test_pickles_of_public_things_name_mmreplay_and_no_module_inside():
    modules = {
        getattr(getattr(mmreplay, name), "__module__", "mmreplay") for name in mmreplay.__all__
    }
    assert modules == {"mmreplay"}


def test_sampling_imports_nothing(tmp_path):
    """Nor may it: in a forked child the lock of that import may be held for ever.

    Last, in the same process: what a late function returns is pickled under public names.
    """
    with mmreplay.create(tmp_path / "s.zarr", Field((2,)), Field((), "int64"), lanes=2) as writer:
        writer.reset(np.zeros((2, 2), np.uint8))
        for number in range(30):
            frames = np.full((2, 2), number, np.uint8)
            writer.step([0, 0], [0, 0], frames, [0, 0], [0, 0])
    code = f"""
import sys, mmreplay, numpy
with mmreplay.load({str(tmp_path / "s.zarr")!r}) as data, mmreplay.PrioritizedReplayBuffer(
    {str(tmp_path / "p.zarr")!r}, frame=mmreplay.Field((2,)), action=mmreplay.Field((), "int64")
) as buffer:
    before = set(sys.modules)
    data.sample(8), data.sample(8, replace=False), data.sample(8, group=4)
    data.sample_sequences(4, 8), data.sample_sequences(4, 8, boundary="cross")
    windows = {{"observation": (-1, 0), "action": range(4)}}
    data.sample_windows(4, windows), data.sample_windows(4, windows, "drop")
    next(iter(data.window_batches(4, windows)))
    data.sample_portions(4, 8), data.sample_trajectories(2)
    next(iter(data.sequence_batches(4, 8))), next(iter(data.batches(8)))
    data.load_state_dict(data.state_dict())
    next(iter(data.batches(8))), next(iter(data.batches(8, shuffle="full")))
    buffer.reset(numpy.zeros(2, "uint8"))
    for number in range(30):
        buffer.step(0, 1.0, numpy.zeros(2, "uint8"))
    buffer.update_priorities(buffer.sample(8).id, numpy.ones(8))
    buffer.sample(8)
    assert not set(sys.modules) - before, set(sys.modules) - before
import pickle
report = mmreplay.verify({str(tmp_path / "s.zarr")!r})
assert "Report" in vars(mmreplay) and b"mmreplay.maintenance" not in pickle.dumps(report)
"""
    modules_after(code)


WRAPPERS = {"FrameStack", "RecordExperience", "RecordVectorExperience"}


def test_annotations_of_public_things_can_be_resolved():
    for name in mmreplay.__all__:
        thing = getattr(mmreplay, name)
        things = [thing] if callable(thing) else []
        if isinstance(thing, type):
            things += [one for one in vars(thing).values() if inspect.isfunction(one)]
        if name in WRAPPERS:  # their base of gymnasium cannot be resolved
            things.remove(thing)
        for one in things:
            typing.get_type_hints(one)


def test_annotations_of_a_batch_are_resolved_to_the_types_they_name():
    hints = typing.get_type_hints(mmreplay.Batch)
    assert hints["observation"] == npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
    assert hints["weight"] == npt.NDArray[np.float32]
    assert typing.get_type_hints(mmreplay.Field)["dtype"] == np.dtype[Any]


def test_lazily_imported_names_are_listed_before_and_kept_after_their_import():
    code = (
        "import mmreplay, mmreplay.compat.baselines\n"
        "for package in (mmreplay, mmreplay.compat.baselines):\n"
        "    late = sorted(set(package.__all__) - set(vars(package)))\n"
        "    assert late and set(package.__all__) <= set(dir(package))\n"
        "    getattr(package, late[-1])\n"
        "    assert late[-1] in vars(package)\n"
    )
    modules_after(code)


def private_names(code):
    """What `code` uses of this package beside its public names, or inside its objects."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = [f"{node.value.id}.{node.attr}"]
        else:
            used = []
        found += [n for n in used if n.partition(".")[0] == "mmreplay" and n not in PUBLIC]
        if isinstance(node, ast.Attribute) and (node.attr in INSIDE or node.attr.startswith("_")):
            found.append(f".{node.attr}")
    return found


def test_the_command_uses_public_names_only():
    used = {path.name: private_names(path.read_text()) for path in (ROOT / "cli").rglob("*.py")}
    assert not {name: names for name, names in used.items() if names}


def test_the_core_depends_on_five_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.partition(">=")[0] for requirement in project["dependencies"]}
    assert names == {"click", "numcodecs", "numpy", "rich", "zarr"}
