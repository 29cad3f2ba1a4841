"""`Steps`: consecutive steps of one episode, as files of other libraries hold them.

Invariant: n steps have n + 1 observations, those before them and the one after the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.runs import Run
from mmreplay.ids import Array
from mmreplay.schema import Schema


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Consecutive steps of one episode.

    Attributes:
        observation: (n + 1, *frame) by key: before each step, and after the last.
        action: (n, *action).
        reward: (n,).
        terminal: (n,) bool: the episode terminated, or a life was lost.
        extras: (n, ...) by name.
        begins: the first step is the first of its episode.
        ends: the last step is the last of its episode: terminated if terminal, else truncated.
        episode: fields of the episode by name, as `reset` takes them, where `begins`.
    """

    observation: dict[str, Array]
    action: Array
    reward: Array
    terminal: npt.NDArray[np.bool_]
    extras: dict[str, Array]
    begins: bool
    ends: bool
    episode: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    def run(self, schema: Schema) -> Run:
        """The same for a lane with such rows."""
        n, paths = len(self), schema.frame_paths
        columns = {"actions": self.action, "rewards": self.reward, "non_terminals": ~self.terminal}
        columns |= {path: self.extras[name] for name, path in schema.extra_paths.items()}
        return Run(
            {path: self.observation[key] for key, path in paths.items()},
            columns,
            begins=self.begins,
            fields={name: [value] for name, value in self.episode.items()},
            lasts=np.arange(n - self.ends, n),
            finals={path: self.observation[key][n:] for key, path in paths.items()},
        )
