"""One bit flips anywhere in a store: `verify` finds it and names the file, or nobody can tell.

Invariant: no flip in a closed store is missed. What is not found lies where nothing is read, and
everything that the store says is what it was.
"""

import collections
import random

import pytest

import mmreplay
from mmreplay.format.layout import FINALS
from tests.support.disks import faults
from tests.support.effort import THOROUGH, by_effort
from tests.support.tampering import flips
from tests.support.writers import drain

pytestmark = [pytest.mark.timeout(0 if THOROUGH else 900), pytest.mark.deep]

N_FLIPS = by_effort(2, 30, 1_100)  # of each kind of store


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
    n_found, harmless, missed = collections.Counter(), collections.Counter(), []
    for number, (name, kind) in enumerate(flips.KINDS.items()):
        root = tmp_path / f"{number}.zarr"
        flips.build(root, kind, number)
        report = mmreplay.verify(root)
        assert (report.findings, flips.warnings(report)) == ([], []), name
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
        assert (report.findings, flips.warnings(report)) == ([], []), "a flip was not undone"
    total = n_found.total() + harmless.total() + len(missed)
    result = measured("bit_flips", stores=len(flips.KINDS), flips_a_store=N_FLIPS)
    result.add("flips", total, "", at_least=10_000)
    result.add("found and named", n_found.total(), "")
    result.add("harmless", harmless.total(), "", note="everything reads as before, byte for byte")
    result.add("missed", len(missed), "", at_most=0)
    result.details |= {"found in": dict(n_found), "harmless": dict(harmless)}
    assert not missed


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("dict, lanes", marks=pytest.mark.deep(only=True)),
        "evicted, raw",
        "priorities, zstd",
        "several, lz4",
        pytest.param("several, evicted", marks=pytest.mark.deep(only=True)),
    ],
)
def test_a_file_in_the_place_of_another_is_found(tmp_path, name, measured):
    """Of another row, array, lane or store, as long as it has the size."""
    luck = random.Random(name)
    root, other = tmp_path / "store.zarr", tmp_path / "other.zarr"
    for number, path in enumerate((root, other)):
        flips.build(path, flips.KINDS[name], number)
    donors = [one for path in (root, other) for one in sorted(path.rglob("c.*"))]
    pairs = [
        (mine, donor)
        for mine in sorted(root.rglob("c.*"))
        for donor in donors
        if mine.stat().st_size == donor.stat().st_size and mine.read_bytes() != donor.read_bytes()
    ]
    n = min(len(pairs), by_effort(3, 25, 1_000))
    for mine, donor in luck.sample(pairs, n):
        sound = mine.read_bytes()
        mine.write_bytes(donor.read_bytes())
        flip = flips.Flip(str(mine.relative_to(root)), 0, 0)
        report = mmreplay.verify(root)
        # That a shard has lost its checksum is a warning: those of its inner chunks are there.
        found = report.findings + flips.warnings(report)
        assert flips.is_named(flip, found), (mine, donor)
        mine.write_bytes(sound)
    result = measured(f"bit_flips_swapped_{name.replace(', ', '_')}", store=name)
    result.add("files in the place of others, all found", n, "")


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
        for flip in random.Random(name).sample(every, by_effort(6, 40, 2_000)):
            outcomes[outcome_of(flip, root, before)] += 1
    assert not outcomes["missed"], outcomes
    assert outcomes["found"] > 0.99 * outcomes.total(), outcomes
    result = measured(f"bit_flips_attributes_{len(files)}", store=name)
    result.add("flips", outcomes.total(), "")
    result.add("found and named", outcomes["found"], "")
    result.details |= {"outcomes": dict(outcomes)}


@pytest.mark.parametrize("name", ["raw", "evicted, lanes", "priorities", "several, lz4"])
def test_flips_in_a_store_left_by_a_crash(tmp_path, name):
    """What was finished is as safe as in a closed store; what was being changed, nobody knows."""
    root = tmp_path / "store.zarr"
    writer = flips.record(root, flips.KINDS[name])
    for one in faults.writers_of(
        writer
    ):  # the checksums of what is finished are made in the background
        drain(one)
    faults.kill(writer)
    finished = finished_files(root)
    assert len(finished) > 10
    luck = random.Random(name)
    n_found = collections.Counter()
    for flip in flips.random_flips(root, luck, by_effort(8, 40, 2_000)):
        with flip.in_place(root):
            found = bool(mmreplay.verify(root).findings)
        n_found[found] += 1
        assert found or flip.file not in finished, flip
    assert n_found[True] > n_found.total() / 10


def finished_files(root):
    """Chunk files that have a checksum."""
    out = set()
    for sums in root.rglob("checksums/**/c.0"):
        array = sums.parent.relative_to(root)
        array = str(array).replace("checksums/", "")
        known = memoryview(sums.read_bytes()).cast("I")
        for file in (root / array).glob("c.*"):
            if known[int(file.name.split(".")[1])]:
                out.add(f"{array}/{file.name}")
    return out
