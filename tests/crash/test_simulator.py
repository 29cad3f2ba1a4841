"""Thousands of crashes of the real code on a simulated disk, and of that code with a rule left out.

Invariant: the real code never loses, tears or mixes up a row; each mutant of its protocol does.
"""

import concurrent.futures
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mmreplay.writing import flush
from tests.support.effort import THOROUGH, by_effort
from tests.support.power_cut import mutants, vector_mutants
from tests.support.power_cut.layouts import LARGE_FRAMES, LAYOUTS, VECTOR_LAYOUTS
from tests.support.power_cut.mutation import Mutant, breaking, caught
from tests.support.power_cut.simulator import Counts, simulate, simulate_all

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
N_CRASHES = 50  # of a history
N_TRIALS = by_effort(100, 2_000, 20_000)
# Tried for a mutant, at most; others than those of the real code.
SEEDS = range(5_170, 6_170)
# Noticed among these, a mutant is found in seconds also once the code has changed; the others may
# take minutes then, and are for a thorough run.
SOON = SEEDS[:20]
# Each was noticed in four of the first five histories, or in all.
EASY = {
    "simulator": [
        "checksums of a close unsynced",
        "chunks unsynced",
        "create without a checkpoint",
        "new live unsynced",
        "shapes unsynced",
        "shard unsynced",
    ],
    "simulator_vector": [
        "count taken from the ticks",
        "episodes left running at an opening",
        "priorities unsynced",
        "those left out counted",
    ],
}
RESULTS = Path(__file__).with_name("results")
KINDS = {
    "simulator": (LAYOUTS, mutants.MUTANTS),
    "simulator_vector": ([LARGE_FRAMES, *VECTOR_LAYOUTS], vector_mutants.MUTANTS),
}


def noticed_last_time(subject):
    """By mutant, the history in which it was noticed the last time."""
    path = RESULTS / f"{subject}.json"
    return json.loads(path.read_text("utf-8"))["details"].get("noticed", {})


def in_turn_or_side_by_side(calls):
    """What functions return for their arguments; in a thorough run all processors are at it."""
    if not THOROUGH:
        return [call(*arguments) for call, *arguments in calls]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context) as pool:
        futures = [pool.submit(*call) for call in calls]
        return [future.result() for future in futures]


@pytest.mark.parametrize("subject", KINDS)
def test_the_same_seed_lives_the_same_history(subject):
    layouts, _ = KINDS[subject]
    assert simulate(3, 4, layouts) == simulate(3, 4, layouts)


def test_a_mistake_in_a_mutant_is_no_broken_rule():
    broken: dict[str, Mutant] = {}

    @breaking(broken, "flush: rows", LAYOUTS)
    def mistaken():
        return [(flush, "flush_rows", lambda: None)]

    with pytest.raises(TypeError, match="argument"):
        caught(broken["mistaken"], SEEDS, N_CRASHES)


@pytest.mark.deep
@pytest.mark.parametrize("subject", KINDS)
def test_no_crash_loses_a_row_and_every_broken_rule_is_noticed(subject, measured):
    layouts, known = KINDS[subject]
    last = noticed_last_time(subject)
    soon = [name for name in sorted(known) if last.get(name, SEEDS[0]) in SOON]
    names = by_effort(EASY[subject], soon, sorted(known))
    result = measured(subject, crashes_of_a_history=N_CRASHES)
    n_histories = -(-N_TRIALS // N_CRASHES)
    # Short enough that no processor is left alone at the end.
    blocks = [range(n_histories)[i : i + 5] for i in range(0, n_histories, 5)]
    start = time.perf_counter()
    # A failing example is kept: a mutant is tried there first. A change of the code under test
    # changes what happens in a history, and the search begins anew.
    calls: list[tuple[Any, ...]] = [
        (caught, known[name], [last.get(name, SEEDS[0]), *SEEDS], N_CRASHES) for name in names
    ]
    calls += [(simulate_all, block, N_CRASHES, layouts) for block in blocks]
    found = in_turn_or_side_by_side(calls)
    seconds = time.perf_counter() - start
    noticed, outcomes = dict(zip(names, found, strict=False)), found[len(names) :]
    counts = sum((one for one, _ in outcomes), Counts())
    violations = [message for _, found in outcomes for message in found]
    assert violations == []
    assert [name for name, found in noticed.items() if found is None] == []
    assert counts.crashes >= N_TRIALS
    for kind in (counts.power, counts.opening, counts.closes, counts.looks):
        assert kind >= counts.crashes // 100
    for kind in (counts.moves, counts.links, counts.restores):
        assert kind >= counts.crashes // 200
    result.add("trials", counts.crashes, "", at_least=20_000)
    result.add("violations", len(violations), "", at_most=0)
    result.add("power cuts", counts.power, "")
    result.add("openings cut off", counts.opening, "")
    result.add("crashes while writing or closing", counts.crashes - counts.opening, "")
    result.add("calls that could have been the last", counts.calls, "")
    result.add("moves, by others, of a store", counts.moves, "")
    result.add("copies, by others, made of hard links", counts.links, "")
    result.add("copies, by others, restored in place", counts.restores, "")
    result.add("mutants", len(noticed), "")
    result.add("mutants not noticed", sum(one is None for one in noticed.values()), "", at_most=0)
    result.details["noticed"] = {name: seed for name, (seed, _) in noticed.items()}
    result.add("time", seconds, "s")
