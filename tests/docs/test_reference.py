"""The reference on the site: every public name stands there, and what users may call of it."""

import inspect
import re
from pathlib import Path

import mmreplay
from mmreplay import distributed, transforms

ROOT = Path(__file__).parents[2]
SHOWN = [
    name
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]
# The filters of mkdocs.yml but the first, which is for names with an underscore.
HIDDEN = {
    name
    for names in re.findall(r'"!\^\(([\w|]+)\)\$"', (ROOT / "mkdocs.yml").read_text())
    for name in names.split("|")
}


def public():
    """All that a user may call: names of the package, of `transforms` and of `distributed`."""
    names = [f"mmreplay.{name}" for name in mmreplay.__all__ if name != "transforms"]
    names += [f"mmreplay.distributed.{name}" for name in distributed.__all__]
    return names + [f"mmreplay.transforms.{name}" for name in transforms.__all__]


def classes():
    found = (getattr(mmreplay, name) for name in mmreplay.__all__)
    return [one for one in found if isinstance(one, type) and not issubclass(one, Exception)]


def listed(cls):
    """The arguments and attributes that its docstring explains."""
    names = re.findall(r"^    (\w[\w, ]*):", inspect.getdoc(cls) or "", re.MULTILINE)
    return {name for line in names for name in line.split(", ")}


def test_every_public_name_stands_in_the_reference_once():
    shown = [
        name
        for name in SHOWN
        if re.fullmatch(r"mmreplay\.(?:transforms\.|distributed\.)?\w+", name)
    ]
    assert sorted(shown) == sorted(public())


def test_names_that_are_hidden_are_no_attribute_that_a_class_promises():
    assert {name for cls in classes() for name in dir(cls)} >= HIDDEN
    assert {f"{cls.__name__}.{name}" for cls in classes() for name in listed(cls) & HIDDEN} == set()


def test_what_the_reference_shows_of_a_class_has_a_docstring():
    bare = {
        f"{cls.__name__}.{name}"
        for cls in classes()
        for name, one in vars(cls).items()
        if not name.startswith("_") and name not in HIDDEN | listed(cls) | listed(mmreplay.load)
        if not isinstance(one, (str, int)) and not inspect.getdoc(getattr(cls, name))
    }
    assert bare == set()
