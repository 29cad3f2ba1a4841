"""Columns of a table of transitions by their usual names: which is what, and the same way out.

Invariant: a column is taken for what its name says, kept as an extra column, or counted as a loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import extra_field, extra_name, field, flags, is_new, reward_dtype
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Frames, Incoming, Steps
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.transitions import FinalObservation, Table, to_steps
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field

__all__ = ["Block", "FinalRows", "RowShape", "Shape", "Tables", "table_rows", "table_shapes"]

Block = dict[str, Array]
"""Rows of columns by name."""

FinalRows = Callable[[Block, int, int], Frames]
"""Final observations of the episodes [start, stop) that end in a block; nothing if there are none.
"""

_NAMES = {
    "observations": ("observations", "observation", "obs"),
    "actions": ("actions", "action", "acts"),
    "rewards": ("rewards", "reward", "rews"),
    "terminations": ("terminations", "terminals", "terminal", "terminated"),
    "truncations": ("truncations", "timeouts", "truncated"),
    "dones": ("dones", "done"),
    "life_losses": ("life_losses",),
    "episode": ("episode", "episode_index", "episode_id"),
    "next_observations": ("next_observations", "next_observation", "next_obs"),
    "final_observations": ("final_observations",),
}
"""What is read, under the names that it may have; exported under the first of them."""

_OF_FRAMES = ("observations", "next_observations", "final_observations")
_ENDS = ("terminations", "truncations", "dones", "episode")


class RowShape(Protocol):
    """Shape, the number of rows first, and dtype of a column."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, ...)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A `RowShape` of rows that lie elsewhere."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Tables:
    """A table of columns by name.

    Raises FormatError if observations, actions or rewards are missing, or do not fit together.

    Args:
        columns: shape and dtype of each.
        where: where they stand, for messages.
        losses: counts what cannot be taken over.
        missing: what to do without a final observation.
        needs_rewards: False: rewards are zeros where there are none.

    Attributes:
        n_rows: steps in all.
        extras: name and field of each further column, by its foreign name.
    """

    def __init__(
        self,
        columns: Mapping[str, RowShape],
        where: object,
        losses: Losses,
        missing: FinalObservation,
        *,
        needs_rewards: bool = True,
    ) -> None:
        self._where, self._losses, self._missing = where, losses, missing
        self._roles: dict[str, str] = {}
        others: dict[str, str] = {}
        for name in columns:
            base, _, key = name.partition("/")
            role = next((role for role, known in _NAMES.items() if base in known), "")
            part = f"{role}/{key}" if key else role
            if not role or (key and role not in _OF_FRAMES) or part in self._roles:
                others[name] = part
            else:
                self._roles[part] = name
        for role in _OF_FRAMES:
            if role in self._roles:  # so that observations are no dict
                parts = [part for part in self._roles if part.startswith(f"{role}/")]
                others |= {self._roles.pop(part): role for part in parts}
        needed = ("observations", "actions", *(("rewards",) if needs_rewards else ()))
        for role in needed:
            if not self.frame_columns(role):
                raise FormatError(
                    f"{where}: expected a column {role!r}, found "
                    f"{', '.join(sorted(columns)) or 'none'}"
                )
        lengths = {
            name: columns[name].shape[0]
            for role, name in self._roles.items()
            if not role.startswith("final_")
        }
        if len(set(lengths.values())) > 1:
            raise FormatError(f"{where}: columns of different lengths: {lengths}")
        self.n_rows = next(iter(lengths.values()))
        self._check_frames(columns)
        self.extras = self._extra_columns(columns, others)
        self._fields = {
            key: field(columns[name].shape[1:], columns[name].dtype, name)
            for key, name in self.frame_columns("observations").items()
        }
        action = columns[self._roles["actions"]]
        self._action = field(action.shape[1:], action.dtype, "actions")
        self._rewards = np.dtype("float32")
        if "rewards" in self._roles:
            self._rewards = reward_dtype(columns[self._roles["rewards"]].dtype, "rewards")
        else:
            losses.add("rewards: the source has none, so they are 0", self.n_rows)

    def frame_columns(self, role: str) -> dict[str, str]:
        """The columns of an observation by its key, the sole one under `FRAME`; or none."""
        if role in self._roles:
            return {FRAME: self._roles[role]}
        start = f"{role}/"
        return {
            full[len(start) :]: name for full, name in self._roles.items() if full.startswith(start)
        }

    def _check_frames(self, columns: Mapping[str, RowShape]) -> None:
        first = self.frame_columns("observations")
        for role in _OF_FRAMES[1:]:
            for key, name in self.frame_columns(role).items():
                a, b = columns[name], columns.get(first.get(key, ""))
                if b is None or (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
                    raise FormatError(
                        f"{self._where}: {name}: expected rows as those of the observations, found "
                        f"{a.dtype} {a.shape[1:]}"
                    )

    def _extra_columns(
        self, columns: Mapping[str, RowShape], others: Mapping[str, str]
    ) -> dict[str, tuple[str, Field]]:
        """Further columns: name and field of each, by its foreign name.

        `others` has what each would be, if no other column were that already.
        """
        out: dict[str, tuple[str, Field]] = {}
        for name, role in others.items():
            column = columns[name]
            if column.shape[0] != self.n_rows:
                self._losses.add(f"array {name}: not one row a step")
                continue
            found = extra_field(column.shape[1:], column.dtype, name, self._losses)
            own, known = extra_name(name.removeprefix("extras/")), {one for one, _ in out.values()}
            if found is not None and is_new(own, name, known, self._losses):
                out[name] = own, found
                if role in self._roles:
                    self._losses.add(
                        f"column {name}: kept as the extra column {own}, as "
                        f"{self._roles[role]} stands for {role}"
                    )
        return out

    @property
    def used(self) -> list[str]:
        """The columns of one row a step that are taken over."""
        roles = [name for role, name in self._roles.items() if not role.startswith("final_")]
        return [*roles, *self.extras]

    def incoming(
        self,
        rows: Iterable[Block],
        final: FinalRows | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Incoming:
        """The table as a dataset, of blocks of the columns in `used`."""
        tables = self.tables(rows, final)
        return Incoming(
            self._fields[FRAME] if list(self._fields) == [FRAME] else self._fields,
            self._action,
            self._rewards,
            dict(self.extras.values()),
            metadata or {},
            to_steps(tables, self._missing, self._losses),
            self.n_rows,
        )

    def tables(self, rows: Iterable[Block], final: FinalRows | None = None) -> Iterator[Table]:
        """Blocks of columns as tables."""
        if not any(role in self._roles for role in _ENDS):
            self._losses.add("ends of episodes: the source marks none, so all is one episode")
        n_final = 0
        for block, goes_on in self._with_next(rows):
            terminal, ends = self._ends(block, goes_on)
            stop = n_final + int(ends.sum())
            last = final(block, n_final, stop) if final is not None else {}
            n_final = stop
            after = self.frame_columns("next_observations")
            n_rows = len(ends)
            yield Table(
                {key: block[name] for key, name in self.frame_columns("observations").items()},
                block[self._roles["actions"]],
                (
                    block[self._roles["rewards"]].reshape(n_rows)
                    if "rewards" in self._roles
                    else np.zeros(n_rows, self._rewards)
                ),
                terminal,
                ends,
                {new: block[name] for name, (new, _) in self.extras.items()},
                {key: block[name] for key, name in after.items()} or None,
                last or None,
            )

    def _with_next(self, rows: Iterable[Block]) -> Iterator[tuple[Block, bool]]:
        """Blocks, and whether the episode of the last row goes on in the next; True if unknown."""
        name = self._roles.get("episode")
        before: Block | None = None
        for block in rows:
            if not len(block[self._roles["actions"]]):
                continue
            if before is not None:
                yield before, name is None or bool(before[name][-1] == block[name][0])
            before = block
        if before is not None:
            yield before, name is None

    def _ends(self, block: Block, goes_on: bool) -> tuple[Array, Array]:
        """Which steps are terminal, and which are the last of their episodes; (n,) bool each."""
        roles = self._roles
        none = np.zeros(len(block[roles["actions"]]), np.bool_)
        terminal = self._flags(block, "terminations") if "terminations" in roles else none
        truncated = self._flags(block, "truncations") if "truncations" in roles else none
        self._losses.add(
            "steps marked as terminated and truncated: terminated wins",
            int((terminal & truncated).sum()),
        )
        if "dones" in roles:
            done = self._flags(block, "dones")
            if "terminations" not in roles:
                terminal = done & ~truncated
            if len({"terminations", "truncations"} & roles.keys()) == 0:
                self._losses.add(
                    "ends marked as done: taken as terminal, as nothing tells which of them were "
                    "truncations",
                    int(done.sum()),
                )
            truncated = truncated | (done & ~terminal)
        if "episode" in roles:
            numbers = block[roles["episode"]]
            changes = np.append(numbers[1:] != numbers[:-1], not goes_on)
            self._losses.add(
                "truncations within a numbered episode: left out",
                int((truncated & ~changes).sum()),
            )
            truncated = truncated | (changes & ~terminal)
            if "life_losses" not in roles:
                # Where episodes are numbered, a terminal step within one is a lost life.
                self._losses.add(
                    "terminal steps within a numbered episode: taken as lost lives",
                    int((terminal & ~changes).sum()),
                )
                return terminal, changes
        ends = terminal | truncated
        if "life_losses" in roles:
            terminal = terminal | self._flags(block, "life_losses")
        return terminal, ends

    def _flags(self, block: Block, role: str) -> Array:
        name = self._roles[role]
        return flags(block[name], f"{self._where}: {name}")


def table_shapes(stored: Stored) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """The columns of an exported table: shape, rows first, and dtype, by name."""
    n, schema = stored.n_steps, stored.schema
    out: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for key, one in stored.frames.items():
        suffix = f"/{key}" if schema.is_dict else ""
        out[f"observations{suffix}"] = ((n, *one.shape), one.dtype)
        out[f"final_observations{suffix}"] = ((stored.n_episodes, *one.shape), one.dtype)
    out["actions"] = ((n, *schema.action.shape), schema.action.dtype)
    out["rewards"] = ((n,), schema.reward_dtype)
    for name in ("terminations", "truncations", "life_losses"):
        out[name] = ((n,), np.dtype(np.bool_))
    for name, one in schema.extras.items():
        out[f"extras/{name}"] = ((n, *one.shape), one.dtype)
    return out


def table_rows(run: Steps, *, is_dict: bool) -> Block:
    """The columns of some steps, by name; a final observation only where an episode ends."""
    n, out = len(run), {}
    last = np.zeros(n, np.bool_)
    last[-1] = run.ends
    for key, rows in run.observation.items():
        suffix = f"/{key}" if is_dict else ""
        out[f"observations{suffix}"] = rows[:-1]
        out[f"final_observations{suffix}"] = rows[n : n + run.ends]
    return out | {
        "actions": run.action,
        "rewards": run.reward,
        "terminations": run.terminal & last,
        "truncations": ~run.terminal & last,
        "life_losses": run.terminal & ~last,
        **{f"extras/{name}": rows for name, rows in run.extras.items()},
    }
