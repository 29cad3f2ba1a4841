"""What `repair` must keep, worked out from a model of the lane and from what was damaged.

Invariant: nothing of `mmreplay.maintenance` is asked.
"""

import json
from dataclasses import dataclass, field

import numpy as np

import mmreplay
from mmreplay.format import layout
from tests.support.oracle.checks import check_same, check_verified


def set_attributes(path, *, sealed=False, **changes):
    """Change attributes, and their crc32c if `sealed`."""
    document = json.loads(path.read_text())
    own = document["attributes"]["mmreplay"]
    own.update(changes)
    if sealed:
        own["crc32c"] = layout.digest(own)
    path.write_text(json.dumps(document))


@dataclass
class Lost:
    """The rows of a lane that cannot be read any more.

    Attributes:
        columns: those of which a column other than frames is lost.
        frames: those of which the frames are.
        finals: those with which an episode ended whose final observation is lost.
    """

    columns: set[int] = field(default_factory=set)
    frames: set[int] = field(default_factory=set)
    finals: set[int] = field(default_factory=set)


def parts_left(model, lost, *, skip):
    """The episodes that a repair leaves, in the order of their first transitions."""
    out = []
    for low, high in stretches(model, lost):
        if low and not skip:
            break
        for one in model.episodes:
            start, stop = max(low - one.first, 0), min(high - one.first, len(one.steps))
            if start < stop:
                out.append((one, start, stop))
    return sorted(out, key=lambda part: (part[0].first + part[1]) * model.n + part[0].env)


def stretches(model, lost):
    """Rows that are whole, and whose running episodes can be ended with the row after them."""
    start, damaged = model.base, lost.columns | lost.frames | lost.finals
    for row in range(start, len(model.rows) + 1):
        if row < len(model.rows) and row not in damaged:
            continue
        stop = row
        if row > start and row in lost.frames:
            played = model.rows[row - 1].values()
            stop -= not all(one.over and one.last == row - 1 for one in played)
        if start < stop:
            yield start, stop
        start = row + 1


def check_parts(path, parts):
    """A store is sound, and its episodes are these, byte for byte.

    Raises:
        AssertionError: they are not.
    """
    check_verified(path)
    parts = list(parts)
    with mmreplay.open(path) as store:
        assert store.info()["state"] == "closed"
        lengths = [stop - start for _, start, stop in parts]
        assert store.episodes["length"].tolist() == lengths, (store.episodes, lengths)
        for number, (one, start, stop) in enumerate(parts):
            found, steps = store.trajectory(number), one.steps[start:stop]
            what = f"steps {start} to {stop} of the episode of row {one.first}"
            for key in store.schema.frames:
                frames = found.observation[key] if store.schema.is_dict else found.observation
                expected = np.stack([frame[key] for frame in one.frames[start : stop + 1]])
                check_same(frames, expected, f"{what}: {key}")
            check_same(found.action, np.stack([step.action for step in steps]), what)
            check_same(found.reward, np.stack([step.reward for step in steps]), what)
            for name, values in found.extras.items():
                check_same(values, np.stack([step.extras[name] for step in steps]), what)
            flags = [bool(step.non_terminal) for step in steps]
            assert found.non_terminal.tolist() == flags, what
            assert (found.terminated, found.truncated) == (not flags[-1], flags[-1]), what


def check_steps(path, model, *, may_be_blank):
    """Every transition of a store is one of the model's, in their order, and none comes twice.

    Actions tell them apart. Fields of episodes `may_be_blank`: zeros where they are not known.
    Returns the rows and environments that they have in the model.

    Raises:
        AssertionError: they are not.
    """
    known = {
        step.action.tobytes(): (one, n)
        for one in model.episodes
        for n, step in enumerate(one.steps)
    }
    out = []
    with mmreplay.open(path) as store:
        batch = store.transitions(store.ids, stack=None)
        columns = {name: store.live.columns[f"episodes/{name}"] for name in model.fields}
        fields = {name: column.take(store.ids) for name, column in columns.items()}
        for i, action in enumerate(batch.action):
            one, number = known[action.tobytes()]
            step, row = one.steps[number], one.first + number
            out.append((row, one.env))
            for key in store.schema.frames:
                seen = batch.observation, batch.next_observation
                for what, frames in zip(("frame", "next frame"), seen, strict=True):
                    found = (frames[key] if store.schema.is_dict else frames)[i]
                    expected = one.frames[number + (what != "frame")][key]
                    check_same(found, expected, f"{what} of row {row}, environment {one.env}")
            check_same(batch.reward[i], np.float32(step.reward), f"reward of row {row}")
            assert batch.non_terminal[i] == step.non_terminal
            for name, values in fields.items():
                if one.first >= model.base and not (may_be_blank and not values[i].any()):
                    check_same(values[i], model.field(one, name), f"{name} of row {row}")
            over = batch.terminated[i] or batch.truncated[i]
            assert over or number + 1 < len(one.steps), f"row {row} ended an episode"
    assert out == sorted(set(out))
    return set(out)


def check_kept(path, original, n):
    """A store is sound; its n transitions are those of another of the same ids, but for what ended.

    Raises:
        AssertionError: they are not.
    """
    check_verified(path)
    with mmreplay.open(path) as store, mmreplay.open(original) as other:
        assert len(store) == n
        found, expected = (one.transitions(store.ids, stack=3) for one in (store, other))
        for name in ("id", "observation", "next_observation", "action", "reward", "extras"):
            check_same(getattr(found, name), getattr(expected, name), name)
        check_same(found.non_terminal, expected.non_terminal, "non_terminal")
