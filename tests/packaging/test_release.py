"""What is published, by whom and for which Pythons: said in several files, and the same in each."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import mmreplay

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
JOBS = WORKFLOW["jobs"]


def test_the_workflow_tests_the_pythons_that_the_classifiers_name():
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c)
        for c in PROJECT["classifiers"]
    ]
    versions = [one[1] for one in found if one]
    assert JOBS["test"]["strategy"]["matrix"]["python"] == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_only_the_job_that_publishes_may_and_it_holds_no_token():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    publish = JOBS["publish"]
    assert (publish["environment"], publish["permissions"]) == ("pypi", {"id-token": "write"})
    assert set(publish["needs"]) == set(JOBS) - {"publish"}
    assert not any("permissions" in job for name, job in JOBS.items() if name != "publish")
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_every_action_is_pinned_to_a_commit():
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert len(used) >= len(JOBS)
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []


def test_every_target_that_the_workflow_makes_is_in_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step["run"].split() for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert {word for _, *words in runs for word in words if "=" not in word} <= targets


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (mmreplay.__version__, PROJECT["license"])
    assert citation["authors"] == PROJECT["authors"]
    assert f"\n## {mmreplay.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_shell_completes_commands():
    """By the scripts that docs/tutorial.md names."""
    for shell, script in (
        ("bash", "complete -o nosort"),
        ("zsh", "#compdef mmreplay"),
        ("fish", "complete --"),
    ):
        assert script in completion(f"{shell}_source", "")
    assert completion("bash_complete", "mmreplay re", COMP_CWORD="1").split() == [
        *("plain,record", "plain,repair", "plain,render")
    ]


def completion(instruction, words, **more):
    code = "import sys, mmreplay_cli; sys.argv[0] = 'mmreplay'; mmreplay_cli.main()"
    asked = {"_MMREPLAY_COMPLETE": instruction, "COMP_WORDS": words, **more}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout
