"""Statistics of fields: numpy's over the transitions, from pieces, without what is not asked for."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import EmptyBufferError, Field, SchemaError
from mmreplay.datasets import statistics
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.storage.shard_column import ShardColumn

IMAGE = Field((32, 32), "uint8", "lz4", 4, 64)
FIELDS = {
    "frame": {"state": Field((3,), "float32"), "camera.rgb": IMAGE},
    "action": Field((2,), "float64"),
    "extras": {"grid": Field((2, 5), "int16"), "done": Field((), "bool")},
}
NUMBERS = ["observation.state", "action", "reward", "grid", "done"]
pytestmark = pytest.mark.usefixtures("quick_disk")


def frames_of(random, *lead):
    image = random.integers(0, 256, (*lead, 1, 32), "uint8").repeat(32, -2)
    return {"state": random.normal(5, 2, (*lead, 3)).astype("float32"), "camera.rgb": image}


def play(target, n_steps, random, width=None):
    """Steps of random numbers in episodes of nine; of `width` environments some wait a while."""
    lead = (width,) if width else ()
    target.reset(frames_of(random, *lead))
    over, waits = np.zeros(lead, bool), np.zeros(lead, bool)
    for _ in range(n_steps):
        ends = random.random(lead) < 1 / 9
        given = {
            "grid": random.integers(-9, 9, (*lead, 2, 5)).astype("int16"),
            "done": random.random(lead) < 0.3,
            **({"mask": ~waits} if width else {}),
        }
        action, reward = random.normal(-1e6, 1e-3, (*lead, 2)), random.normal(size=lead)
        target.step(action, reward, frames_of(random, *lead), ends & ~waits, over, **given)
        if width:
            waits |= ends
            begins = waits & (random.random(lead) < 0.5)
            if waits.all() or begins.any():
                begins = begins if begins.any() else waits
                target.reset(frames_of(random, *lead), begins)
                waits = waits & ~begins
        elif ends:
            target.reset(frames_of(random))


def stored(path, n_steps=150, width=None, seed=0, **fields):
    with mmreplay.create(path, **{**FIELDS, **fields}, lanes=width, flush_s=0) as writer:
        play(writer, n_steps, np.random.default_rng(seed), width)
    return path


@pytest.fixture
def data_of(tmp_path):
    """A dataset by its kind."""

    def make(kind):
        path = tmp_path / "a.zarr"
        if "capacity" in kind:
            buffer = mmreplay.ReplayBuffer(path, 60, **FIELDS, flush_s=0)
            play(buffer, 150, np.random.default_rng(0))
            return buffer
        paths = [stored(path, width=3 if "environments" in kind else None)]
        if "stores" in kind:
            paths.append(stored(tmp_path / "b.zarr", 70, seed=1))
        data = mmreplay.load(paths, n_step=3, stack=2)
        if "ids" in kind:
            return data.select(ids=data.ids[::3])
        return data.split(0.4)[1] if "part" in kind else data

    return make


def values_of(data, name):
    """What its transitions hold, as numpy arrays."""
    batch = data.transitions(data.ids, stack=None, n_step=1)
    own = {f"observation.{key}": one for key, one in batch.observation.items()}
    return {**own, "action": batch.action, "reward": batch.reward, **batch.extras}[name]


KINDS = [
    "one store", "two stores", "environments", "environments in stores", "capacity", "ids of one",
    "ids of environments", "part of environments in stores",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_those_of_numpy_over_the_transitions(data_of, monkeypatch, kind):
    monkeypatch.setattr(statistics, "_PIECE_BYTES", 700)  # of few rows
    monkeypatch.setattr(statistics, "_SAMPLE_BYTES", 2000)  # of few elements
    monkeypatch.setattr(statistics, "_IMAGE_ROWS", 7)
    with data_of(kind) as data:
        levels = (0.25, 0, 1, 0.9)
        found = data.statistics(quantiles=levels)
        assert [*found] == ["observation.state", "observation.camera.rgb", *NUMBERS[1:]]
        assert found["observation.camera.rgb"].sampled
        for name in NUMBERS:
            one, values = found[name], values_of(data, name).astype(np.float64)
            assert (one.count, one.sampled) == (len(data), False)
            assert one.mean.shape == one.std.shape == one.n_nonfinite.shape == values.shape[1:]
            assert np.allclose(one.mean, values.mean(0), rtol=1e-12, atol=0)
            assert np.allclose(one.std, values.std(0), rtol=1e-6, atol=0)
            assert np.array_equal(one.min, values.min(0))
            assert np.array_equal(one.max, values.max(0))
            assert np.allclose(one.quantiles, np.quantile(values, levels, axis=0), rtol=1e-12)
            assert not one.n_nonfinite.any()
            assert {part.dtype.name for part in (one.mean, one.std, one.min, one.quantiles)} == {
                "float64"
            }


def test_final_observations_and_the_pending_one_are_left_out(tmp_path):
    fields = {"frame": Field((), "float64"), "action": Field((), "int64")}
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr", stack=None, **fields) as buffer:
        buffer.reset(1)
        buffer.step(4, 1.0, 2)
        buffer.step(5, 0.0, 1e9, terminated=True)
        buffer.reset(3)
        buffer.step(6, 0.0, 1e9)
        found = buffer.statistics(["observation", "action"])
        observation, action = found["observation"], found["action"]
        assert [observation.mean.item(), observation.max.item()] == [2, 3]
        assert [action.min.item(), action.std.item()] == [4, np.std([4, 5, 6])]
        assert action.count == 3


def test_values_that_are_not_finite_are_counted_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "_PIECE_BYTES", 64)
    values = np.random.default_rng(0).normal(size=(50, 4)) * 1e3
    values[3:40:5, 0], values[:17, 1], values[:, 2], values[:, 3] = np.nan, np.inf, -np.inf, 0.1
    fields = Field((4,), "float64"), Field(())
    with mmreplay.create(tmp_path / "s.zarr", *fields, flush_s=0) as writer:
        writer.reset(values[0])
        for row in range(50):
            writer.step(0, 0.0, values[min(row + 1, 49)])
    with mmreplay.load(tmp_path / "s.zarr") as data:
        one = data.statistics(["observation"], [0.5])["observation"]
    assert one.count == 50
    assert one.n_nonfinite.tolist() == [8, 17, 50, 0]
    for column in (0, 1):
        kept = values[np.isfinite(values[:, column]), column]
        found = [part[column] for part in (one.mean, one.std, one.min, one.max, one.quantiles[0])]
        expected = [kept.mean(), kept.std(), kept.min(), kept.max(), np.median(kept)]
        assert np.allclose(found, expected, rtol=1e-12)
    for part in (one.mean, one.std, one.min, one.max, one.quantiles[0]):
        assert np.isnan(part[2])
    plain = json.loads(json.dumps(one.to_json(), allow_nan=False))
    assert (plain["mean"][2:], plain["n_nonfinite"]) == ([None, 0.1], [8, 17, 50, 0])
    assert (plain["quantiles"], plain["count"]) == ([[*one.quantiles[0, :2], None, 0.1]], 50)
    assert (one.mean[3], one.std[3]) == (0.1, 0)  # exactly


def test_what_never_changes_has_no_deviation_at_all(tmp_path):
    values = np.full(10, 1 / 3)
    assert values.std() > 0  # numpy's is of rounding
    with mmreplay.create(tmp_path / "s.zarr", Field((), "float64"), Field(()), flush_s=0) as writer:
        writer.reset(values[0])
        for value in values:
            writer.step(0, 0.0, value)
    with mmreplay.load(tmp_path / "s.zarr") as data:
        one = data.statistics(["observation"])["observation"]
    assert [one.std.item(), one.mean.item()] == [0, 1 / 3]


def test_only_what_is_asked_for_is_read_and_of_images_a_sample(data_of, monkeypatch):
    decoded, real = [], ShardColumn._decode_chunk

    def decode(column, key, *where):
        decoded.append(key)
        return real(column, key, *where)

    monkeypatch.setattr(ShardColumn, "_decode_chunk", decode)
    with data_of("one store") as data:
        data.statistics(NUMBERS)
        assert not decoded
        name = "observation.camera.rgb"
        whole = data.statistics([name])[name]
        assert (whole.count, whole.sampled) == (len(data), False)
        assert np.array_equal(whole.mean, values_of(data, name).mean(0, dtype="float64"))
        monkeypatch.setattr(statistics, "_IMAGE_ROWS", 12)
        one, same, other = (data.statistics([name], seed=seed)[name] for seed in (0, 0, 1))
        assert (one.count, one.sampled) == (12, True)
        assert np.array_equal(one.mean, same.mean)
        assert np.array_equal(one.quantiles, same.quantiles)
        assert not np.array_equal(one.mean, other.mean)
        decoded.clear()
        data.statistics([name], ())
        assert 0 < len(decoded) <= 12


def test_quantiles_of_a_sample_are_near_in_rank_and_repeat_with_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "_SAMPLE_ROWS", 1000)
    values = np.random.default_rng(0).permutation(4000)
    with mmreplay.create(tmp_path / "s.zarr", Field((), "int64"), Field(()), flush_s=0) as writer:
        writer.reset(values[0])
        for row in range(4000):
            writer.step(0, 0.0, values[min(row + 1, 3999)])
    with mmreplay.load(tmp_path / "s.zarr") as data:
        one, other = (data.statistics(["observation"], [0.1, 0.5], seed=s) for s in (0, 1))
        found = one["observation"].quantiles
        near = 4.5 * np.sqrt([0.09, 0.25]) / 1000**0.5
        assert (np.abs(found / 4000 - [0.1, 0.5]) < near).all()
        assert found.tolist() != other["observation"].quantiles.tolist()
        assert found.tolist() == data.statistics(quantiles=[0.1, 0.5])["observation"].quantiles.tolist()  # fmt: skip
        assert (one["observation"].count, one["observation"].max.item()) == (4000, 3999)


def test_what_is_evicted_while_it_reads_is_left_out(data_of, monkeypatch):
    monkeypatch.setattr(statistics, "_PIECE_BYTES", 500)
    random, real = np.random.default_rng(1), LiveLanes.gather
    with data_of("capacity") as buffer:
        before, n_calls = values_of(buffer, "reward"), []

        def gather(*arguments):
            n_calls.append(0)
            buffer.flush()
            play(buffer, 1, random)
            return real(*arguments)

        monkeypatch.setattr(LiveLanes, "gather", gather)
        one = buffer.statistics(["reward"], ())["reward"]
        monkeypatch.undo()
        assert 60 - len(n_calls) <= one.count < 60
        # Row after row goes from the front, so that those that were read are the last ones of some.
        assert one.max <= before.max()
        part = buffer.select(ids=buffer.ids[:30])
        play(buffer, 20, random)
        left = part.statistics(["reward"])["reward"]
        assert left.count == len(part) == 10
        assert left.mean == pytest.approx(values_of(part, "reward").mean(dtype="float64"))


def test_another_store_at_the_path_is_not_mixed_in(data_of, tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "_PIECE_BYTES", 500)
    real, calls = LiveLanes.gather, []
    with data_of("one store") as data:

        def gather(*arguments):
            calls.append(0)
            if len(calls) == 2:
                data.paths[0].rename(tmp_path / "aside.zarr")
                stored(data.paths[0], seed=5)
                data.store.live.refresh()
            return real(*arguments)

        monkeypatch.setattr(LiveLanes, "gather", gather)
        with pytest.raises(SchemaError, match=r"a\.zarr: .*whose statistics .*another .*compute"):
            data.statistics(["reward"])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"fields": ["actoin"]}, r"fields: expected some of \['observation\.state', .*'actoin'"),
        ({"fields": ["observation"]}, r"fields: expected some of .*, found \['observation'\]"),
        ({"fields": "action"}, r"fields: .*, found 'action'"),
        ({"quantiles": [1.5]}, r"quantiles: expected a number in \[0, 1\], found 1\.5"),
        ({"quantiles": ["a"]}, "quantiles: expected a number"),
        ({"seed": -1}, "seed: expected a whole number, 0 or more"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(data_of, given, match):
    with data_of("one store") as data:
        with pytest.raises(SchemaError, match=match):
            data.statistics(**given)
        assert data.statistics([]) == {}


def test_without_a_transition_there_are_none(tmp_path):
    fields = {"frame": Field(()), "action": Field(())}
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr", stack=None, **fields) as buffer:
        with pytest.raises(EmptyBufferError, match=r"s\.zarr: there is no transition yet"):
            buffer.statistics()
