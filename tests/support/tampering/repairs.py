"""Repairs of damaged stores, and what must hold after them."""

import json

import numpy as np
import pytest
from tests.support.oracle.vectors import assert_closed_lane_matches

import mmreplay
from mmreplay import CorruptStoreError, repair, verify
from mmreplay.format import layout
from mmreplay.reading.vector_reader import VectorReader
from tests.support.disks.trees import contents, flip, names


def set_attributes(path, *, sealed=False, **changes):
    """Change attributes, and their crc32c if `sealed`."""
    document = json.loads(path.read_text())
    own = document["attributes"]["mmreplay"]
    own.update(changes)
    if sealed:
        own["crc32c"] = layout.digest(own)
    path.write_text(json.dumps(document))


def attributes(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["mmreplay"]


def columns(path):
    with mmreplay.open(path) as store:
        view = store.lanes[0]
        columns = {name: getattr(view, name) for name in ("actions", "rewards", "resets")}
        columns |= (
            {f"frames {key}": one for key, one in view.frames.items()}
            if isinstance(view.frames, dict)
            else {"frames": view.frames}
        )
        return view.base, {name: one[:] for name, one in columns.items()}


def repaired(path, known):
    """Repair; the store has the first rows that are known, and what is damaged stays as it was."""
    before = contents(path)
    done = repair(path)
    assert contents(path.with_name(f"{path.name}.damaged")) == before
    assert verify(path).findings == []
    (base, found), (_, rows) = columns(path), known
    for name, column in found.items():
        stop = len(column) - (name in {"actions", "rewards"})  # the newest is a final row
        assert column[base:stop].tobytes() == rows[name][base:stop].tobytes(), name
    return done


def assert_refused(path, match):
    """Repair raises an error of ours and changes nothing."""
    before = contents(path)
    with pytest.raises(CorruptStoreError, match=match):
        repair(path)
    assert contents(path) == before
    assert names(path.parent) == [path.name]


def transitions(path, ids=None):
    with mmreplay.open(path) as store:
        wanted = store.ids if ids is None else ids
        return wanted, store.transitions(wanted, stack=3, n_step=1)


def arrays(batch):
    found = {"action": batch.action, "reward": batch.reward, "flag": batch.non_terminal}
    observation = (
        batch.observation if isinstance(batch.observation, dict) else {"": batch.observation}
    )
    following = batch.next_observation
    following = following if isinstance(following, dict) else {"": following}
    found |= {f"observation {key}": one for key, one in observation.items()}
    found |= {f"next {key}": one for key, one in following.items()}
    return found | batch.extras


def check_kept(path, original):
    """Whatever can be sampled of a store is what the original has at the same ids."""
    assert verify(path).findings == []
    ids, kept = transitions(path)
    if len(ids):
        _, known = transitions(original, ids)
        for name, one in arrays(kept).items():
            assert one.tobytes() == arrays(known)[name].tobytes(), name
    return ids


def check_ticks(model, ended, path, n_ticks, n_starts=None):
    """A vector lane holds the first of its ticks, and is sound."""
    model = ended(model)
    model.cut(n_ticks, len(model.episodes) if n_starts is None else n_starts)
    assert verify(path).findings == []
    assert_closed_lane_matches(model, path)


def inner_chunk(path, shard, number):
    """The first byte of an inner chunk in a shard of frames: 4 blocks of 5 environments."""
    data = (path / "ticks" / "frames" / f"c.{shard}.0.0").read_bytes()
    index = np.frombuffer(data[-(16 * 20 + 4) : -4], "<u8").reshape(20, 2)
    return int(index[number][0])


def damage_start(path, number):
    """Damage the frame of a start; returns the starts [start, stop) of which nothing is known then."""
    log = VectorReader(path).starts
    spec = log.specs["frames"]
    chunk, row = divmod(number, spec.chunk_rows)
    file = path / "starts" / "frames" / spec.key(chunk)
    if spec.is_raw:
        flip(file, row * spec.row_bytes)
        return range(chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows)
    n_inner = spec.chunk_rows // spec.inner_rows
    index = np.frombuffer(file.read_bytes()[-(16 * n_inner + 4) : -4], "<u8").reshape(-1, 2)
    inner = row // spec.inner_rows
    flip(file, int(index[inner][0]))
    start = chunk * spec.chunk_rows + inner * spec.inner_rows
    return range(start, start + spec.inner_rows)
