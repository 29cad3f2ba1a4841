"""The index beside a model in plain Python: what can be drawn, and what lies around each step."""

import random

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.ids import LANE_SHIFT, ROW_MASK
from mmreplay.sampling.episode_sums import EpisodeSums
from tests.support.effort import by_effort
from tests.support.lane_history import History, LostError, follow, loaded

SEEDS = range(by_effort(12, 60, 600))
MODES = {"live": (True, False), "crashed": (False, False), "closed": (False, True)}


def some_histories(seed):
    chance = random.Random(seed)
    return [
        History(
            chance.choice((1, 1, 2, 3, 5)),
            chance.random(),
            ends=chance.choice((0.02, 0.1, 0.5)),
            idle=chance.choice((0, 0.1, 0.8)),
            middle=chance.choice((0, 0.05)),
            capacity=chance.choice((None, 20, 150)),
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    ]


class Expected:
    """What one lane holds around an entry, in the words of `Steps`."""

    def __init__(self, histories, lane, *, live):
        self.history, self.lane, self.live = histories[lane], lane, live
        self.n_lanes = len(histories)
        base, stop = self.history.known_finals()
        self.finals = {self.history.finals[k][0]: k for k in range(base, stop)}

    def end(self, entry):
        """(row of the last step known, place of its final or None) of this episode."""
        history = self.history
        row, env = divmod(entry, history.n)
        while True:
            last = row * history.n + env
            if last in self.finals:
                return row, ((self.n_lanes + self.lane) << LANE_SHIFT) + self.finals[last]
            if row == history.head - 1:
                return row, None
            assert not history.rows[row][env][1], "an end without a final"
            row += 1

    def check_steps(self, steps, place, entry, ahead):
        """`steps` at a place are those of this entry."""
        n, zero = self.history.n, self.lane << LANE_SHIFT
        row, env = divmod(entry, n)
        number = self.history.rows[row][env][0]
        last, final = self.end(entry)
        left = min(last - row + 1, ahead)
        is_near = last - row < ahead
        assert np.broadcast_to(steps.left, steps.ids.shape)[place] == left
        until = np.broadcast_to(steps.until, steps.ids.shape)[place]
        if ahead == 1:
            assert until == is_near
        else:
            assert (until == last - row + 1) if is_near else (until > left)
        assert steps.ahead(np.arange(ahead)[:, None])[:, place].tolist() == [
            zero + entry + min(offset, left - 1) * n for offset in range(ahead)
        ]
        assert (place in steps.runs) == (is_near and final is None and self.live)
        expected = [
            zero + max(row + offset, row - number + 1) * n + env for offset in range(-4, left)
        ]
        after = zero + (row + left) * n + env
        expected.append(final if final is not None and last == row + left - 1 else after)
        offsets = np.tile(np.arange(-4, left + 1), (steps.ids.size, 1))
        # Offsets of one column each, so that no other step's bounds matter.
        found = [int(steps.frames(offsets[:, [k]])[place, 0]) for k in range(left + 5)]
        assert found == expected
        assert steps.missing(offsets)[place].tolist() == [
            k < 1 - number for k in range(-4, left + 1)
        ]
        window = steps.at(np.arange(left))[place][None]
        assert window[0].tolist() == [zero + (row + k) * n + env for k in range(left)]
        following = steps.frames_after(window, np.array([place]))[0]
        assert following.tolist() == [*(window[0, 1:]).tolist(), expected[-1]]


def check(index, histories, chance, *, live):
    ids = index.ids()
    assert ids.tolist() == [i for n, one in enumerate(histories) for i in one.ids(n)]
    assert index.n_transitions == ids.size
    ranks = np.array(chance.choices(range(ids.size), k=20)) if ids.size else np.empty(0, np.int64)
    assert index.at(ranks).tolist() == ids[ranks].tolist()
    for number, one in enumerate(histories):
        assert index.n_transitions_of(number) == len(one.ids())
        n = one.n
        assert index.window(number) == (one.base * n, one.first * n, one.head * n)
        entries = np.arange(*index.extent(number)) + (number << LANE_SHIFT)
        assert entries[index.present(entries)].tolist() == one.ids(number)
    near = np.array(
        [i + d for i in ids.tolist() for d in (-1, 0, 1)] + [-1, 7 << LANE_SHIFT, 1 << 62]
    )
    assert index.invalid(near).tolist() == (~np.isin(near, ids)).tolist()
    if not ids.size:
        return
    expected = [Expected(histories, lane, live=live) for lane in range(len(histories))]
    newest = [i for n, one in enumerate(histories) for i in one.ids(n)[-2 * one.n :]]
    drawn = np.array(chance.choices(ids.tolist(), k=12) + chance.choices(newest, k=6))
    for ahead in (1, 2, 5):
        steps = index.steps(drawn, ahead, back=True)
        for place, one in enumerate(drawn.tolist()):
            expected[one >> LANE_SHIFT].check_steps(steps, place, one & ROW_MASK, ahead)
        needed = [(lane, w) for lane, w in steps.pending]
        assert needed == pending(expected, drawn, ahead, histories, live=live)
    span = index.span(drawn)
    for place, one in enumerate(drawn.tolist()):
        lane, entry = one >> LANE_SHIFT, one & ROW_MASK
        history = histories[lane]
        row, env = divmod(entry, history.n)
        number = history.rows[row][env][0]
        assert span.back[place] == number - 1
        assert span.oldest[place] == min(number - 1, row - history.first)
        last, final = expected[lane].end(entry)
        assert span.left[place] == last - row + 1
        after = span.steps.frames(span.left[:, None])[place, 0]
        assert after == (one + (last - row + 1) * history.n if final is None else final)
    check_episodes(index, histories)


def pending(expected, drawn, ahead, histories, *, live):
    """The lanes whose pending row these steps may show, with the finals known."""
    out = {}
    for one in drawn.tolist():
        lane, entry = one >> LANE_SHIFT, one & ROW_MASK
        last, final = expected[lane].end(entry)
        if live and final is None and last - entry // histories[lane].n < ahead:
            out[lane] = histories[lane].known_finals()[1]
    return sorted(out.items())


def episodes_of(index):
    """(oldest step that can be sampled, steps) of every episode; and which are whole."""
    every, whole = EpisodeSums(lambda steps: steps), EpisodeSums(lambda steps: steps, whole=True)
    out = []
    for sums in (every, whole):
        firsts, steps, within, strides = sums.at(np.arange(sums.follow(index)))
        out.append(
            sorted(zip(*(x.tolist() for x in (firsts, steps, within, strides)), strict=True))
        )
    return out


def check_episodes(index, histories):
    every, whole = [], []
    for lane, history in enumerate(histories):
        found = {}
        for row in range(history.first, history.head):
            for env, (number, _, _) in history.rows[row].items():
                found.setdefault((row - number + 1, env), []).append(row)
        for (begin, env), rows in found.items():
            first = (lane << LANE_SHIFT) + rows[0] * history.n + env
            one = [(first, len(rows), k, history.n) for k in range(len(rows))]
            every += one
            whole += one if begin == rows[0] else []
    assert episodes_of(index) == [sorted(every), sorted(whole)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_index_that_is_loaded_is_that_of_the_model(seed, mode):
    live, closed = MODES[mode]
    chance, histories = random.Random(seed), some_histories(seed)
    for history in histories:
        history.play(chance.choice((0, 1, 2, 30, 300)))
        if chance.random() < 0.5:
            history.evict()
            history.play(chance.choice((0, 40)))
        if closed:
            history.close()
        elif history.rows:
            history.late_finals = chance.random() < 0.3
    check(loaded(histories, live=live, closed=closed), histories, chance, live=live)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_index_that_follows_its_lanes_stays_that_of_the_model(seed):
    chance, histories = random.Random(-1 - seed), some_histories(seed)
    for history in histories:
        history.play(chance.choice((0, 0, 5)))
    index = loaded(histories)
    sums = EpisodeSums(lambda steps: steps)
    for turn in range(30):
        for history in histories:
            if chance.random() < 0.7:
                history.play(chance.choice((1, 1, 2, 30)))
                history.late_finals = chance.random() < 0.3
            if chance.random() < 0.2 and history.rows:
                history.reset_in_the_middle(chance.randrange(history.n))
            if chance.random() < 0.2:
                history.evict()
        version = index.version
        follow(index, histories)
        assert index.version != version
        total = sums.follow(index)
        assert total == index.n_transitions
        if turn % 5 == 0:
            check(index, histories, chance, live=True)
            found = zip(*(x.tolist() for x in sums.at(np.arange(total))), strict=True)
            assert sorted(found) == episodes_of(index)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_that_are_renewed_show_what_was_the_newest_observation_then(seed):
    chance, histories = random.Random(seed), some_histories(seed)
    for history in histories:
        history.capacity = None
        history.play(chance.choice((1, 30)))
    index = loaded(histories)
    newest = np.array([i for n, one in enumerate(histories) for i in one.ids(n)[-2 * one.n :]])
    found = [*(index.steps(newest, ahead, back=True) for ahead in (1, 3)), index.span(newest).steps]
    runs = [one.runs.tolist() for one in found]
    for _ in range(3):
        for history in histories:
            if chance.random() < 0.5:
                history.reset_in_the_middle(chance.randrange(history.n))
            history.play(chance.choice((0, 1)))
        follow(index, histories)
        expected = [Expected(histories, lane, live=True) for lane in range(len(histories))]
        found = [index.renewed(steps) for steps in found]
        for number, steps in enumerate(found):
            assert steps.runs.tolist() == runs[number]
            until = steps.until.astype(np.int64)
            for place in steps.runs.tolist():
                lane, entry = newest[place] >> LANE_SHIFT, int(newest[place] & ROW_MASK)
                last = entry + (until[place] - 1) * histories[lane].n
                final = expected[lane].finals.get(int(last))
                after = (int(lane) << LANE_SHIFT) + last + histories[lane].n
                if final is not None:
                    after = ((len(histories) + int(lane)) << LANE_SHIFT) + final
                assert steps.frames(until[:, None])[place, 0] == after


def test_many_rows_with_gaps_are_drawn_evenly_and_old_ones_are_forgotten():
    history = History(4, 1, idle=0.5, capacity=500)
    index = loaded([history])
    for _ in range(60):
        history.play(50)
        follow(index, [history])
        history.evict()
    gaps = index._lanes[0].gaps
    assert gaps._rows.size < 1000  # of 3,000 rows, most of which differ from the one before
    assert index.ids().tolist() == history.ids()


@pytest.mark.parametrize("lost", ["final", "row"])
def test_columns_that_contradict_each_other_are_told(lost):
    history = History(3, 5).play(60)
    if lost == "final":
        del history.finals[len(history.finals) // 2]
        index = loaded([history])
        with pytest.raises(LostError, match="has no final observation"):
            index.steps(index.ids(), 1, back=True)
        return
    history.rows[30] = {}
    with pytest.raises(CorruptStoreError, match=r"row 30 has no transition|`step` is 0"):
        index = loaded([history])
        index.at(np.arange(index.n_transitions))
