"""Thousands of crashes of the real code on a simulated disk, and of that code with a rule left out.

Invariant: the real code never loses, tears or mixes up a row; each mutant of its protocol does.
"""

import concurrent.futures
import multiprocessing
import os
import time
from typing import Any

import pytest

from mmreplay.writing import flush
from tests.support.effort import THOROUGH, by_effort
from tests.support.power_cut.layouts import ALL, CHANGING, LAYOUTS
from tests.support.power_cut.mutants import MUTANTS, caught_by_name
from tests.support.power_cut.mutation import Mutant, caught
from tests.support.power_cut.simulator import Counts, simulate, simulate_all

N_CRASHES = by_effort(25, 25, 50)  # of a history
N_TRIALS = by_effort(50, 100, 20_000)  # of each number of environments
# Tried for a mutant, at most; others than those of the real code.
SEEDS = range(5_170, 6_170)
# So many have to be noticed in a deep run, in the history that is named beside each. A thorough run
# looks until it has found all of them.
LEAST = 35
EASY = ["create unsynced", "half used before it is sealed"]


def in_turn_or_side_by_side(calls):
    """What functions return for their arguments; in a thorough run all processors are at it."""
    if not THOROUGH:
        return [call(*arguments) for call, *arguments in calls]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context) as pool:
        futures = [pool.submit(*call) for call in calls]
        return [future.result() for future in futures]


@pytest.mark.parametrize("n", [1, 3])
def test_the_same_seed_lives_the_same_history(n):
    assert simulate(3, 4, LAYOUTS[n]) == simulate(3, 4, LAYOUTS[n])


def test_a_mistake_in_a_mutant_is_no_broken_rule():
    mistaken = Mutant("flush: rows", lambda: [(flush, "flush_rows", lambda: None)], ALL, None, "")
    with pytest.raises(TypeError, match="argument"):
        caught(mistaken, SEEDS, N_CRASHES)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_what_a_mutant_changes_is_there(name):
    changes = MUTANTS[name].changes()
    for owner, attribute, value in changes:
        assert getattr(owner, attribute) is not value


@pytest.mark.deep
def test_no_crash_loses_a_row_and_every_broken_rule_is_noticed(measured):
    names = by_effort(EASY, sorted(MUTANTS), sorted(MUTANTS))
    seeds = by_effort(SEEDS[:3], SEEDS[:1], SEEDS)
    result = measured("simulator", crashes_of_a_history=N_CRASHES)
    n_histories = -(-N_TRIALS // N_CRASHES)
    # Short enough that no processor is left alone at the end.
    blocks = [range(n_histories)[i : i + 5] for i in range(0, n_histories, 5)]
    start = time.perf_counter()
    calls: list[tuple[Any, ...]] = [(caught_by_name, name, seeds, N_CRASHES) for name in names]
    groups = {f"{n} environments": of for n, of in LAYOUTS.items()} | {"derived columns": CHANGING}
    of = [name for name in groups for _ in blocks]
    calls += [(simulate_all, block, N_CRASHES, one) for one in groups.values() for block in blocks]
    found = in_turn_or_side_by_side(calls)
    seconds = time.perf_counter() - start
    noticed, outcomes = dict(zip(names, found, strict=False)), found[len(names) :]
    counts = sum((one for one, _ in outcomes), Counts())
    violations = [message for _, found in outcomes for message in found]
    assert violations == []
    missed = [name for name, found in noticed.items() if found is None]
    assert len(names) - len(missed) >= by_effort(len(names), LEAST, len(names)), missed
    for kind in (counts.power, counts.opening, counts.closes, counts.looks, counts.interrupts):
        assert kind >= counts.crashes // 200
    for kind in (counts.moves, counts.links, counts.restores):
        assert kind >= counts.crashes // 200
    result.add("trials", counts.crashes, "", at_least=len(groups) * 20_000)
    for name in groups:
        trials = sum(one.crashes for n, (one, _) in zip(of, outcomes, strict=True) if n == name)
        result.add(f"trials of {name}", trials, "", at_least=20_000)
    result.add("violations", len(violations), "", at_most=0)
    result.add("power cuts", counts.power, "")
    result.add("openings cut off", counts.opening, "")
    result.add("crashes while writing or closing", counts.crashes - counts.opening, "")
    result.add("calls that could have been the last", counts.calls, "")
    result.add("looks of a reader", counts.looks, "")
    result.add("interrupts", counts.interrupts, "")
    result.add("moves, by others, of a store", counts.moves, "")
    result.add("copies, by others, made of hard links", counts.links, "")
    result.add("copies, by others, restored in place", counts.restores, "")
    result.add("mutants", len(noticed), "")
    result.add("mutants not noticed", sum(one is None for one in noticed.values()), "", at_most=0)
    result.details["noticed"] = {name: found[0] for name, found in noticed.items() if found}
    result.add("time", seconds, "s")
