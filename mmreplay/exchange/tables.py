"""Columns of a table of transitions by their usual names, for imports and exports.

Invariant: a column is used as its name says, kept as an extra column, or counted as a loss.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.runs import Steps
from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.columns import Column, RowShape
from mmreplay.exchange.fields import PREFIX, EpisodeColumns, extra_name, flags, is_numeric, key_name
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.transitions import FinalObservation, Frames, Table, to_steps
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field

Block = dict[str, Array]  # rows of columns by name
OF_NEXT_FILE = "\0file"  # in a `Block` that begins a file, other than the first

_NAMES = {
    "observations": ("observations", "observation", "obs"),
    "actions": ("actions", "action", "acts"),
    "rewards": ("rewards", "reward", "rews"),
    "terminations": (
        *("terminations", "terminals", "terminal", "terminated", "terminateds", "termination"),
    ),
    "truncations": ("truncations", "timeouts", "truncated", "truncateds", "truncation"),
    "dones": ("dones", "done", "episode_terminals", "dones_float"),
    "life_losses": ("life_losses",),
    "episode": ("episode", "episode_index", "episode_id", "eps_id"),
    "episode_starts": ("episode_starts",),
    "next_observations": (
        *("next_observations", "next_observation", "next_obs", "new_obs", "obs_next", "next_state"),
    ),
    "final_observations": ("final_observations",),
}
"""The names of each role; exports use the first."""

ROLES = tuple(_NAMES)

_OF_FRAMES = ("observations", "next_observations", "final_observations")
_OF_NUMBERS = _NAMES.keys() - {*_OF_FRAMES, "actions"}
_DOUBLES = ("float64", "int32", "uint32", "int64", "uint64")  # which float32 does not hold exactly
_ROLES = {name: role for role, names in _NAMES.items() for name in names}
_JAXRL_ENDS, _MASKS = "dones_float", "masks"
_LIKE_ENDS = {"is_first", "is_last", "is_terminal", "step_type", _MASKS}
"""Names by which other tables mark ends in other ways."""

_ENDS = ("terminations", "truncations", "dones", "episode", "episode_starts")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """An opened foreign dataset: fields, and `steps` in order, read when they are asked for.

    `frames` are by key, the only one under `FRAME`; `metadata` is JSON for the store; `n_steps`
    about how many steps there are, 0 if unknown; `episode` the fields of episodes.
    """

    frames: Mapping[str, Field]
    action: Field
    reward_dtype: npt.DTypeLike
    extras: Mapping[str, Field]
    steps: Iterable[Steps]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    n_steps: int = 0
    episode: Mapping[str, EpisodeField] = dataclasses.field(default_factory=dict)

    @property
    def frame(self) -> Field | Mapping[str, Field]:
        """As `create` takes it."""
        return self.frames[FRAME] if list(self.frames) == [FRAME] else self.frames


def marks_ends(names: Iterable[str], losses: Losses) -> bool:
    """Whether one of these columns marks the ends of episodes."""
    used = {name for name in names if not losses.leaves_out(name)}
    roles = {*losses.called, *(_ROLES.get(name, "") for name in used)}
    return not roles.isdisjoint(_ENDS) or not _LIKE_ENDS.isdisjoint(used)


def final_name(key: str) -> str:
    """The name of a part of final observations in a `Block`, which no column of a source has."""
    return f"\0final {key}"


class Tables:
    """A table of columns by name, `called` so in the source; FormatError if they do not fit."""

    def __init__(
        self,
        columns: Mapping[str, RowShape],
        where: object,
        losses: Losses,
        missing: FinalObservation,
        *,
        needs_rewards: bool = True,
        called: Mapping[str, str] | None = None,
    ) -> None:
        self._where, self._losses, self._missing = where, losses, missing
        self._called, self._problem = called or {}, ""
        self._roles: dict[str, str] = {}
        self._is_jaxrl = _JAXRL_ENDS in columns
        of_episodes, usable = dict[str, RowShape](), dict[str, RowShape]()
        for name, one in columns.items():
            if not name.startswith(PREFIX) and self._is_usable(name, one):
                usable[name] = one
            elif name.startswith(PREFIX) and losses.takes(self._called.get(name, name)):
                of_episodes[name] = one
        others = self._assign_roles(usable)
        # The columns of observations, next and final ones, by the keys of observations.
        self.frames = {role: self._parts_of(role) for role in _OF_FRAMES}
        self._check_roles(usable, needs_rewards=needs_rewards)
        self.n_rows = columns[self._roles["actions"]].shape[0]
        seen = [columns[name].shape[0] for name in self.frames["observations"].values()]
        # One episode with the observation after its last step, if nothing says otherwise.
        self.has_last_row = set(seen) == {self.n_rows + 1} and not (
            self.frames["next_observations"]
            or self.frames["final_observations"]
            or {"episode", "episode_starts"} & self._roles.keys()
        )
        self._check_shapes(columns)
        self._episode = EpisodeColumns(of_episodes, self.n_rows, where, losses)
        # Name and field of extra columns, by their foreign names.
        self.extras: dict[str, tuple[str, Field]] = {}
        for name, role in others.items():
            self._add_extra(name, role, columns[name])
        self._fields = {
            key: Field(tuple(columns[name].shape[1:]), columns[name].dtype)
            for key, name in self.frames["observations"].items()
        }
        action, rewards = columns[self._roles["actions"]], self._roles.get("rewards")
        self._action = Field(tuple(action.shape[1:]), action.dtype)
        is_double = rewards is not None and columns[rewards].dtype.name in _DOUBLES
        self._rewards = np.dtype("float64" if is_double else "float32")
        if rewards is None:
            losses.add("rewards: the source has none, so they are 0", max(self.n_rows, 1))

    def _role(self, name: str) -> tuple[str, str]:
        """The role of a column, "" for none, and its key among several of that role."""
        shown = self._called.get(name, name).strip("/")
        for role, names in self._losses.called.items():
            for one in names:
                if f"{shown}/".startswith(f"{one}/"):
                    key = shown[len(one) :]
                    if len(names) == 1:
                        return role, key[1:]
                    others = self._losses.called.get("observations", ())
                    as_seen = others if len(others) == len(names) else names
                    return role, as_seen[names.index(one)] + key
        base, _, key = name.partition("/")
        role = _ROLES.get(base, "")
        return ("", "") if role in self._losses.called else (role, key)

    def _is_usable(self, name: str, column: RowShape) -> bool:
        """Whether a column is asked for and can be read; everything else is a loss."""
        shown = self._called.get(name, name)
        role, key = self._role(name)
        is_needed = bool(role) and not key and role not in _OF_FRAMES[1:]
        is_flag = is_needed and role != "observations"
        if not self._losses.takes(shown, needed=is_flag or (name == _MASKS and self._is_jaxrl)):
            return False
        problem: str = getattr(column, "problem", "")
        if not problem and not is_numeric(column.dtype):
            problem = f"a store cannot hold rows of {column.dtype.type.__name__.rstrip('_')}"
        if not problem and not column.shape:
            problem = "a single value, not one row per step"
        if problem and is_needed:
            raise FormatError(f"{self._where}: {shown}: {problem}")
        if problem:
            self._losses.add(f"column {shown}: {problem}")
            self._problem += f"; {shown}: {problem}"
        return not problem

    def _assign_roles(self, columns: Mapping[str, RowShape]) -> dict[str, str]:
        """Set the column of each role; gives the other columns, with the role they would have."""
        others: dict[str, str] = {}
        for name in columns:
            role, key = self._role(name)
            part = f"{role}/{key}" if key else role
            if not role or (key and role not in _OF_FRAMES) or part in self._roles:
                others[name] = part
            else:
                self._roles[part] = name
        for role in _OF_FRAMES:
            if role in self._roles:  # observations are not a dict
                parts = [part for part in self._roles if part.startswith(f"{role}/")]
                others |= {self._roles.pop(part): role for part in parts}
        return others

    def _parts_of(self, role: str) -> dict[str, str]:
        if role in self._roles:
            return {FRAME: self._roles[role]}
        start = f"{role}/"
        found = {
            full[len(start) :]: name for full, name in self._roles.items() if full.startswith(start)
        }
        keys: dict[str, str] = {}
        for name in found:
            if (other := keys.setdefault(key := key_name(name), name)) != name:
                raise FormatError(
                    f"{self._where}: observations {other!r} and {name!r}: both would be called "
                    f"{key!r} in a store; rename one of them"
                )
            is_other = role == _OF_FRAMES[0] and key != name.replace("/", ".")
            self._losses.add(f"column {start}{name}: called {key} in the store", is_other)
        return {key: found[name] for key, name in keys.items()}

    def _check_roles(self, columns: Mapping[str, RowShape], *, needs_rewards: bool) -> None:
        for role, names in self._losses.called.items():
            if role not in self._roles and not self.frames.get(role):
                self._losses.check_names(self._where)
                raise SchemaError(
                    f"{self._where}: {role}: expected the name of a column, found "
                    f"{', '.join(names)}; only observations may be several columns, or a group"
                )
        wanted = {"observations": bool(self.frames["observations"])}
        wanted["actions"] = "actions" in self._roles
        wanted["rewards"] = "rewards" in self._roles or not needs_rewards
        for role, is_there in wanted.items():
            if not is_there:
                self._losses.check_names(self._where)  # it may be misspelled
                raise FormatError(
                    f"{self._where}: expected a column {role!r}, found "
                    f"{', '.join(sorted(columns)) or 'none'}{self._problem:.400}"
                    + f"; name it with {role}=NAME (-o {role}=NAME)"
                    * self._losses.has_roles
                )
        found = sorted(_LIKE_ENDS.intersection(columns))
        if found and not any(role in self._roles for role in _ENDS):
            raise FormatError(
                f"{self._where}: ends of episodes: expected terminations, truncations, dones or "
                f"episode, found {', '.join(found)}; name one if it means the same "
                f"(-o truncations={found[0]}), make such a column, or pass leave_out={found} for "
                f"one episode"
            )

    def _check_shapes(self, columns: Mapping[str, RowShape]) -> None:
        first = self.frames["observations"]
        for role in _OF_FRAMES[1:]:
            parts = self.frames[role]
            others = [name for key, name in parts.items() if key not in first]
            self._losses.add_names(f"{role} of parts that observations do not have", others)
            self.frames[role] = parts = {key: parts[key] for key in parts if key in first}
            if parts and parts.keys() != first.keys():
                raise FormatError(
                    f"{self._where}: {role}: expected the parts {', '.join(first)} of the "
                    f"observations, found {', '.join(parts)}"
                )
            for key, name in parts.items():
                a, b = columns[name], columns[first[key]]
                if (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
                    raise FormatError(
                        f"{self._where}: {name}: expected rows like those of the observations, "
                        f"found {a.dtype} {a.shape[1:]}"
                    )
        for role in sorted(self._roles.keys() & _OF_NUMBERS):
            name = self._called.get(self._roles[role], self._roles[role])
            if math.prod(row := tuple(columns[self._roles[role]].shape[1:])) != 1:
                named = f"name another column with {role}=NAME (-o {role}=NAME), "
                raise FormatError(
                    f"{self._where}: {name}: expected one number per step, found rows of shape "
                    f"{row}; write the one that counts as a column of its own, "
                    f"{named * self._losses.has_roles}or pass leave_out={[name]}"
                )
        lengths = {name: columns[name].shape[0] for name in self._of_steps()}
        if self.has_last_row:
            lengths |= dict.fromkeys(first.values(), self.n_rows)
        if len(set(lengths.values())) > 1:
            hint = "a final observation per episode belongs into `final_observations`"
            raise FormatError(f"{self._where}: columns of different lengths: {lengths}; {hint}")

    def _add_extra(self, name: str, role: str, column: RowShape) -> None:
        base, (n, *shape) = name.removeprefix("extras/"), column.shape
        own, problem = extra_name(base), ""
        if n != self.n_rows:
            problem = "not one row per step"
        elif not all(shape):
            problem = f"a store cannot hold rows of {column.dtype} {tuple(shape)}"
        elif own in dict(self.extras.values()):
            problem = f"another column is called {own} already"
        else:
            self.extras[name] = own, Field(tuple(shape), column.dtype)
            if role in self._roles:
                used = self._roles[role]
                problem = f"kept as the extra column {own}, as {used} is used as {role}"
            elif own != base.replace("/", "."):
                problem = f"called {own} in the store"
        self._losses.add(f"column {self._called.get(name, name)}: {problem}", bool(problem))

    def _of_steps(self) -> list[str]:
        flat = [name for role, name in self._roles.items() if role in _NAMES.keys() - _OF_FRAMES]
        return [*flat, *(name for role in _OF_FRAMES[:2] for name in self.frames[role].values())]

    @property
    def used(self) -> list[str]:
        """The columns with one row per step that are converted."""
        return [*self._of_steps(), *self.extras, *self._episode.used.values()]

    def incoming(
        self,
        rows: Iterable[Block],
        final: Mapping[str, Column] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Incoming:
        """The table as a dataset, from blocks of the columns in `used`.

        Final observations are ``final KEY`` in the blocks, or rows of `final`, one per episode.
        """
        tables = self.tables(rows, final or {})
        return Incoming(
            self._fields,
            self._action,
            self._rewards,
            dict(self.extras.values()),
            to_steps(tables, self._missing, self._losses),
            metadata or {},
            self.n_rows,
            self._episode.declared,
        )

    def tables(self, rows: Iterable[Block], final: Mapping[str, Column]) -> Iterator[Table]:
        """Blocks of columns as tables."""
        n_known = min((one.shape[0] for one in final.values()), default=0)
        if not any(role in self._roles for role in _ENDS):
            self._losses.add("ends of episodes: the source marks no end, so all is one episode")
        frames = self.frames["observations"]
        following = self.frames["next_observations"]
        n_final = 0
        filled = (block for block in rows if len(block[self._roles["actions"]]))
        for block, after in itertools.pairwise(itertools.chain(filled, [None])):
            if block is None:
                return
            terminal, ends = self._ends(block, after)
            if after is None and not ends[-1]:
                self._losses.add("an unfinished episode at the end of the source: truncated")
                # A final observation that is left is that of this episode.
                ends[-1] = n_known - n_final - int(ends.sum()) == 1
            elif not following and not ends[-1] and OF_NEXT_FILE in (after or {}):
                self._losses.add("episodes that go on in the next file, as these are one table")
            stop = n_final + int(ends.sum())
            last: Frames = {k: block[final_name(k)] for k in frames if final_name(k) in block}
            last |= {key: column.read(n_final, stop) for key, column in final.items()}
            for key, found in last.items():
                if len(found) != stop - n_final:
                    raise FormatError(
                        f"{self._where}: final_observations {key}: expected a row for each end of "
                        f"an episode, found {len(found):,} for {stop - n_final:,}"
                    )
            numbers = n_final + np.append(0, ends[:-1].cumsum())
            n_final = stop
            ends[-1] |= after is None
            rewards = np.zeros(len(ends), self._rewards)
            if "rewards" in self._roles:
                rewards = block[self._roles["rewards"]].reshape(len(ends))
            yield Table(
                {key: block[name] for key, name in frames.items()},
                block[self._roles["actions"]],
                rewards,
                terminal,
                ends,
                {new: block[name] for name, (new, _) in self.extras.items()},
                {key: block[name] for key, name in following.items()} or None,
                last or None,
                self._episode.rows(block, numbers),
            )
        self._losses.add("final observations after the last end", max(n_known - n_final, 0))

    def _ends(self, block: Block, after: Block | None) -> tuple[Array, Array]:
        """Which steps are terminal, and which end their episodes, (n,) bool; `after` follows."""
        roles = self._roles
        terminal = self._flags(block, "terminations")
        truncated = self._flags(block, "truncations")
        self._losses.add(
            "steps marked as terminated and truncated: terminated wins",
            int((terminal & truncated).sum()),
        )
        if "dones" in roles:
            done = self._flags(block, "dones")
            masks = block.get(_MASKS, done[:0])
            is_jaxrl = roles["dones"] == _JAXRL_ENDS and "terminations" not in roles
            has_masks = is_jaxrl and masks.size == len(done)
            if has_masks:  # 0 after a terminal step
                terminal = ~flags(masks, f"{self._where}: {_MASKS}")
            elif "terminations" not in roles:
                terminal = done & ~truncated
            if not has_masks and not {"terminations", "truncations"} & roles.keys():
                self._losses.add(
                    "ends marked as done: taken as terminal, though some may be truncations",
                    int(done.sum()),
                )
            truncated = truncated | (done & ~terminal)
        if "episode" in roles or "episode_starts" in roles:
            if "episode" in roles:
                numbers = block[roles["episode"]]
                is_last = after is None or numbers[-1] != after[roles["episode"]][0]
                ends = np.append(numbers[1:] != numbers[:-1], is_last)
            else:
                following = True if after is None else self._flags(after, "episode_starts")[0]
                ends = np.append(self._flags(block, "episode_starts")[1:], following)
            self._losses.add(
                "truncations within a numbered episode: left out", int((truncated & ~ends).sum())
            )
            if "life_losses" not in roles:
                self._losses.add(
                    "terminal steps within a numbered episode: taken as lost lives",
                    int((terminal & ~ends).sum()),
                )
                return terminal, ends
            truncated = truncated | (ends & ~terminal)
        ends = terminal | truncated
        return terminal | self._flags(block, "life_losses"), ends

    def _flags(self, block: Block, role: str) -> Array:
        name = self._roles.get(role)
        if name is None:
            return np.zeros(len(block[self._roles["actions"]]), np.bool_)
        return flags(block[name], f"{self._where}: {self._called.get(name, name)}")
