"""Samples per insert, by a page beside the store that the receiver and the learners map.

Invariant: receiver and learner never wait for each other. With P = ratio * (inserts - min_size),
senders wait while P > samples + margin, and a learner that wants B more while
samples + B > P + margin: both at once would mean B > 2 * margin, which `wait` refuses. Before
`min_size`, P is negative and samples are not.

Each word has one writer: the receiver that of inserts, each rank of the learner its own. So a kill
of either loses at most what it had not counted: a block, or a batch.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.errors import FormatError, SchemaError, StoreNotFoundError
from mmreplay.system import durable_writes, memory_maps

MOST_RANKS = 256
_BYTES = 4096
_MAGIC = int.from_bytes(b"MMRLIMIT", "little")
_MAGIC_WORD, _RATIO, _MIN_SIZE, _MARGIN, _BASELINE, _INSERTS, _RANKS = 0, 1, 2, 3, 4, 5, 16
_POLL_S = 0.002
_LEAST_MARGIN = 1024


class Limits(NamedTuple):
    """How far senders and learners may be ahead of each other; see `checked`."""

    ratio: float = 0.0  # samples per insert; 0 for no limit
    min_size: int = 1  # transitions before the first sample
    margin: int = _LEAST_MARGIN  # samples

    @classmethod
    def checked(
        cls,
        samples_per_insert: float | None,
        min_size: int = 1,
        margin: int | None = None,
        *,
        rows_under_way: int = 0,
    ) -> Limits:
        """Limits without deadlock; `rows_under_way` are those of all senders' blocks together.

        Raises:
            SchemaError: a ratio that is not a positive number, or a margin in which the blocks that
                are under way have no room.
        """
        whole_number("min_size", min_size)
        ratio: Any = 0.0 if samples_per_insert is None else samples_per_insert
        is_number = isinstance(ratio, (int, float, np.number)) and not isinstance(ratio, bool)
        if (
            not is_number
            or not 0 <= ratio < math.inf
            or (samples_per_insert is not None and not ratio)
        ):
            raise SchemaError(
                f"samples_per_insert: expected a number above 0, or None; found {ratio!r:.80}"
            )
        least = math.ceil(ratio * rows_under_way) + _LEAST_MARGIN
        margin = least if margin is None else whole_number("margin", margin, least)
        return cls(float(ratio), min_size, margin)


class Limiter:
    """The page of a store; `clock`-free: waiting is asking again.

    Args:
        path: the store's; the page is ``PATH.samples`` beside it.
        rank: of the learner whose samples are counted.

    Raises:
        StoreNotFoundError, FormatError: there is no page, or something else.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int = 0) -> None:
        self._rank = rank
        self.path = Path(f"{os.fspath(path)}.samples")
        try:
            page = memory_maps.map_file(self.path, _BYTES, writable=True)
        except FileNotFoundError as error:
            raise StoreNotFoundError(
                f"{self.path}: there is no such page: no distributed run has written this store, "
                f"or it is on another machine; load it with mmreplay.load"
            ) from error
        self._words, self._floats = page.view(np.int64), page.view(np.float64)
        if self._words[_MAGIC_WORD] != _MAGIC:
            raise FormatError(f"{self.path}: expected a page of samples, found something else")

    @classmethod
    def made(
        cls, path: str | os.PathLike[str], limits: Limits, n_transitions: Callable[[], int]
    ) -> Limiter:
        """The page with these limits, made if it is missing; only the receiver calls this.

        Where it is new or had other limits, it begins in balance, as if what is in the store had
        been sampled by these.
        """
        file = Path(f"{os.fspath(path)}.samples")
        is_new = not file.exists()
        if is_new:
            file.parent.mkdir(parents=True, exist_ok=True)
            words = np.zeros(_BYTES // 8, np.int64)
            words[_MAGIC_WORD], words[_INSERTS] = _MAGIC, n_transitions()
            durable_writes.write_file(file, words.tobytes())
        out = cls(path)
        if is_new or out.limits != limits:
            out._begin(limits)
        return out

    def _begin(self, limits: Limits) -> None:
        words = self._words
        self._floats[_RATIO], words[_MIN_SIZE], words[_MARGIN] = limits
        words[_BASELINE] += max(math.floor(self._allowed()), 0) - self.samples

    @property
    def limits(self) -> Limits:
        """As the receiver has set them."""
        words = self._words
        return Limits(float(self._floats[_RATIO]), int(words[_MIN_SIZE]), int(words[_MARGIN]))

    @property
    def inserts(self) -> int:
        """Transitions that were ever appended."""
        return int(self._words[_INSERTS])

    @property
    def samples(self) -> int:
        """Transitions that were drawn, by all ranks."""
        return int(self._words[_BASELINE] + self._words[_RANKS : _RANKS + MOST_RANKS].sum())

    def _allowed(self) -> float:
        return self.limits.ratio * (self.inserts - self.limits.min_size)

    def insert(self, n: int) -> None:
        """Count transitions that are committed."""
        self._words[_INSERTS] += n

    def inserts_ahead(self) -> bool:
        """Whether senders are to wait until more was sampled."""
        ratio, _, margin = self.limits
        return ratio > 0 and self._allowed() > self.samples + margin

    def samples_ahead(self, n: int) -> bool:
        """Whether a learner that wants `n` samples more is to wait until more was inserted."""
        ratio, min_size, margin = self.limits
        if self.inserts < min_size:
            return True
        return ratio > 0 and self.samples + n > self._allowed() + margin

    def wait(self, n: int, sleep: Callable[[float], None] = time.sleep) -> None:
        """Return when `n` more may be sampled; SchemaError: they never may at once."""
        ratio, _, margin = self.limits
        if ratio and n > 2 * margin:
            raise SchemaError(
                f"batch_size: expected at most {2 * margin:,}, twice the margin of this run's "
                f"samples_per_insert; found {n:,}: give the Run a larger margin"
            )
        while self.samples_ahead(n):
            sleep(_POLL_S)

    def sample(self, n: int) -> None:
        """Count samples of this rank."""
        self._words[_RANKS + self._rank] += n

    def __getstate__(self) -> NoReturn:
        raise SchemaError(
            f"{self.path}: samples of a run are counted by the process that opened its buffer; "
            f"another one opens a buffer of its own, with another rank="
        )
