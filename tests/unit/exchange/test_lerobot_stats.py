"""Statistics in pieces are those of the whole."""

import numpy as np
import pytest

from mmreplay.exchange.lerobot_files import Stats

NAMES = {"min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99", "count"}


def pieces(rows, bounds):
    return [
        rows[start:stop] for start, stop in zip([0, *bounds], [*bounds, len(rows)], strict=True)
    ]


@pytest.mark.parametrize(
    ("shape", "dtype", "bounds"),
    [((3,), "float32", ()), ((2, 3), "int64", (1,)), ((1,), "bool", (7, 8, 400))],
)
def test_numbers(shape, dtype, bounds):
    random = np.random.default_rng(0)
    rows = (1e4 + random.standard_normal((1000, *shape)) * 3).astype(dtype)
    if dtype == "bool":
        rows = random.random((1000, *shape)) < 0.25
    total = Stats(dtype, shape)
    for part in pieces(rows, bounds):
        one = Stats(dtype, shape)
        one.add(part)
        total.merge(one)
    found = total.values()
    assert found.keys() == NAMES
    assert found["count"] == [1000]
    assert np.array_equal(found["min"], rows.min(0))
    assert np.array_equal(found["max"], rows.max(0))
    exact = rows.astype("float64")
    assert np.shape(found["mean"]) == shape
    assert np.array(found["mean"]) == pytest.approx(exact.mean(0), rel=1e-12)
    assert np.array(found["std"]) == pytest.approx(exact.std(0), rel=1e-6)
    for name, part in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        expected = np.quantile(exact, part, 0)
        if not bounds:
            assert np.array(found[name]) == pytest.approx(expected)
        else:  # means of those of the pieces
            assert np.abs(np.array(found[name]) - expected).max() <= np.ptp(exact)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_have_statistics_of_a_sample(channels):
    random = np.random.default_rng(0)
    rows = random.integers(0, 200, (90, 16, 12, channels), np.uint8)
    found = Stats("image", (16, 12, channels))
    for part in pieces(rows, (3, 64)):
        found.add(part)
    values, exact = found.values(), rows / 255
    assert values.keys() == NAMES
    assert values["count"] == [90]
    for name, expected in {
        "min": 0,
        "max": 199 / 255,
        "mean": exact.mean(),
        "std": exact.std(),
        "q10": np.quantile(exact, 0.1),
    }.items():
        assert np.shape(values[name]) == (channels, 1, 1)
        assert np.ravel(values[name]) == pytest.approx(np.full(channels, expected), abs=0.01), name
