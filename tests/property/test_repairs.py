"""Random damage to random stores: a repair keeps what is sound, and nothing else."""

import collections
import random
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from mmreplay import Field
from mmreplay.format import plan
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import CONTEXT_ROWS
from tests.support.oracle.pair import Numbers, Pair
from tests.support.tampering.repairs import Lost, check_steps, stretches

RAW = Field((2,), "float32", "raw", chunk=8)
PACKED = Field((3,), "uint16", "lz4", chunk=4, shard=16)
FRAMES = [RAW, PACKED, {"image": PACKED, "speed": RAW}]
FIELDS = {"goal": Field((256,), "float64"), "score": Field((), "float32")}  # goals: 2 in a chunk
# Chunks of the finals and of fields of episodes.
SHORT = {"_FINAL_BYTES": 64, "_LEAST_FINALS": 6, "_FINAL_PAGES_BYTES": 0, "_EPISODES_BYTES": 4096}
SPINE = {"step", "resets", "ends", "finals/id", "finals/first"}
INDEX = ("finals/id", "finals/first")


def record(path, luck, environments, *, evicts, killed):
    """A store of one lane and the model of it, closed or left by a kill."""
    n = environments or 1
    capacity = luck.choice([20, 45]) * n if evicts else None
    action = Field((), "int64", chunk=luck.choice([8, 16]))
    layout = Layout(
        luck.choice(FRAMES), action, {}, "float32", capacity, environments, episode=FIELDS
    )
    writer = layout.create(path)
    pair = Pair([writer], layout.model(), np.random.default_rng(luck.randrange(99)), Numbers())
    for _ in range(2):
        pair.play(luck.choice([10, 40]) + evicts * 60, luck.choice([0.05, 0.3]), "any")
        writer.flush()
    pair.play(9, 0.2, "any")
    if killed:
        writer._background.finish_tasks()
        faults.kill(writer)
    else:
        writer.close()
    pair.model.end_session()
    with mmreplay.open(path) as store:
        (reader,) = store.live.readers
        pair.lane.forget(reader.base)
        specs = reader.rows.specs | {f"finals/{name}": s for name, s in reader.finals.specs.items()}
        specs |= reader.document.episodes
        return pair.model, specs, reader.finals.head


def data_of(array):
    """The array that an array of checksums is of."""
    return array.replace("checksums/", "")


class Harm:
    """Damage to one chunk file, of rows or of checksums; `rows` are those of its array."""

    def __init__(self, path, specs, heads, luck, taken, *, killed):
        arrays = {str(one.parent.relative_to(path)) for one in path.rglob("c.*")}
        # Nothing tells of a flip in an array whose checksums are gone, too.
        self.array = luck.choice(sorted(a for a in arrays if data_of(a) not in taken))
        taken.add(data_of(self.array))
        file = luck.choice(sorted((path / self.array).glob("c.*")))
        self.is_of_rule, self.rows, data = False, set(), bytearray(file.read_bytes())
        how = luck.choice(["flip", "flip", "unlink", "cut"])
        if self.array in specs:
            spec, chunk = specs[self.array], int(file.name.split(".")[1])
            head, size = heads[self.array.partition("/")[0]], spec.chunk_rows
            self.rows = set(range(chunk * size, min((chunk + 1) * size, head)))
            # A checksum tells of a flip, in a file that is finished; else only a rule may.
            is_open = killed and spec.is_raw and head - 1 <= chunk * size + size
            if how == "flip" and (is_open or (killed and self.array.startswith("episodes/"))):
                self.is_of_rule = self.array in SPINE and spec.width == 1 and len(self.rows) > 1
                how = "rule" if self.is_of_rule else "cut"
        elif how == "cut":
            how = "flip"
        if how == "rule":
            row = luck.choice(sorted(self.rows)[:-1])
            self.rows = {row}
            at = row % size * spec.row_bytes + luck.randrange(spec.row_bytes)
            data[at] ^= 1 << luck.randrange(8)
        elif how == "flip":
            # Of fields of episodes in a row that there is: nothing is lost by a flip behind them.
            is_field = self.array.startswith("episodes/")
            room = len(self.rows) * spec.row_bytes if is_field else len(data)
            data[luck.randrange(room)] ^= 1 << luck.randrange(8)
        file.unlink() if how == "unlink" else file.write_bytes(data[: -(how == "cut") or None])

    def __repr__(self):
        return f"{self.array} {sorted(self.rows)[:1]} {self.is_of_rule}"


