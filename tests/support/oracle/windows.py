"""Sequences worked out naively from the model: which windows there are, and what each one shows.

Invariant: nothing here is shared with the samplers or the gather; windows are found by trying every
step, and each step of each window is what the model says of that transition.
"""

import dataclasses

import numpy as np

from mmreplay.schema import FRAME
from tests.support.oracle.checks import check_same
from tests.support.oracle.model import LANE_SHIFT, Played, joined, usual_stack


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """What can be sampled of one episode."""

    one: Played  # the episode
    oldest: int  # place in it of the first step that can be sampled; those after it can be, too
    ids: list[int]  # of these, ascending
    env: int  # its environment, of all lanes

    @property
    def whole(self):
        """Whether these are all it has."""
        return not self.oldest


def kept_episodes(model):
    """All episodes of which a step can be sampled, in the order of lanes and first transitions."""
    out, before = [], 0
    for number, lane in enumerate(model.lanes):
        for one, entries in lane.kept():
            ids = [number << LANE_SHIFT | entry for entry in entries]
            out.append(Kept(one, len(one.steps) - len(ids), ids, before + one.env))
        before += lane.n
    return out


def window_starts(model, length, burn_in=0, boundary="drop", stride=1, selected=None):
    """Ids of the first steps after the burn-in of every window, ascending.

    With `selected`, of those windows whose steps after the burn-in are all among these.
    """
    out = set()
    for kept in kept_episodes(model):
        n, places = len(kept.ids), set()
        for offset in range(0, n, stride):
            if boundary == "pad":
                places.add(offset)
            elif offset + burn_in + length <= n:
                places.add(offset + burn_in)
        if boundary == "shift":
            # The last `length` steps, and the burn-in that there is before them.
            places.add(max(n - length, 0))
        for at in places:
            if selected is None or all(one in selected for one in kept.ids[at : at + length]):
                out.add(kept.ids[at])
    return sorted(out)


def check_sequences(found, model, starts, length, burn_in=0, **settings):
    """Every step of every window is what the model says."""
    shape = len(starts), burn_in + length
    if found.burn_in != burn_in or len(found) != len(starts):
        raise AssertionError(f"expected {len(starts)} windows, found {len(found)}")
    places = {id_: (k, k.oldest + at) for k in kept_episodes(model) for at, id_ in enumerate(k.ids)}
    ids = np.full(shape, -1, np.int64)
    step, first = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    pads = []
    for number, start in enumerate(starts):
        kept, after = places[start]
        begin = after - burn_in
        for time in range(shape[1]):
            at = begin + time
            if not kept.oldest <= at < len(kept.one.steps):
                pads.append(((number, time), kept, at, max(begin, kept.oldest)))
                continue
            ids[number, time] = kept.ids[at - kept.oldest]
            first[number, time] = at == 0
            step[number, time] = at
    mask = ids >= 0
    check_same(found.weight, np.ones(len(starts), np.float32), "weight")
    for name, expected in (("id", ids), ("mask", mask), ("first", first), ("step", step)):
        check_same(getattr(found, name), expected, name)

    # Each transition is asked of the model once, in however many windows it is.
    distinct, which = np.unique(ids[mask], return_inverse=True)
    batch = model.batch(distinct, **settings)

    def spread(column):
        out = np.zeros((*shape, *column.shape[1:]), column.dtype)
        out[mask] = column[which]
        return out

    for name in ("reward", "discount", "non_terminal", "action"):
        check_same(getattr(found, name), spread(getattr(batch, name)), name)
    check_same(found.extras, {name: spread(one) for name, one in batch.extras.items()}, "extras")
    for name, ahead in (("observation", 0), ("next_observation", 1)):
        given = getattr(batch, name)
        frames = {
            key: spread(one)
            for key, one in (given if isinstance(given, dict) else {FRAME: given}).items()
        }
        for place, kept, at, oldest in pads:
            for key, one in frames.items():
                one[place] = _padding(model, settings, kept.one, at + ahead, oldest, key)
        check_same(getattr(found, name), frames if isinstance(given, dict) else frames[FRAME], name)


def _padding(model, settings, one, newest, oldest, key):
    """What stands where a window has no step: frames that a real step shows as well, and zeros."""
    stack = settings.get("stack", usual_stack(model.schema))
    size = stack or 1
    blank = np.zeros_like(one.frames[0][key])
    frames = []
    for at in range(newest - size + 1, newest + 1):
        if not oldest - size + 1 <= at <= len(one.steps):
            frames.append(blank)
        elif at >= 0 or settings.get("padding", "reset") == "reset":
            frames.append(one.frames[max(at, 0)][key])
        else:
            frames.append(blank)
    return joined(frames, stack, settings.get("stack_axis", 0))
