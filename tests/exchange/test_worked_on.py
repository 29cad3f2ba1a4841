"""A store that people have worked on goes every way: derived columns, fields of episodes, tags.

Invariant: what a way cannot carry is in its losses, and in the table here.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import json

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, Text
from mmreplay.viewer.answers import Answers
from tests.support.packed import unpack
from tests.support.played_episodes import play, steps_of, write

DERIVED = {"togo": Field((), "float32"), "latent": Field((3,), "float16")}
FIELDS = {"task": Text(8), "success": Field((), "int8"), "goal": Field((2,), "float32")}
GIVEN = {
    "task": ["push", "push", "lift", "push"],
    "success": [1, -1, 0, 1],
    "goal": np.arange(8).reshape(4, 2).tolist(),
    "quality": ["", "very good", "", "very good"],
}
EXTRAS = {"log_prob": Field((), "float32")}


@pytest.fixture
def worked_on(tmp_path, quick_disk):
    """Its path; `write` gave no derived value, two episodes were tagged with a new field."""
    path = tmp_path / "a.zarr"
    write(path, play(extras=EXTRAS, lives=False), derived=DERIVED, episode=FIELDS)
    with mmreplay.load(path, update=[*DERIVED]) as data:
        ids = data.ids
        data.update(ids, togo=ids / 4, latent=np.stack([ids, ids + 1, -ids], axis=1))
    mmreplay.add_column(path, "added", ids % 3 == 0)
    mmreplay.tag(path, **{name: values for name, values in GIVEN.items() if name != "quality"})
    mmreplay.tag(path, [1, 3], quality="very good")
    return path


def contents(path):
    """Extra and derived columns, and fields of episodes, by name."""
    with mmreplay.open(path) as store:
        episodes = store.episodes
        own = {"id", "length", "return", "terminated", "truncated"}
        extras = store.transitions(store.ids, stack=None).extras
        fields = {name: episodes[name] for name in episodes.dtype.names if name not in own}
        return extras, fields, {*store.schema.derived}


@dataclasses.dataclass(frozen=True)
class Way:
    """`columns` come back as extras or derived, and `fields`; all others are in `losses`."""

    columns: frozenset = frozenset({"log_prob", "togo", "latent", "added"})
    fields: frozenset = frozenset({*GIVEN, "started"})
    derived: frozenset = frozenset({"togo", "latent", "added"})
    out: tuple = ()  # what is lost, as an export says, but for derived columns
    back: tuple = ()  # as the import says
    more: frozenset = frozenset()  # what an import adds


FOREIGN = Way(derived=frozenset())
INFO = "extra column {}: exported as an info, with 0 at the reset"
MINARI = (
    "the specification of the environment: not recorded in this store",
    "observation bounds: not recorded in this store; exported as the full range of the dtype",
    "action bounds: not recorded in this store; exported as the full range of the dtype",
    *(INFO.format(name) for name in sorted(Way.columns)),
)
FINAL = "final observations that the source does not have"
WAYS = {
    "verify": Way(),
    "pack": Way(),
    "snapshot": Way(),
    "repair": Way(columns=Way.columns - {"latent"}),  # which was damaged
    "arrays": FOREIGN,
    "robomimic": FOREIGN,
    "parquet": FOREIGN,
    "minari": dataclasses.replace(
        FOREIGN, out=MINARI, more=frozenset(f"reset.{name}" for name in Way.columns)
    ),
    "lerobot": dataclasses.replace(
        FOREIGN,
        fields=frozenset({"task"}),
        out=(
            "fields of episodes: LeRobot has only tasks: goal, quality, success",
            "final observations: LeRobot has none",
            "times when episodes began: LeRobot has none",
        ),
        back=(
            "files that are not read: meta/episodes/chunk-000/file-000.parquet, meta/stats.json",
            f"{FINAL}: the last observation of the episode is repeated",
        ),
        more=frozenset({"timestamp", "task_index"}),
    ),
}
NEEDS = {"parquet": "pyarrow", "lerobot": "pyarrow", "minari": "minari", "robomimic": "h5py"}


def sent(way, path, folder):
    """The path of the store that came of it, and what was said to be lost, there and back."""
    target = folder / "b.zarr"
    if way == "verify":
        assert not mmreplay.verify(path).findings
        return path, (), ()
    if way == "repair":
        (file,) = (path / "derived/latent").glob("c.0*")
        file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
        assert [one.array for one in mmreplay.verify(path).findings] == ["derived/latent"]
        mmreplay.repair(path)
        return path, (), ()
    if way in {"pack", "snapshot"}:
        getattr(mmreplay, way)(path, target)
        return target, (), ()
    file = {"arrays": "c.npz", "robomimic": "c.hdf5", "parquet": "c.parquet"}.get(way, "c")
    made = mmreplay.export_dataset(path, way, folder / file)
    back = mmreplay.import_dataset(way, folder / file, target)
    return target, *(tuple(loss.what for loss in one.losses) for one in (made, back))


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_every_way_and_what_is_lost_is_said(worked_on, tmp_path, way):
    if way in NEEDS and not importlib.util.find_spec(NEEDS[way]):
        pytest.skip(f"{NEEDS[way]} is not in this environment; `make test-exchange` has all")
    expected, (given, before, _) = WAYS[way], contents(worked_on)
    assert {name: before[name].tolist() for name in GIVEN} == GIVEN
    path, out, back = sent(way, worked_on, tmp_path)
    if not expected.derived:
        told = "derived columns: exported as extra columns, which cannot be updated"
        assert out[0] == f"{told}: added, latent, togo"
    assert (out[not expected.derived :], back) == (expected.out, expected.back)
    extras, fields, derived = contents(path)
    assert derived == expected.derived
    assert extras.keys() | fields.keys() == (
        Way.columns | expected.fields | {"started"} | expected.more
    )
    for name in Way.columns:
        wanted = given[name] if name in expected.columns else np.zeros_like(given[name])
        assert (extras[name].dtype, extras[name].tolist()) == (wanted.dtype, wanted.tolist())
    for name in expected.fields:
        assert fields[name].tolist() == before[name].tolist()
    assert not mmreplay.verify(path).findings
    check_page(path, extras, fields)


def check_page(path, extras, fields):
    """`mmreplay view` answers the same values."""
    with contextlib.closing(Answers([path])) as answers:
        shown, about = unpack(answers.episodes(0).body)
        for name in about["fields"]:
            values = shown[f"field.{name}"]
            texts = about["texts"].get(name)
            found = [texts[int(one)] for one in values] if texts else values.tolist()
            assert found == fields[name].tolist(), name
        assert {*about["fields"]} == {
            name for name, one in fields.items() if one.ndim == 1 and name != "started"
        }
        version = json.loads(answers.heads().body)[0]["version"]
        (store,) = json.loads(answers.about().body)["stores"]
        columns = {one["name"]: one["number"] for one in store["columns"]}
        for name, rows in extras.items():
            answer = answers.rows(0, version, 8, columns[name], 0, 12)
            assert np.array_equal(unpack(answer.body)[0]["rows"], rows[8:20]), name
        assert steps_of(play()) == len(rows)


def test_a_task_that_was_given_after_an_import_from_lerobot_is_exported(worked_on, tmp_path):
    pytest.importorskip("pyarrow")
    paths = [worked_on, tmp_path / "b.zarr", tmp_path / "c.zarr"]
    for number, (path, then) in enumerate(itertools.pairwise(paths)):
        mmreplay.export_dataset(path, "lerobot", tmp_path / str(number))
        mmreplay.import_dataset("lerobot", tmp_path / str(number), then)
        mmreplay.tag(then, [number], task="turn")
    _, fields, _ = contents(then)
    assert fields["task"].tolist() == ["turn", "turn", "lift", "push"]
    assert mmreplay.open(then).info()["env"]["lerobot"]["tasks"] == ["push", "lift", "turn"]
