"""Signatures in docs/api.md are those of the code."""

import ast
import inspect
import re
from pathlib import Path

import mmreplay
from mmreplay.datasets.prioritized import ByPriority

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
}
# Whose methods stand there by their names alone.
OWNERS = (
    mmreplay,
    mmreplay.Dataset,
    mmreplay.Store,
    mmreplay.Hindsight,
    mmreplay.LazyFrames,
    mmreplay.transforms,
    mmreplay.Mixture,
    mmreplay.PrioritizedReplayBuffer,
)


def written():
    """(what is called, its arguments) of each signature that stands whole in a first cell."""
    for cell in re.findall(r"^\| (`.*?`) \|", TEXT, re.MULTILINE):
        owner = ""
        for name, arguments in re.findall(r"`([\w.]+)\(([^`…]*)\)`", cell):
            if name.startswith("np."):
                continue
            class_ = name.rpartition(".")[0]
            owner = class_ or owner
            yield (name if class_ or not owner else f"{owner}.{name}"), arguments


def found(name):
    """What may be meant."""
    # An object stands there as its class in small letters.
    name = re.sub(r"^(hindsight|mixture)\.", lambda found: found[0].capitalize(), name)
    for owner in OWNERS:
        one = owner
        for part in name.split("."):
            one = getattr(one, part, None)
        if callable(one):
            yield one


def parameters(call):
    return [
        (one.name, KINDS[one.kind])
        for one in inspect.signature(call).parameters.values()
        if one.kind in KINDS and one.name != "self"
    ]


def shown(arguments):
    given = ast.parse(f"def call({arguments}): pass").body[0].args
    pairs = [(one.arg, "positional") for one in given.args]
    return pairs + [(one.arg, "keyword") for one in given.kwonlyargs]


OWN = {
    "ByPriority.after_fork_in_child",
    "ByPriority.begin_sample",
    "ByPriority.begin_windows",
    "ByPriority.sampler",
    "Dataset.after_fork_in_child",
    "Dataset.begin_sample",
    "Dataset.begin_windows",
    "Dataset.field_windows",
    "Dataset.limiter",
    "Dataset.read_batches",
    "Decorated.field_windows",
    "Field.coerce",
    "Field.coerce_loosely",
    "Field.coerce_many",
    "Field.coerce_rows",
    "Field.filled",
    "Field.row_bytes",
    "Field.same_data",
    "LazyFrames.is_first",
    "RecordExperience.made",
    "RecordVectorExperience.made",
    "Settings.check_evicting",
    "Settings.stacked",
    "Store.checked_fields",
    "Store.episodes_by_environment",
    "Store.index",
    "Store.numbered_trajectory",
    "Text.coerce_loosely",
    "Text.row_bytes",
    "Text.same_data",
    "VectorWriter.end_episodes",
    "Writer.end_episodes",
}
"""Public by their names, for the rest of the package only."""


def members(cls):
    """Its own public attributes: those of the class, and those that its docstring names."""
    yield from (name for name in vars(cls) if not name.startswith("_"))
    listed = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    for names in re.findall(r"^    (\w[\w, ]*):", listed, re.MULTILINE):
        yield from names.split(", ")


def test_public_attributes_are_in_the_reference_or_declared_the_package_s_own():
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", TEXT, re.DOTALL))
    public = [ByPriority, *(getattr(mmreplay, name) for name in mmreplay.__all__)]
    classes = [one for one in public if isinstance(one, type)]
    missing = {
        f"{cls.__name__}.{name}"
        for cls in classes
        if not issubclass(cls, Exception)
        for name in members(cls)
        if not re.search(rf"\b{name}\b", code)
    }
    assert missing == OWN
    assert "Attributes that this page does not list are the package's own" in " ".join(TEXT.split())


def test_the_signatures_in_the_reference_are_those_of_the_code():
    signatures = list(written())
    assert {"Writer.step", "VectorWriter.step"} <= {name for name, _ in signatures}
    wrong = [
        f"{name}({arguments})"
        for name, arguments in signatures
        if shown(arguments) not in [parameters(call) for call in found(name)]
    ]
    assert not wrong
