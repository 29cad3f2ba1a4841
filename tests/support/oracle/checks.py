"""Comparisons of what a store says with what the model says, byte for byte.

Invariant: a check that returns has compared dtype, shape and every byte; one that finds a
difference raises AssertionError and names the array and the first place where it differs.
"""

import numpy as np

import mmreplay
from mmreplay.batches.settings import Settings
from mmreplay.schema import FRAME
from mmreplay.texts import Text
from tests.support.oracle.model import read


def check_same(found, expected, what):
    """Same dtype, shape and bytes."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            raise AssertionError(f"{what}: expected a dict of {sorted(expected)}, found {found!r}")
        for name, one in expected.items():
            check_same(found[name], one, f"{what}[{name!r}]")
        return
    left, right = np.asarray(found), np.asarray(expected)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        raise AssertionError(
            f"{what}: expected {right.dtype} {right.shape}, found {left.dtype} {left.shape}"
        )
    if left.tobytes() == right.tobytes():
        return
    width = max(right.dtype.itemsize, 1)
    bytes_left = np.frombuffer(left.tobytes(), np.uint8).reshape(-1, width)
    bytes_right = np.frombuffer(right.tobytes(), np.uint8).reshape(-1, width)
    wrong = np.flatnonzero((bytes_left != bytes_right).any(axis=1))
    place = np.unravel_index(int(wrong[0]), right.shape)
    raise AssertionError(
        f"{what}: {wrong.size} of {right.size} elements differ, first at "
        f"{tuple(map(int, place))}: expected {right[place]!r}, found {left[place]!r}"
    )


def check_batch(found, expected, what="batch", *, endings=True):
    """Every field of two batches is the same; whether episodes ended if it is known (`endings`)."""
    names = ["id", "reward", "discount", "non_terminal", "action", "weight", "extras"]
    names += ["observation", "next_observation"] + ["terminated", "truncated"] * endings
    for name in names:
        check_same(getattr(found, name), getattr(expected, name), f"{what}.{name}")


def check_ids(store, model):
    """The valid ids and their number are those of the model."""
    check_same(store.ids, model.ids(), "ids")
    if len(store) != len(model):
        raise AssertionError(f"len: expected {len(model)}, found {len(store)}")


def forget(store, model):
    """The model learns what a store has evicted, which must be no more than its capacity says."""
    for view, lane in zip(store.lanes, model.lanes, strict=True):
        base = view.base
        if not lane.base <= base <= lane.next_base:
            raise AssertionError(
                f"{view.path}: base: expected {lane.base} to {lane.next_base}, found {base}"
            )
        lane.forget(base)


def check_columns(store, model):
    """Every column of every lane, whole; zeros below the reader's base."""
    for view, lane, reader in zip(store.lanes, model.lanes, store.live.readers, strict=True):
        base = -1
        found = {}
        while base != view.base:  # a background flush may evict while this reads
            base = view.base
            found = {path: one[:] for path, one in columns_of(view, model.schema).items()}
        if base > lane.next_base:
            raise AssertionError(
                f"{view.path}: base: expected at most {lane.next_base}, found {base}"
            )
        if view.rows != len(lane.rows):
            raise AssertionError(f"{view.path}: expected {len(lane.rows)} rows, found {view.rows}")
        if view.first != max(lane.first, base + 64 if base else 0):
            raise AssertionError(f"{view.path}: first: expected {lane.first}, found {view.first}")
        arrays = lane.arrays()
        for path, one in found.items():
            expected = arrays[path]
            expected[:base] = 0
            # Whoever opens what was not closed for writing sets those of the newest row.
            if path == "ends" and not (reader.is_live or reader.is_closed):
                one[-1:] = expected[-1:] = 0
            check_same(one, expected, f"{view.path}: {path}")


def columns_of(view, schema):
    """The columns of a lane by their path in the store."""
    frames = view.frames
    out = (
        {f"frames/{name}": one for name, one in frames.items()}
        if isinstance(frames, dict)
        else {"frames": frames}
    )
    names = ("actions", "rewards", "non_terminals", "resets", "ends", "step")
    out |= {name: getattr(view, name) for name in names}
    return out | {path: view.extras[name] for name, path in schema.extra_paths.items()}


