"""Signatures in docs/api.md are those of the code."""

import ast
import inspect
import re
from pathlib import Path

import mmreplay

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


def test_the_signatures_in_the_reference_are_those_of_the_code():
    signatures = list(written())
    assert {"Writer.step", "VectorWriter.step"} <= {name for name, _ in signatures}
    wrong = [
        f"{name}({arguments})"
        for name, arguments in signatures
        if shown(arguments) not in [parameters(call) for call in found(name)]
    ]
    assert not wrong
