"""What is shipped is what was meant, and it works without the source tree beside it."""

import configparser
import email.parser
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import mmreplay

ROOT = Path(__file__).parents[2]
SHIPPED = ("pyproject.toml", "README.md", "LICENSE", "mmreplay", "cli")
NOT_SHIPPED = ("tests", "benchmarks", "examples", "docs")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(code, *options, path, cwd):
    """What `code` prints in a fresh interpreter that finds packages in `path` first."""
    result = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def build(kind, source, out):
    """A distribution of `source`, by the build backend itself: no network, no environment."""
    out.mkdir(parents=True)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tree: a build leaves things beside the source, and two at once collide."""
    copy = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "data", "results")
    for name in SHIPPED + NOT_SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return build("wheel", source, tmp_path_factory.mktemp("wheel") / "dist")


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    modules = {
        target + path.relative_to(ROOT / folder).as_posix()
        for folder, target in (("mmreplay", "mmreplay/"), ("cli", "mmreplay_cli/"))
        for path in (ROOT / folder).rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    page = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mmreplay" / "viewer" / "static").iterdir()
    }
    assert "mmreplay/viewer/static/index.html" in page
    assert names == modules | page | {"mmreplay/py.typed"}


def test_every_package_folder_is_listed():
    folders = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in (ROOT / "mmreplay").rglob("*.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders | {"mmreplay_cli"}


def test_the_metadata_names_the_version_the_licence_and_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = email.parser.Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        licence = archive.read(f"{folder}/licenses/LICENSE").decode()
        commands = configparser.ConfigParser()
        commands.read_string(archive.read(f"{folder}/entry_points.txt").decode())
    assert metadata["Version"] == mmreplay.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licence == (ROOT / "LICENSE").read_text()
    assert dict(commands["console_scripts"]) == {"mmreplay": "mmreplay_cli:main"}


def test_the_installed_wheel_runs_without_the_source_tree(wheel, tmp_path):
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    code = "import mmreplay, mmreplay_cli; print(mmreplay.__file__, mmreplay_cli.__file__)"
    printed = run(f"{code}; mmreplay_cli.main(['--help'])", path=target, cwd=tmp_path)
    assert printed.startswith(f"{target}/mmreplay/__init__.py {target}/mmreplay_cli/__init__.py\n")
    assert "record" in printed
    assert not (target / "cli").exists()


def test_the_source_distribution_has_what_the_wheel_is_built_from(source, wheel, tmp_path):
    with tarfile.open(build("sdist", source, tmp_path / "sdist")) as archive:
        files = {one.name.partition("/")[2]: one for one in archive if one.isfile()}
        assert {"pyproject.toml", "README.md", "LICENSE"} <= files.keys()
        with zipfile.ZipFile(wheel) as built:
            for name in built.namelist():
                if ".dist-info/" not in name:
                    packed = archive.extractfile(files[name.replace("mmreplay_cli/", "cli/")])
                    assert packed.read() == built.read(name), name
