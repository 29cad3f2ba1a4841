"""A store as a dataset of Minari, written by Minari itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmreplay.batches.runs import Steps
from mmreplay.errors import SchemaError
from mmreplay.exchange.fields import need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.minari import ID, NO_SEED, OURS, folder_of
from mmreplay.exchange.spaces import (
    expanded,
    leaf_name,
    leaves,
    recorded,
    space_of_actions,
    spaces_of,
)
from mmreplay.exchange.stored import Stored
from mmreplay.format.episode_fields import STARTED
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field
from mmreplay.system import disk_errors, durable_writes

_EXTRA = "minari"
_NOT_OF_NAMES = re.compile(r"[^-_\w]")


@contextmanager
def place(given: Any, options: dict[str, Any]) -> Iterator[Any]:
    """A path as it is given, or the folder of an id, which is then the option ``dataset_id``."""
    folder = folder_of(given)
    if folder is None:
        yield given
        return
    if options.get("dataset_id") is None:
        options["dataset_id"] = given
    if options["dataset_id"] != given:
        raise SchemaError(
            f"minari: dataset_id: expected {given!r}, as the target is this dataset in "
            f"{folder.parent}, found {options['dataset_id']!r}; leave one out, or give a path"
        )
    names = need("minari.namespace", _EXTRA)
    made = [one for one in folder.parents if not one.exists()]
    try:
        with disk_errors.writing("making a folder for Minari", folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
            namespace = given.rpartition("/")[0]
            if namespace and namespace not in names.list_local_namespaces():
                names.create_namespace(namespace)
            for one in made:
                durable_writes.sync_directory(one.parent)
        yield folder
    except BaseException:
        for one in made:
            with suppress(OSError):  # others may use it by now
                (one / "namespace_metadata.json").unlink(missing_ok=True)
                one.rmdir()
        raise


def write(
    stored: Stored,
    target: Path,
    losses: Losses,
    *,
    data_format: Literal["hdf5", "arrow", "parquet"] = "hdf5",
    dataset_id: str | None = None,
) -> None:
    """A folder with ``data``; `dataset_id` defaults to that of the source, or ``mmreplay/NAME-v0``.

    Images are not JPEG. Extra columns that are not Minari's own become infos, 0 at the reset.
    """
    minari = need("minari", _EXTRA)
    need("h5py" if data_format == "hdf5" else "pyarrow", _EXTRA)
    out = _Out(stored, losses, is_hdf5=data_format == "hdf5")
    out.metadata["dataset_id"] = _checked_id(out.metadata, target, dataset_id)
    out.metadata.setdefault("minari_version", minari.__version__)
    folder = target / "data"
    folder.mkdir(parents=True)
    space_from = need("minari.serialization", _EXTRA).deserialize_space
    storage = need("minari.dataset.minari_storage", _EXTRA).MinariStorage.new(
        folder,
        *(space_from(json.dumps(space)) for space in (out.observation_space, out.action_space)),
        data_format=data_format,
        jpeg_encoding=False,
    )
    storage.update_episodes(out.buffers())
    if out.others:
        storage.update_episode_metadata(out.others, range(len(out.others)))
    about = folder / "metadata.json"
    about.write_text(json.dumps(out.metadata | json.loads(about.read_bytes())))
    storage.update_metadata({"dataset_size": storage.get_size()})


def _checked_id(known: Mapping[str, Any], target: Path, given: object) -> str:
    if given is None:
        name = _NOT_OF_NAMES.sub("-", target.name.removesuffix(".zarr")).strip("-") or "dataset"
        given = known.get("dataset_id") or f"mmreplay/{name}-v0"
    if not isinstance(given, str) or not ID.fullmatch(given):
        raise SchemaError(
            f"minari: dataset_id: expected [NAMESPACE/]NAME-vNUMBER of letters, digits, '_' and "
            f"'-', with 2 or more in a namespace, as in dataset_id='cartpole/random-v0', found "
            f"{given!r:.80}"
        )
    return given


class _Out:
    """The parts of an export; `others` are attributes of episodes besides seed and options."""

    def __init__(self, stored: Stored, losses: Losses, *, is_hdf5: bool) -> None:
        self._stored, self._is_hdf5 = stored, is_hdf5
        extras = stored.schema.extra_fields
        found = stored.metadata.get("minari")
        known: dict[str, Any] = found if isinstance(found, dict) else {}
        self.metadata: dict[str, Any] = dict(known.get("metadata", {}))
        spaces = [self.metadata.pop(f"{name}_space", None) for name in ("observation", "action")]
        if "env_spec" not in self.metadata:
            # Anything may be in the metadata of a store.
            with suppress(AttributeError, LookupError, TypeError, ValueError, RecursionError):
                spec = stored.metadata["env_spec"]
                need("gymnasium.envs.registration", _EXTRA).EnvSpec.from_json(spec)
                self.metadata["env_spec"] = spec
            is_lost = "env_spec" not in self.metadata
            losses.add("the specification of the environment: not recorded in this store", is_lost)
        self.observation_space = self._space("observation", spaces[0], stored.frames, losses)
        action = {FRAME: stored.schema.action}
        self.action_space = self._space("action", spaces[1], action, losses)
        of_spaces = ((self.observation_space, stored.frames), (self.action_space, action))
        if not is_hdf5 and any(
            one.kind == "Discrete" and fields[one.name].dtype != np.int64
            for space, fields in of_spaces
            for one in leaves(space)
        ):
            losses.add("the dtype of Discrete values: int64, as in all Arrow files of Minari")
        given = {part: dict(known.get(part, {})) for part in ("episodes", "resets", "infos")}
        self._attributes = {name: name for name in stored.fields} | given["episodes"]
        self._resets = {path: k for k, path in given["resets"].items() if k in stored.fields}
        for name in [*given["resets"], *(self._attributes.keys() - stored.fields.keys())]:
            self._attributes.pop(name, None)
        self.others: list[dict[str, Any]] = []
        self._infos = {k: path for k, path in given["infos"].items() if k in extras}
        ours = sorted(extras.keys() - self._infos.keys())
        self._infos |= {name: name for name in ours}
        for name, path in self._infos.items():
            losses.add(
                f"extra column {name}: exported as an info, with 0 at the reset",
                stored.n_episodes * (path not in self._resets),
            )
        if ours:
            self.metadata[OURS] = {"extras": ours}

    def _space(
        self, name: str, given: Any, fields: Mapping[str, Field], losses: Losses
    ) -> dict[str, Any]:
        """The space that came with the store, if it fits the fields, or a new one."""
        space = expanded(given) if isinstance(given, str) else None
        if space is not None and _fits(space, fields):
            return space
        if (space := recorded(self._stored.metadata.get(f"{name}_space"), fields)) is not None:
            return space
        action = self._stored.schema.action
        if name == "action" and not action.shape and action.dtype.kind in "iu":
            bounds = [(int(r.action.min()), int(r.action.max())) for r in self._stored.runs()]
            low, high = min(one for one, _ in bounds), max(one for _, one in bounds)
            return space_of_actions(low, high, action.dtype, self._stored.metadata, losses)
        losses.add(
            f"{name} bounds: not recorded in this store; exported as the full range of the dtype"
        )
        return spaces_of(fields)

    def buffers(self) -> Iterator[Any]:
        """The episodes, one after the other."""
        buffer = need("minari.data_collector", _EXTRA).EpisodeBuffer
        for number, runs in enumerate(self._stored.episodes()):
            seed, options = self._about(runs[0])
            frames = {
                key: np.concatenate([*(r.observation[key][:-1] for r in runs), rows[-1:]])
                for key, rows in runs[-1].observation.items()
            }
            terminal = np.concatenate([r.terminal for r in runs])
            truncated = np.zeros(len(terminal), np.bool_)
            truncated[-1] = not terminal[-1]
            yield buffer(
                id=number,
                seed=seed,
                options=options,
                observations=_nested(self.observation_space, frames),
                actions=np.concatenate([r.action for r in runs]),
                rewards=np.concatenate([r.reward for r in runs]),
                terminations=terminal,
                truncations=truncated,
                infos=self._infos_of(runs),
            )

    def _about(self, first: Steps) -> tuple[int | None, dict[str, Any] | None]:
        """Seed and options of an episode; the rest goes to `others`."""
        seed: int | None = None
        about: dict[str, Any] = {}
        for name, path in self._attributes.items():
            value = first.episode[name]
            if name == STARTED and not value:
                continue
            if isinstance(value, bytes):
                _put(about, path, value.decode(errors="replace"))
                continue
            if path == "seed" and not value.ndim:
                seed = None if value == NO_SEED.astype(value.dtype) else int(value)
                continue
            # h5py writes Python's integers as uint64 only from 2**63 on.
            keeps = self._is_hdf5 and (value.ndim > 0 or value.dtype != np.uint64)
            _put(about, path, value if keeps else value.tolist())
        options = about.pop("options", None)
        if about:
            self.others.append(about)
        return seed, options

    def _infos_of(self, runs: list[Steps]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, path in self._infos.items():
            rows = np.concatenate([r.extras[name] for r in runs])
            at_reset = np.zeros_like(rows[:1])
            if path in self._resets:
                at_reset[0] = runs[0].episode[self._resets[path]]
            rows = np.concatenate((at_reset, rows))
            # Minari cannot read arrays of numbers that it writes to Arrow files.
            _put(out, path, rows if self._is_hdf5 or rows.ndim > 1 else list(rows))
        return out


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, key = path.split("/")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[key] = value


def _nested(space: Mapping[str, Any], rows: Mapping[str, Array], *path: str | int) -> Any:
    """The arrays of a space as Minari takes them: in dicts and tuples, or one alone."""
    if space["type"] == "Dict":
        return {key: _nested(one, rows, *path, key) for key, one in space["subspaces"].items()}
    if space["type"] == "Tuple":
        return tuple(_nested(one, rows, *path, n) for n, one in enumerate(space["subspaces"]))
    return rows[leaf_name(path)]


def _fits(space: Mapping[str, Any], fields: Mapping[str, Field]) -> bool:
    """Whether a space has the names and shapes of some fields."""
    found = {leaf.name: leaf.shape for leaf in leaves(space)}
    return found == {key: one.shape for key, one in fields.items()}