def may_be_lost(harms, lane, *, killed):
    """The rows of which something may be lost, by what docs/design.md says of a repair.

    The model forgets the fields of episodes that are lost.
    """
    out, index = Lost(), {name: set() for name in INDEX}
    for one in harms:
        if one.array in INDEX:
            index[one.array] |= one.rows
        elif one.array.startswith("finals/frames"):
            out.finals |= {lane.finals[row].last for row in one.rows}
        elif one.array.startswith("episodes/"):
            for row in one.rows:
                lane.episodes[row].fields.pop(one.array.partition("/")[2], None)
        elif one.array.startswith("frames"):
            out.frames |= one.rows
        else:  # of a rule also the rows beside it
            wide = range(-1, 3) if one.is_of_rule else [0]
            out.columns |= {row + k for row in one.rows for k in wide}
    ids, firsts = index.values()
    unknown = ids | firsts if any(one.is_of_rule for one in harms) else ids & firsts
    out.finals |= {lane.finals[row].last for row in unknown}
    if killed and (ids or firsts):
        out.finals.add(len(lane.rows) - 1)
    return out


@settings(max_examples=by_effort(12, 60, 2_000))
@given(
    seed=st.integers(0, 2**32 - 1),
    environments=st.sampled_from([None, 3, 8]),
    evicts=st.booleans(),
    killed=st.booleans(),
    skip=st.booleans(),
)
def test_a_repair_keeps_what_is_sound_and_nothing_else(seed, environments, evicts, killed, skip):
    luck = random.Random(seed)
    with scratch_directory() as folder, mock.patch.multiple(plan, **SHORT):
        path = folder / "store.zarr"
        model, specs, n_finals = record(path, luck, environments, evicts=evicts, killed=killed)
        (lane,) = model.lanes
        heads = collections.defaultdict(lambda: len(lane.rows), finals=n_finals)
        heads["episodes"], first = len(lane.episodes), lane.first
        taken = set()
        harms = [
            Harm(path, specs, heads, luck, taken, killed=killed)
            for _ in range(luck.choice([1, 2, 3]))
        ]
        lost, found = may_be_lost(harms, lane, killed=killed), mmreplay.verify(path).findings
        n_before = len(model)
        done = mmreplay.repair(path, skip_damaged=skip)
        checks.check_verified(path)
        sound = list(stretches(lane, lost))
        if skip:
            both = sum(one.array in ("resets", "step") for one in harms) > 1
            may_be_blank = both or any(one.is_of_rule for one in harms)
            kept = check_steps(path, lane, may_be_blank=may_be_blank)
            sure = {
                (r, env) for a, b in sound for r in range(max(a, first), b) for env in lane.rows[r]
            }
            room = lane.capacity or len(kept | sure)
            assert sure <= kept or len(kept) > room - lane.n
            return
        with mmreplay.open(path) as store:
            (reader,) = store.live.readers
            stop = sound[0][1] if sound and sound[0][0] == lane.base else 0
            assert reader.head >= (
                stop if stop >= lane.base + CONTEXT_ROWS * (lane.base > 0) else 0
            )
            if found and not any(one.array == "step" for one in harms):
                assert (done.kept, done.lost) == (len(store), max(n_before - len(store), 0))
            if reader.head:
                model.cut([reader.head])
                checks.check_store(store, model, settings=[{}, {"stack": 3, "n_step": 3}])
