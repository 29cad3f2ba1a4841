"""Lanes of both kinds as one: every answer is that of the lane that it is about."""

import numpy as np
import pytest

from mmreplay.batches.relabel import Relabelling, Task
from mmreplay.batches.sequences import SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import JoinedIndex, RowIndex, TickIndex
from mmreplay.ids import LANE_SHIFT
from tests.support.oracle.checks import check_same
from tests.support.oracle.handmade_rows import Rows as Schema
from tests.support.oracle.ticks import PartsColumn, Rows, TicksOnDisk
from tests.support.oracle.vector_pair import in_memory

KEPT = (0, 2)  # lanes of rows, between vector lanes


@pytest.fixture
def parts():
    """(index, columns) of two lanes of rows, of 3 environments, and of 5."""
    out = []
    for seed, width in enumerate((2, 3, 5)):
        model = in_memory(width, 60, seed)
        model.play(60, 0.15)
        if width == len(KEPT):
            rows = Rows(model)
            out.append((rows.index, rows.columns))
            continue
        disk = TicksOnDisk(model)
        index = TickIndex(disk, "lane")
        index.load(0, len(model.ticks), model.capacity, disk.starts)
        out.append((index, disk.columns))
    return out


@pytest.fixture
def joined(parts):
    (rows, of_rows), (three, of_three), (five, of_five) = parts
    columns = {}
    for name, one in of_rows.items():
        lanes = [one.parts[0], of_three[name].parts[0], one.parts[1], of_five[name].parts[0]]
        if name == "frames":
            lanes += [of_three[name].parts[1], of_five[name].parts[1]]
        columns[name] = PartsColumn(lanes, one.dtype)
    return JoinedIndex([(rows, KEPT), (three, [1]), (five, [3])]), columns


LANES = {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (2, 0)}
"""Of each lane its part, and its number there."""


def local(ids):
    """The part of each id, and the id there."""
    lanes = ids >> LANE_SHIFT
    numbers = np.array([LANES[lane] for lane in lanes.tolist()]).reshape(-1, 2)
    return numbers[:, 0], ids + ((numbers[:, 1] - lanes) << LANE_SHIFT)


def test_transitions_are_those_of_all_parts(parts, joined):
    index, _ = joined
    expected = []
    for lane, (part, number) in LANES.items():
        ids = parts[part][0].ids()
        here = ids[ids >> LANE_SHIFT == number] + ((lane - number) << LANE_SHIFT)
        expected += here.tolist()
        assert index.window(lane) == parts[part][0].window(number)
        start, stop = index.extent(lane)
        assert (start, stop) == parts[part][0].extent(number)
        assert index.present(lane, start, stop).sum() == here.size
        assert index.n_transitions_of(lane + 1) == len(expected)
    assert index.ids().tolist() == expected
    assert index.n_transitions == len(expected)
    ranks = np.random.default_rng(0).permutation(len(expected))
    assert sorted(index.at(ranks).tolist()) == expected
    probes = np.concatenate(
        [np.arange(90) + (lane << LANE_SHIFT) for lane in range(-1, 6)] + [[-1, 1 << 60]]
    )
    assert index.invalid(probes).tolist() == (~np.isin(probes, expected)).tolist()


def test_the_version_is_another_after_a_change_of_any_part(parts, joined):
    index, _ = joined
    before = index.version
    parts[0][0].extend(1, 0, parts[0][0].window(1)[2] + 1, np.empty(0, np.int64))
    assert index.version != before


TASK = Task("frames", "desired", {}, "mark", lambda a, d, _: a - d, None)


def gatherers(size):
    schema = Schema(None)
    schema.frame_paths = {"frame": "frames"}
    goals = Schema({"a": None, "d": None})
    goals.frame_paths = {"a": "frames", "d": "desired"}
    some = np.arange(size) % 3 > 0
    draws = np.random.default_rng(1).random(size)
    for settings in (Settings(1), Settings(4, padding="zero"), Settings(3, 3, 0.5)):
        yield slice(None), lambda s=settings: TransitionGatherer(schema, s)
        yield slice(None), lambda s=settings: SequenceGatherer(schema, s, 5, 2)

        def relabelling(here, settings=settings):
            inner = TransitionGatherer(goals, settings)
            return Relabelling(inner, TASK, "future", lambda _: (some[here], draws[here]))

        yield relabelling, None


def test_a_batch_of_all_lanes_is_put_together_of_those_of_each(parts, joined):
    index, columns = joined
    ids = np.random.default_rng(0).permutation(index.ids())
    numbers, inside = local(ids)
    for one in (columns, *(columns_of for _, columns_of in parts)):
        one["desired"] = one["frames"]
    for make, plain in gatherers(ids.size):
        build = (lambda here, plain=plain: plain()) if plain else make
        whole = build(np.arange(ids.size))
        batch = whole.fetch(columns, whole.locate(index, ids))
        for number, (part, of_part) in enumerate(parts):
            here = (numbers == number).nonzero()[0]
            gatherer = build(here)
            expected = gatherer.fetch(of_part, gatherer.locate(part, inside[here]))
            for name in ("reward", "discount", "non_terminal", "action"):
                check_same(getattr(batch, name)[here], getattr(expected, name), name)
            for name in ("observation", "next_observation"):
                found, wanted = getattr(batch, name), getattr(expected, name)
                pairs = found.items() if isinstance(found, dict) else [("", found)]
                for key, array in pairs:
                    check_same(array[here], wanted[key] if key else wanted, name)


def test_the_parts_keep_their_place_when_one_of_them_is_empty():
    index = JoinedIndex([(RowIndex(1), [0]), (TickIndex(TicksOnDisk(in_memory(2)), "x"), [1])])
    assert (index.n_transitions, index.ids().tolist()) == (0, [])
    assert index.at(np.empty(0, np.int64)).tolist() == []
    assert index.invalid(np.array([0, 1 << LANE_SHIFT])).tolist() == [True, True]
    assert index.span(np.empty(0, np.int64)).left.tolist() == []
