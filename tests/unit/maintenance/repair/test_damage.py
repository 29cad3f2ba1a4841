"""Damage of every kind, in lanes of one environment and of several: what is kept."""

import json
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, repair
from tests.support.disks.trees import contents, flip
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.pair import of_writer
from tests.support.tampering.repairs import Lost, check_parts, parts_left

CHUNK, SHARD, INNER = 8, 8, 4
FRAMES = {
    "image": Field((3,), "uint16", "lz4", chunk=INNER, shard=SHARD),
    "speed": Field((2,), "float32", "raw", chunk=CHUNK),
}
FIELDS = {"frame": FRAMES, "action": Field((), "int64", chunk=CHUNK)}
FIELDS |= {"extras": {"x": Field((2,), "int32", chunk=CHUNK)}}


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture(
    params=[
        pytest.param(None, id="one environment", marks=pytest.mark.deep(only=True)),
        pytest.param(3, id="three, with masks"),
    ]
)
def lane(request, make, made, kill, tmp_path, tmp_path_factory):
    """A lane of 60 steps, and its model; a closed one is made once, then copied."""

    def create(steps=60, *, crashed=False):
        key = request.param, steps
        if crashed or key not in made:
            pair = of_writer(make("made.zarr", **FIELDS, lanes=request.param), seed=steps)
            pair.play(steps, 0.3, "any")
            pair.model.end_session()
            path, model = pair.writer.path, pair.lane
            if crashed:
                pair.writer.flush()
                kill(pair.writer)
                return SimpleNamespace(path=path, model=model, rows=len(model.rows), n=model.n)
            pair.writer.close()
            made[key] = pair.writer.path.rename(tmp_path_factory.mktemp("made") / "x"), pair.lane
        sound, model = made[key]
        path = shutil.copytree(sound, tmp_path / "store.zarr")
        return SimpleNamespace(path=path, model=model, rows=len(model.rows), n=model.n)

    return create


def chunk_file(path, array, chunk):
    return next(
        one for one in (path / array).glob(f"c.{chunk}*") if one.name.split(".")[1] == str(chunk)
    )


def column(array, chunk, how):
    """Damage to a chunk file of rows."""

    def harm(lane):
        how(chunk_file(lane.path, array, chunk))
        lost = set(range(chunk * CHUNK, min((chunk + 1) * CHUNK, lane.rows)))
        return Lost(frames=lost) if array.startswith("frames") else Lost(columns=lost)

    return harm


def bit(file):
    flip(file, 3)


