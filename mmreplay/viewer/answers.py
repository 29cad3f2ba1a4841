"""Everything the page can ask for, as bytes: for the server, and for a copy on a static host.

Invariant: a final answer never changes under its path, which contains the version of the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from mmreplay.batches.settings import Settings
from mmreplay.errors import InvalidIdError, MmreplayError, SchemaError
from mmreplay.reading.store import Store
from mmreplay.viewer import documents
from mmreplay.viewer.documents import pack
from mmreplay.viewer.episode import find_episode, read_rows, stacks_of
from mmreplay.viewer.shown_columns import shown_columns
from mmreplay.viewer.viewed_store import ViewedStore, sentence

_LEAST, _MOST = 1 << 10, 1 << 18
"""Per answer: transitions times frames per stack, steps per return, or `_LEAST`, the largest."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Bytes for the page: JSON, or packed arrays (see `pack`).

    If it is not final, the page asks again, with `etag`. Browsers keep no answer without one.
    """

    body: bytes
    is_json: bool
    is_final: bool = False
    etag: str | None = None


class Answers:
    """Answers about some stores, which the page names by their index in the list. Thread-safe.

    `start` is what the page shows first, {"store": 0, "episode": id}, or {}; `is_static` means that
    the page reads files instead of asking a server. Raises as `mmreplay.open`.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        start: dict[str, Any] | None = None,
        is_static: bool = False,
    ) -> None:
        salt = "" if is_static else os.urandom(8).hex()
        self.stores = [ViewedStore(path, salt) for path in paths]
        self.start, self._is_static = start or {}, is_static

    def about(self) -> Answer:
        """What is in all stores, and what the page shows first."""
        stores = []
        for one in self.stores:
            head = one.head()
            # An export does not tell others where its author keeps the stores.
            path = one.path.name if self._is_static else str(one.path)
            described: dict[str, Any] = {"name": one.path.name}
            if head["error"] is None:
                try:
                    look = head["version"], head["look"]  # rarely, however fast it grows
                    described |= one.kept("about", look, documents.describe)
                except (MmreplayError, OSError) as error:
                    head |= {"error": sentence(error), "key": ""}
            stores.append({**described, "path": path, "head": head})
        return _json({"stores": stores, "start": self.start, "is_static": self._is_static})

    def heads(self) -> Answer:
        """The state of each store; see `ViewedStore.head`."""
        return _json([one.head() for one in self.stores])

    def episodes(self, number: int) -> Answer:
        """The table of a store's episodes; see `documents.episode_table`."""
        viewed = self._viewed(number)
        head = viewed.head()
        if head["error"] is not None:
            raise MmreplayError(head["error"])
        table = viewed.kept("episodes", head["key"], documents.episode_table)
        return Answer(table, False, etag=head["key"])

    def distributions(self) -> Answer:
        """Histograms of rewards, actions and priorities of all stores, on the same axes."""
        samples: list[dict[str, Any] | None] = []
        for one in self.stores:
            head, sample = one.head(), None
            with contextlib.suppress(MmreplayError, OSError):  # the list of stores says so
                if head["error"] is None:
                    sample = one.kept("spread", head["key"], documents.spread_samples)
            samples.append(sample)
        return _json(documents.distributions(samples))

    def episode(self, number: int, version: str, first: int) -> Answer:
        """The length of an episode, how it ended, and how much of it was evicted."""
        found = self._viewed(number).read(version, lambda store: find_episode(store, first))
        return _json({"length": found.length, "end": found.end, "evicted": found.evicted})

    def rows(
        self, number: int, version: str, first: int, column: int, start: int, stop: int
    ) -> Answer:
        """Rows (n, ...) of one column of an episode; ``damage``, [[start, stop, why]], is zeros."""

        def read(store: Store) -> Answer:
            columns = shown_columns(store.schema)
            if not 0 <= column < len(columns):
                raise InvalidIdError(f"There is no column {column}.")
            shown = columns[column]
            episode = find_episode(store, first)
            rows, damage = read_rows(store, episode, shown, start, stop)
            is_whole = stop - start == shown.block or episode.end != "open"
            final = is_whole and not damage and shown.kind not in {"derived", "priority"}
            return Answer(pack({"rows": rows}, damage=damage), False, final)

        return self._viewed(number).read(version, read)

    def transitions(
        self, number: int, version: str, first: int, start: int, stop: int, settings: Settings
    ) -> Answer:
        """Transitions of an episode; see `stacks_of`."""
        if (stop - start) * max(settings.stack or 1, settings.n_step, _LEAST) > _MOST:
            raise SchemaError(
                f"expected fewer transitions, found [{start}, {stop}), stack {settings.stack}, "
                f"n_step {settings.n_step}"
            )

        def read(store: Store) -> Answer:
            episode = find_episode(store, first)
            if not 0 <= start < stop <= episode.length:
                raise SchemaError(
                    f"expected some of {episode.length} transitions, found [{start}, {stop})"
                )
            found = stacks_of(store, first, start, stop, settings)
            is_final = episode.end != "open" or stop + settings.n_step <= episode.length
            return Answer(pack(found), False, is_final)

        return self._viewed(number).read(version, read)

    def close(self) -> None:
        """Close all stores."""
        for one in self.stores:
            one.close()

    def _viewed(self, number: int) -> ViewedStore:
        if not 0 <= number < len(self.stores):
            raise InvalidIdError(f"There is no store {number}.")
        return self.stores[number]


def _json(document: Any) -> Answer:
    body = json.dumps(_plain(document), allow_nan=False).encode()
    return Answer(body, is_json=True, etag=hashlib.sha256(body).hexdigest()[:16])


def _plain(document: Any) -> Any:
    """The same without NaN and infinities: metadata may contain any, and JSON none."""
    if isinstance(document, dict):
        return {str(key): _plain(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [_plain(value) for value in document]
    if isinstance(document, float) and not (-float("inf") < document < float("inf")):
        return None
    return document
