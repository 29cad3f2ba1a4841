"""One bit flips anywhere in a store: `verify` finds it and names the file, or nobody can tell.

Invariant: no flip in a closed store is missed. What is not found lies where nothing is read, and
everything that the store says is what it was.
"""

import collections
import random

import pytest

import mmreplay
from mmreplay.format.layout import FINALS
from tests.support.effort import THOROUGH, by_effort
from tests.support.tampering import flips

pytestmark = pytest.mark.deep

N_FLIPS = by_effort(2, 6, 1_100)  # of each kind of store


def outcome_of(flip, root, before):
    """``found``, ``missed``, or why the flip of a bit is harmless."""
    sound = (root / flip.file).read_bytes()
    with flip.in_place(root):
        report = mmreplay.verify(root)
        if report.findings:
            assert flips.is_named(flip, report.findings), (flip, report.findings)
            return "found"
        why = flips.why_harmless(root, flip, sound)
        return why if why and flips.everything(root) == before else "missed"


def test_every_flip_in_a_closed_store_is_found_or_harmless(tmp_path, measured):
    kinds = dict(list(flips.KINDS.items())[:: by_effort(4, 1, 1)])
    n_found, harmless, missed = collections.Counter(), collections.Counter(), []
    for number, (name, kind) in enumerate(kinds.items()):
        root = tmp_path / f"{number}.zarr"
        flips.build(root, kind, number)
        report = mmreplay.verify(root)
        assert (report.findings, report.warnings) == ([], []), name
        before = flips.everything(root)
        luck = random.Random(name if not THOROUGH else None)
        for flip in flips.random_flips(root, luck, N_FLIPS):
            outcome = outcome_of(flip, root, before)
            if outcome == "found":
                n_found[flips.place_of(flip.file)] += 1
            elif outcome == "missed":
                missed.append((name, flip))
            else:
                harmless[outcome] += 1
        report = mmreplay.verify(root)
        assert (report.findings, report.warnings) == ([], []), "a flip was not undone"
    total = n_found.total() + harmless.total() + len(missed)
    result = measured("bit_flips", stores=len(flips.KINDS), flips_a_store=N_FLIPS)
    result.add("flips", total, "", at_least=10_000)
    result.add("found and named", n_found.total(), "")
    result.add("harmless", harmless.total(), "", note="everything reads as before, byte for byte")
    result.add("missed", len(missed), "", at_most=0)
    result.details |= {"found in": dict(n_found), "harmless": dict(harmless)}
    assert not missed


@pytest.mark.parametrize("name", ["zstd", "priorities, zstd", "several, evicted"])
def test_the_bits_of_the_attributes(tmp_path, name, measured):
    root = tmp_path / "store.zarr"
    flips.build(root, flips.KINDS[name])
    before = flips.everything(root)
    outcomes = collections.Counter()
    files = ["zarr.json", *(f"{one.name}/zarr.json" for one in root.glob("lane-00001"))]
    files += [f"{FINALS}/zarr.json"] * (root / FINALS).exists()
    for file in files:
        every = list(flips.all_flips(root, file))
        for flip in random.Random(name).sample(every, min(by_effort(4, 12, 2_000), len(every))):
            outcomes[outcome_of(flip, root, before)] += 1
    assert not outcomes["missed"], outcomes
    assert outcomes["found"] > 0.99 * outcomes.total(), outcomes
    result = measured(f"bit_flips_attributes_{len(files)}", store=name)
    result.add("flips", outcomes.total(), "")
    result.add("found and named", outcomes["found"], "")
    result.details |= {"outcomes": dict(outcomes)}
