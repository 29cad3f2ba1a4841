"""Each rule for ticks and starts, broken in a lane that was sound."""

import numpy as np
import pytest

from mmreplay import Field, verify
from mmreplay.maintenance.verify import steps
from tests.support.tampering.findings import texts


class Cells:
    """Where something happens in a model's ticks, and its files, which no checksum covers yet."""

    def __init__(self, model):
        self.path, self.n = model.writer.path, model.width
        self.episode, self.ends = (model.columns("ticks")[name] for name in ("episode", "ends"))

    def first(self, where):
        """(tick, environment) of the first that is so, some ticks from the border."""
        t, e = np.argwhere(where)[3]
        return int(t), int(e)

    def array(self, name, dtype):
        (file,) = [one for one in (self.path / name).iterdir() if one.name.startswith("c.0")]
        width = self.n if name.startswith("ticks/") and not name.endswith("count") else 1
        return np.memmap(file, dtype, "r+").reshape(-1, width)


def _count(cells):
    cells.array("ticks/count", "<i8")[17] += 1


def _nobody(cells):
    cells.array("ticks/episode", "<i8")[17] = -1


def _no_end(cells):
    t, e = cells.first(cells.ends[:-2] == 1)
    cells.array("ticks/ends", "u1")[t, e] = 0


def _early_end(cells):
    goes_on = (cells.episode[:-1] == cells.episode[1:]) & (cells.episode[1:] >= 0)
    cells.array("ticks/ends", "u1")[cells.first(goes_on)] = 1


def _flags(cells):
    cells.array("ticks/ends", "u1")[cells.first(cells.episode[:-2] >= 0)] = 2


def _non_terminals(cells):
    cells.array("ticks/non_terminals", "u1")[cells.first(cells.episode[:-2] >= 0)] = 2


def _partner(cells):
    cells.array("ticks/episode", "<i8")[cells.first(cells.episode < -1)] -= 1


def _left_out(cells):
    cells.array("ticks/rewards", "<f4")[cells.first(cells.episode < 0)] = -0.0


def _no_start(cells):
    cells.array("ticks/episode", "<i8")[cells.first(cells.episode >= 0)] = 1 << 50


def _other_env(cells):
    envs = cells.array("starts/env", "<i8")
    envs[5] = (envs[5] + 1) % cells.n


def _no_env(cells):
    cells.array("starts/env", "<i8")[5] = cells.n


def _other_tick(cells):
    cells.array("starts/tick", "<i8")[5] += 1


def _no_tick(cells):
    cells.array("starts/tick", "<i8")[5] = -1


@pytest.mark.parametrize("piece", [1 << 18, 35], ids=["in one piece", "in pieces of 7 ticks"])
@pytest.mark.parametrize(
    ("breaks", "file", "message"),
    [
        (_count, "ticks/count", "expected the count of the tick before and one for each step"),
        (_nobody, "ticks/count", "one for each step, found another in tick 17"),
        (_no_end, "ticks/ends", "expected 1 in the last step of an episode that stops, found 0"),
        (_early_end, "ticks/ends", "expected no step of an episode after its end, found one"),
        (_flags, "ticks/ends/c.0.0", "flags: expected 0 or 1, found other values"),
        (_non_terminals, "ticks/non_terminals/c.0.0", "flags: expected 0 or 1"),
        (_partner, "ticks/episode", "that were left out: expected the step that is theirs"),
        (_left_out, "ticks/rewards", "that were left out: expected zeros, found other values"),
        (_no_start, "ticks/episode", "expected episodes of the starts [0, "),
        (_other_env, "ticks/episode", "expected an episode whose start names this environment"),
        (_no_env, "starts/env", "expected 0 to 4, found another in row 5"),
        (_other_tick, "ticks/episode", "expected the first step of an episode in the tick that"),
        (_no_tick, "starts/tick", "found another in row 5"),
    ],
)
def test_each_rule_is_found_broken(vector, kill, monkeypatch, breaks, file, message, piece):
    monkeypatch.setattr(steps, "_PIECE_CELLS", piece)
    model = vector(action=Field((), "int64"))
    model.play(60)
    kill(model.writer)
    assert verify(model.writer.path).sound
    breaks(Cells(model))
    found = [one for one in verify(model.writer.path).findings if one.file == file]
    assert any(message in one.message for one in found), texts(verify(model.writer.path))
    assert all(one.rows is not None and one.array == "/".join(file.split("/")[:2]) for one in found)
