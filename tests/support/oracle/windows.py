"""Windows worked out naively from the model: which ones there are, and what each one shows.

Invariant: nothing here is shared with the samplers or the gather; windows are found by trying every
step, and each step of each window is what the model says of that transition.
"""

import dataclasses

import numpy as np

from mmreplay.schema import FRAME
from tests.support.oracle.checks import check_same
from tests.support.oracle.model import LANE_SHIFT, ROW_MASK, Played, joined, usual_stack


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
    if boundary == "cross":
        return _crossing_starts(model, length, burn_in, stride, selected)
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


def _crossing_starts(model, length, burn_in, stride, selected):
    out = []
    for number, lane in enumerate(model.lanes):
        oldest, head = lane.first, len(lane.rows)
        for env in range(lane.n):
            ids = [number << LANE_SHIFT | (row * lane.n + env) for row in range(head)]
            for begin in range(oldest, head - burn_in - length + 1, stride):
                at = begin + burn_in
                if selected is None or selected.issuperset(ids[at : at + length]):
                    out.append(ids[at])
    return sorted(out)


def idle_starts(model, starts, kind):
    """Those of these windows in which the environment was left out of all rows."""
    if kind["boundary"] != "cross":
        return []
    ids, _ = _crossing(model, starts, range(-kind["burn_in"], kind["length"]))
    return [start for start, here in zip(starts, ids, strict=True) if (here < 0).all()]


def starts_of(batch, model, idle):
    """What identifies each window, worked out from any of its steps; the next one without any."""
    out = []
    for ids in batch.id:
        there = np.flatnonzero(ids >= 0)
        if not there.size:
            out.append(next(idle))
            continue
        stride = model.lanes[ids[there[0]] >> LANE_SHIFT].n
        out.append(int(ids[there[0]] - (there[0] - batch.burn_in) * stride))
    return out


def check_sequences(found, model, starts, length, burn_in=0, boundary="drop", **settings):
    """Every step of every window is what the model says."""
    shape = len(starts), burn_in + length
    if found.burn_in != burn_in or len(found) != len(starts):
        raise AssertionError(f"expected {len(starts)} windows, found {len(found)}")
    if boundary == "cross":
        ids, step = _crossing(model, starts, range(-burn_in, length))
        _check_steps(found, model, ids, step, (), settings)
        for name in ("observation", "next_observation"):
            for one in (
                getattr(found, name).values() if model.schema.is_dict else [getattr(found, name)]
            ):
                check_same(one[ids < 0], np.zeros_like(one[ids < 0]), name)
        return
    places = {id_: (k, k.oldest + at) for k in kept_episodes(model) for at, id_ in enumerate(k.ids)}
    ids = np.full(shape, -1, np.int64)
    step = np.zeros(shape, np.int64)
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
            step[number, time] = at
    _check_steps(found, model, ids, step, pads, settings)


def _crossing(model, starts, times):
    """The ids of the rows around others of the same environments, -1 for none, and their places."""
    ids, step = (
        np.full((len(starts), len(times)), -1),
        np.zeros((len(starts), len(times)), np.int64),
    )
    for number, start in enumerate(starts):
        lane = model.lanes[start >> LANE_SHIFT]
        row, env = divmod(start & ROW_MASK, lane.n)
        for column, time in enumerate(times):
            one = lane.rows[row + time].get(env)
            if one is not None:
                ids[number, column] = start + time * lane.n
                step[number, column] = row + time - one.first
    return ids, step


def _check_steps(found, model, ids, step, pads, settings):
    """All arrays of a batch of these steps; `pads` are the observations where there is none."""
    mask, shape = ids >= 0, ids.shape
    first = mask & (step == 0)
    check_same(found.weight, np.ones(len(ids), np.float32), "weight")
    for name, expected in (("id", ids), ("mask", mask), ("first", first), ("step", step)):
        check_same(getattr(found, name), expected, name)

    # Each transition is asked of the model once, in however many windows it is.
    distinct, which = np.unique(ids[mask], return_inverse=True)
    batch = model.batch(distinct, **settings)

    def spread(column):
        out = np.zeros((*shape, *column.shape[1:]), column.dtype)
        out[mask] = column[which]
        return out

    for name in ("reward", "discount", "non_terminal", "action", "terminated", "truncated"):
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


# ---------------------------------------------------------------- each column at its own offsets


def reaches(windows):
    """Steps before and after a step that windows need in its episode; a last one has two frames."""
    seen = {name: np.ravel(offsets).astype(np.int64) for name, offsets in windows.items()}
    before = max(-offsets.min() for offsets in seen.values())
    after = max(offsets.max() - name.startswith("observation") for name, offsets in seen.items())
    return max(before, 0), max(after, 0)


def whole_windows(model, windows, selected=None):
    """Ids of the steps around which all of their windows are in the episode, ascending."""
    before, after = reaches(windows)
    return sorted(
        id_
        for kept in kept_episodes(model)
        for at, id_ in enumerate(kept.ids, kept.oldest)
        if before <= at < len(kept.one.steps) - after and (selected is None or id_ in selected)
    )


def check_windows(found, model, ids, windows, weight=None):
    """Every value of every window is what the model says, value by value."""
    check_same(found.id, np.array(ids, np.int64), "id")
    check_same(found.weight, np.ones(len(ids), np.float32) if weight is None else weight, "weight")
    if set(found.fields) != set(windows) or set(found.mask) != set(windows):
        raise AssertionError(f"expected {sorted(windows)}: {found}")
    for name, offsets in windows.items():
        shape = np.shape(offsets)
        values, masks = [], []
        for id_ in ids:
            one, number = model.find(id_)
            for offset in np.ravel(offsets).tolist():
                value, inside = _value(model, one, number + offset, name)
                values.append(value)
                masks.append(inside)
        mask = np.array(masks, np.bool_).reshape(len(ids), *shape)
        check_same(found.mask[name], mask, f"mask of {name}")
        if name == "observation" and model.schema.is_dict:
            for key, one in found[name].items():
                expected = np.reshape([value[key] for value in values], one.shape)
                check_same(one, expected.astype(model.schema.frames[key].dtype), f"{name}[{key}]")
            continue
        dtype, inner = _kind(model.schema, name)
        expected = np.array(values, dtype).reshape(len(ids), *shape, *inner)
        check_same(found[name], expected, name)


def _value(model, one, at, name):
    """What a column has at a place of an episode, and whether there is such a place."""
    if name.startswith("observation"):
        frame = one.frames[min(max(at, 0), len(one.frames) - 1)]
        _, _, key = name.partition(".")
        if model.schema.is_dict and not key:
            return frame, 0 <= at < len(one.frames)
        return frame[key or FRAME], 0 <= at < len(one.frames)
    inside = 0 <= at < len(one.steps)
    step = one.steps[min(max(at, 0), len(one.steps) - 1)]
    if name == "reward":
        return step.reward if inside else 0, inside
    known = {"action": step.action, "non_terminal": step.non_terminal}
    return known[name] if name in known else step.extras[name], inside


def _kind(schema, name):
    if name.startswith("observation"):
        field = schema.frames[name.partition(".")[2] or FRAME]
    else:
        field = {**schema.extra_fields, "action": schema.action}.get(name)
    if field is None:
        return (schema.reward_dtype if name == "reward" else np.bool_), ()
    return field.dtype, field.shape
