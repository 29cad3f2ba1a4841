"""Thousands of crashes of the real code on a simulated disk, and of that code with a rule left out.

Invariant: the real code never loses, tears or mixes up a row; each mutant of its protocol does.
"""

import concurrent.futures
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from tests.support.effort import THOROUGH, by_effort
from tests.support.power_cut.mutants import MUTANTS, caught
from tests.support.power_cut.simulator import Counts, simulate, simulate_all

pytestmark = pytest.mark.timeout(0 if THOROUGH else 240)
N_CRASHES = 50  # of a history
N_TRIALS = by_effort(200, 2_000, 20_000)
# Tried for a mutant, at most; others than those of the real code.
SEEDS = range(5_170, 6_170)
RESULTS = Path(__file__).with_name("results") / "simulator.json"


def seeds_of(mutant):
    """The history in which it was noticed the last time, as one keeps a failing example; then any.

    A change of the code under test changes what happens in a history, and the search begins anew.
    """
    noticed = json.loads(RESULTS.read_text("utf-8"))["details"].get("noticed", {})
    return [noticed[mutant], *SEEDS] if mutant in noticed else SEEDS


def test_the_same_seed_lives_the_same_history():
    assert simulate(3, 8) == simulate(3, 8)


@pytest.mark.deep
def test_no_crash_loses_a_row_and_every_broken_rule_is_noticed(measured):
    names = sorted(MUTANTS)[:: by_effort(8, 1, 1)]
    result = measured("simulator", crashes_of_a_history=N_CRASHES)
    n_histories = -(-N_TRIALS // N_CRASHES)
    # Short enough that no processor is left alone at the end.
    blocks = [range(n_histories)[i : i + 5] for i in range(0, n_histories, 5)]
    processors = os.cpu_count() if THOROUGH else 1
    context = multiprocessing.get_context("spawn")
    start = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(processors, context) as pool:
        mutants = {name: pool.submit(caught, name, seeds_of(name), N_CRASHES) for name in names}
        histories = [pool.submit(simulate_all, block, N_CRASHES) for block in blocks]
        noticed = {name: future.result() for name, future in mutants.items()}
        outcomes = [future.result() for future in histories]
    seconds = time.perf_counter() - start
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