def check_episodes(store, model):
    """The table of episodes: everything exact but the returns, where only rounding may differ."""
    expected = model.episodes()
    found = store.episodes
    firsts = [model.ids_of(lane, one)[0] for lane, one in expected]
    check_same(found["id"], np.array(firsts, np.int64), "episodes: id")
    lengths = np.array([len(one.steps) for _, one in expected], found["length"].dtype)
    check_same(found["length"], lengths, "episodes: length")
    for place, name in enumerate(("terminated", "truncated")):
        wanted = np.array([one.ending[place] for _, one in expected], np.bool_)
        check_same(found[name], wanted, f"episodes: {name}")
    for name, field in model.lanes[0].fields.items():
        if name == "started" and not all(lane.knows_started for lane in model.lanes):
            continue
        values = [read(field, model.lanes[lane].field(one, name)) for lane, one in expected]
        wanted = np.array(values, str if isinstance(field, Text) else field.dtype)
        check_same(
            found[name], wanted.reshape(len(values), *found[name].shape[1:]), f"episodes: {name}"
        )
    for total, (_, one) in zip(found["return"].tolist(), expected, strict=True):
        if not abs(total - one.total) <= 1e-12 * one.magnitude:
            raise AssertionError(f"episodes: return: expected {one.total}, found {total}")


def check_info(store, model):
    """How many of everything there are."""
    found, endings = store.info(), [one.ending for _, one in model.episodes()]
    expected = {
        "lanes": len(model.lanes),
        "environments": sum(lane.n for lane in model.lanes),
        "rows": sum(model.heads()),
        "kept_rows": sum(len(lane.rows) - lane.base for lane in model.lanes),
        "transitions": len(model),
        "episodes": len(endings),
        "terminated": sum(one for one, _ in endings),
        "truncated": sum(one for _, one in endings),
        "open": sum(one == (False, False) for one in endings),
    }
    wrong = {name: (found[name], one) for name, one in expected.items() if found[name] != one}
    if wrong:
        raise AssertionError(f"info: found and expected: {wrong}")


def check_trajectories(store, model, numbers):
    for number in numbers:
        found, expected = store.trajectory(number), model.trajectory(number)
        frames = expected.observation
        what = f"trajectory {number}"
        check_same(
            found.observation,
            frames if model.schema.is_dict else frames[FRAME],
            f"{what}: observation",
        )
        wanted = dict(expected.episode)
        if not all(lane.knows_started for lane in model.lanes):
            wanted["started"] = found.episode["started"]
        check_same(found.episode, wanted, f"{what}: episode")
        for name in ("action", "reward", "non_terminal", "ids", "extras"):
            check_same(getattr(found, name), getattr(expected, name), f"{what}: {name}")
        if (found.terminated, found.truncated) != (expected.terminated, expected.truncated):
            raise AssertionError(f"{what}: expected {expected.terminated=}, {expected.truncated=}")


def check_store(store, model, *, settings=({},), most=200, generator=None):
    """Columns, ids, episodes, trajectories and transitions; the model learns what is evicted."""
    check_columns(store, model)
    forget(store, model)
    check_ids(store, model)
    check_episodes(store, model)
    n = len(store.episodes)
    check_trajectories(store, model, sorted({0, n // 2, n - 1} & set(range(n))))
    ids = model.ids()
    if ids.size > most:
        random = generator or np.random.default_rng(0)
        edge = most // 3
        inner = random.choice(ids[edge:-edge], most - 2 * edge, replace=False)
        ids = random.permutation(np.concatenate((ids[:edge], inner, ids[-edge:])))
    for one in settings:
        expected = model.batch(ids, **{"padding": store.padding} | one)
        check_batch(store.transitions(ids, **one), expected, f"transitions({one})")
    names = tuple(name for name in model.lanes[0].fields if name != "started")
    if names and ids.size:
        gatherer = store.live.gatherer(Settings(episode=names))
        check_fields(store.live.gather(store.live.valid_ids(ids), gatherer).extras, model, ids)


def check_fields(extras, model, ids):
    """The fields of their episodes that a batch of these ids has, also of those evicted in part."""
    for name in [name for name in model.lanes[0].fields if name != "started"]:
        found, values = extras[f"episode.{name}"], []
        for i in ids.tolist():
            lane, (one, _) = model.lanes[i >> 40], model.find(i)
            blank = one.first < lane.base  # nothing is promised of it, but that it is nothing else
            field = lane.fields[name]
            value = np.zeros(field.shape, field.dtype) if blank else lane.field(one, name)
            values.append(read(field, value))
        is_text = isinstance(model.lanes[0].fields[name], Text)
        wanted = np.array(values, found.dtype if is_text else None)
        check_same(found, wanted, f"extras: episode.{name}")


def check_verified(path):
    """`mmreplay.verify` has nothing to say about a store."""
    findings = mmreplay.verify(path).findings
    if findings:
        raise AssertionError("\n".join(["verify found:", *map(str, findings)]))
