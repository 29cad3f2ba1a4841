"""What is run at full length is collected as the documents show it, and drawn."""

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def learning():
    pytest.importorskip("torch", reason="`make examples` runs it")
    from examples import learning

    return learning


def test_the_runs_name_examples(learning):
    for command in learning.RUNS.values():
        name = shlex.split(command)[0]
        assert (ROOT / "examples" / name).is_file(), name


def test_the_picture_is_that_of_the_results(learning, tmp_path):
    results = json.loads(learning.RESULTS.read_text(encoding="utf-8"))
    learning.draw(results["runs"], tmp_path / "learning.svg")
    drawn = [
        re.sub(r"<metadata>.*?</metadata>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for path in (tmp_path / "learning.svg", learning.IMAGES / "learning.svg")
    ]
    assert drawn[0] == drawn[1], "make it: make learning ARGS='--folder …'"


def test_results_of_a_folder_are_collected(learning, tmp_path):
    (tmp_path / "pong-0.json").write_text('{"seed": 0, "return": -3.0}')
    (tmp_path / "pong-2.json").write_text('{"seed": 2, "return": -4.0}')
    runs = learning.collect(tmp_path)["runs"]
    assert [one["seed"] for one in runs["pong"]] == [0, 2]
    assert runs["online"] == []
