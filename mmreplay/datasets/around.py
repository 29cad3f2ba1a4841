"""`Around`: what the wrappers of one source have from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from mmreplay.batches.settings import Settings
from mmreplay.datasets.source import EpochSource, Part, WindowSource
from mmreplay.datasets.subsets import EpisodeChoice, IdChoice
from mmreplay.ids import Ids
from mmreplay.reading.store import Store


class Around(EpochSource[Part]):
    """Wraps one source: all this is the data's, and what the data refuses is refused."""

    data: WindowSource[Any]

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def settings(self) -> Settings:
        return self.data.settings

    @property
    def generator(self) -> np.random.Generator:
        return self.data.generator

    @property
    def store(self) -> Store:
        return self.data.store

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.data.paths

    @property
    def ids(self) -> Ids:
        return self.data.ids

    @property
    def episodes(self) -> npt.NDArray[np.void]:
        return self.data.episodes

    @property
    def update_priorities(self) -> Callable[[npt.ArrayLike, npt.ArrayLike], None]:
        data: Any = self.data
        update: Callable[[npt.ArrayLike, npt.ArrayLike], None] = data.update_priorities
        return update

    def update(self, ids: npt.ArrayLike, /, **columns: npt.ArrayLike) -> None:
        self.data.update(ids, **columns)

    @property
    def n_late_updates(self) -> int:
        return self.data.n_late_updates

    def flush(self) -> None:
        self.data.flush()

    def __len__(self) -> int:
        return len(self.data)

    def state_dict(self) -> dict[str, Any]:
        return self.data.state_dict()

    def _restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        return self.data._restoring(state)  # noqa: SLF001 (of another source)

    def refresh(self) -> Self:
        self.data.refresh()
        return self

    def close(self) -> None:
        self.data.close()

    def _select(self, episodes: EpisodeChoice | None, ids: IdChoice | None) -> Part:
        return self._around(self.data.select(episodes=episodes, ids=ids))

    def _split(self, fraction: float, seed: int) -> tuple[Part, Part]:
        one, other = self.data.split(fraction, seed=seed)
        return self._around(one), self._around(other)

    def _around(self, data: Any) -> Part:
        """The same wrapper of other data."""
        out: Any = copy.copy(self)
        out.data = data
        return cast("Part", out)