def unlink(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def inner_chunk(chunk, block):
    """Damage to an inner chunk of frames: of one environment of several."""

    def harm(lane):
        file = chunk_file(lane.path, "frames/image", chunk)
        n_inner, environment = SHARD // INNER * lane.n, lane.n - 1
        table = np.frombuffer(file.read_bytes()[-(16 * n_inner + 4) : -4], "<u8").reshape(-1, 2)
        flip(file, int(table[block * lane.n + environment, 0]) + 9)
        first = chunk * SHARD + block * INNER
        return Lost(frames=set(range(first, first + INNER)))

    return harm


def another_shard(chunk, other):
    """A sound shard in the place of another: one with fewer or with more inner chunks."""

    def harm(lane):
        source = chunk_file(lane.path, "frames/image", other)
        chunk_file(lane.path, "frames/image", chunk).write_bytes(source.read_bytes())
        return Lost(frames=set(range(chunk * SHARD, min((chunk + 1) * SHARD, lane.rows))))

    return harm


def final_frames(array, how):
    """Damage to all final observations."""

    def harm(lane):
        how(chunk_file(lane.path, f"finals/{array}", 0))
        return Lost(finals={one.last for one in lane.model.finals})

    return harm


def index(array, how):
    """Damage to the index of the final observations, which is rebuilt."""

    def harm(lane):
        how(chunk_file(lane.path, f"finals/{array}", 0))
        return Lost()

    return harm


def one_final(array):
    """Damage to one number of the index, in a file without a checksum: the order tells it."""

    def harm(lane):
        flip(chunk_file(lane.path, f"finals/{array}", 0), 8 * 3)
        return Lost()

    return harm


def newest_ends(lane):
    """Only one array is left that says which episodes ended with the newest row, if any did."""
    file = chunk_file(lane.path, "finals/id", 0)
    newest = int(np.frombuffer(file.read_bytes(), np.int64).max()) // lane.n
    file.unlink()
    return Lost(finals={newest} & {lane.rows - 1})


def lost_order(lane):
    """All of the index of final observations is gone: within a row, nothing tells their order."""
    for array in ("id", "first"):
        chunk_file(lane.path, f"finals/{array}", 0).unlink()
    rows = [one.last for one in lane.model.finals]
    return Lost(finals={row for row in rows if rows.count(row) > 1})


def past_the_end(lane):
    for array in ("actions", "resets", "extras/x", "finals/first"):
        files = (lane.path / array).glob("c.*")
        flip(max(files, key=lambda one: int(one.name.split(".")[1])), -1)
    return Lost()


def sums(lane):
    for array in ("checksums/frames/image", "checksums/step", "finals/checksums/frames/speed"):
        flip(lane.path / array / "c.0", 1)
    (lane.path / "checksums" / "rewards" / "c.0").unlink()
    return Lost()


def documents(lane):
    for number, file in enumerate(sorted(lane.path.rglob("zarr.json"))):
        if file.parent != lane.path:
            file.write_text("{") if number % 2 else file.unlink()
    return Lost()


def document(array, change):
    """One says something else."""

    def harm(lane):
        file = lane.path / array / "zarr.json"
        said = json.loads(file.read_text())
        change(said)
        file.write_text(json.dumps(said))
        return Lost()

    return harm


def double(said):
    said["chunk_grid"]["configuration"]["chunk_shape"][0] *= 2


LONGER = document("frames/speed", double)
UNREADABLE = document("rewards", lambda d: d.update(data_type="int32"))


def both(*harms):
    def harm(lane):
        found = [one(lane) for one in harms]
        names = ("columns", "frames", "finals")
        return Lost(*(set().union(*(getattr(one, name) for one in found)) for name in names))

    return harm


DAMAGES = {
    "actions, a bit": column("actions", 4, bit),
    "step, a bit": column("step", 5, bit),
    "raw frames, a bit": column("frames/speed", 4, bit),
    "the first rows": column("rewards", 0, unlink),
    "the last rows": column("ends", 7, cut),
    "two inner chunks": both(inner_chunk(2, 1), inner_chunk(5, 0)),
    "a shorter shard": another_shard(3, 7),
    "a longer shard": another_shard(7, 3),
    "final frames, a bit": final_frames("frames/speed", bit),
    "final ids, a bit": index("id", bit),
    "final ids, missing": index("id", unlink),
    "final ids and first steps, missing": lost_order,
    "first steps, missing": index("first", unlink),
    "ids and actions": both(index("id", bit), column("actions", 5, bit)),
    "everywhere": both(column("actions", 2, bit), column("rewards", 6, bit), inner_chunk(5, 0)),
    "past the last row": past_the_end,
    "checksums": sums,
    "documents": documents,
    "a document": LONGER,
    "a document, and actions": both(UNREADABLE, column("actions", 4, bit)),
}


DEEP = pytest.mark.deep(only=True)


@pytest.mark.parametrize(
    ("damage", "skip"),
    [
        pytest.param(damage, skip, marks=[DEEP] * (number % 2 == skip))
        for number, damage in enumerate(DAMAGES)
        for skip in (False, True)
    ],
)
def test_what_is_kept(lane, tmp_path, damage, skip):
    lane = lane()
    lost = DAMAGES[damage](lane)
    before = contents(lane.path)
    assert mmreplay.verify(lane.path).findings
    done = repair(lane.path, skip_damaged=skip)
    parts = parts_left(lane.model, lost, skip=skip)
    check_parts(lane.path, parts)
    total, kept = sum(map(len, lane.model.rows)), sum(stop - start for _, start, stop in parts)
    if "step," in damage:  # where it is lost, every environment counts
        total += sum(lane.n - len(lane.model.rows[row]) for row in lost.columns)
    assert (done.kept, done.lost) == (kept, total - kept)
    if not skip:
        later = sum(stop - start for _, start, stop in parts_left(lane.model, lost, skip=True))
        assert done.beyond == later - kept
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert sorted(one.name for one in tmp_path.iterdir() if "store" in one.name) == [
        "store.zarr",
        "store.zarr.damaged",
    ]


COLUMNS = {"actions": (bit, unlink, cut), "rewards": (bit, cut), "extras/x": (bit, unlink)}
COLUMNS |= {"non_terminals": (bit,), "resets": (bit, unlink), "ends": (bit, cut)}
COLUMNS |= {"frames/speed": (bit, unlink), "frames/image": (unlink, cut)}
FINALS = [
    final_frames("frames/speed", bit),
    final_frames("frames/image", unlink),
    index("id", bit),
    index("first", unlink),
]


@pytest.mark.deep
@pytest.mark.parametrize("skip", [False, True], ids=["prefix", "skip"])
def test_several_places_at_once(lane, skip):
    """Each in a file of its own; what is left must be sound, and all that is sound."""
    luck = random.Random(None if THOROUGH else skip)
    for _ in range(by_effort(1, 5, 200)):
        damaged = lane(luck.choice([40, 60]))
        final = luck.sample(FINALS, luck.choice([0, 0, 1]))
        # Between two damaged places, nothing tells which final observation is which.
        n_columns = 1 if final else luck.choice([1, 2, 3])
        harms = [
            column(array, luck.randrange(damaged.rows // CHUNK), luck.choice(COLUMNS[array]))
            for array in luck.sample(sorted(COLUMNS), n_columns)
        ] + final
        lost = both(*harms)(damaged)
        repair(damaged.path, skip_damaged=skip)
        check_parts(damaged.path, parts_left(damaged.model, lost, skip=skip))
        for one in damaged.path.parent.glob("store.zarr*"):
            shutil.rmtree(one)


@pytest.mark.parametrize("skip", [False, True], ids=["prefix", "skip"])
@pytest.mark.parametrize(
    "harm",
    [
        column("rewards", 5, unlink),
        column("extras/x", 3, cut),
        column("frames/image", 3, unlink),
        column("step", 7, unlink),
        one_final("first"),
        one_final("id"),
        newest_ends,
        both(newest_ends, column("step", 5, cut), column("rewards", 6, cut)),
    ],
    ids=["rewards", "extras", "shard", "steps", "a first step", "an id", "ids", "three files"],
)
def test_a_damaged_lane_that_a_crash_left(lane, harm, skip):
    lane = lane(crashed=True)
    lost = harm(lane)
    before = contents(lane.path)
    done = repair(lane.path, skip_damaged=skip)
    check_parts(lane.path, parts_left(lane.model, lost, skip=skip))
    assert contents(lane.path.with_name("made.zarr.damaged")) == before
    assert done.untrusted == 0
