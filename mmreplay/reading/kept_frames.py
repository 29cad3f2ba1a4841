"""`KeptFrames`: columns whose decoded frames are kept from one batch to the next.

Invariant: what is kept is of the columns that are read now, and of no earlier opening of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmreplay.storage.raw_column import RawColumn
from mmreplay.storage.shard_column import KeptColumn, ShardColumn


class KeptFrames:
    """As many as blocks of `n_rows` rows need, and no more; for one or several threads."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._made: tuple[Mapping[str, Any], dict[str, Any]] | None = None

    def columns(self, columns: Mapping[str, RawColumn | ShardColumn]) -> Mapping[str, Any]:
        """The same columns; of those that are compressed what is decoded stays here."""
        made = self._made
        if made is None or made[0] is not columns:
            mine = {
                path: KeptColumn(one, self.n_rows) if isinstance(one, ShardColumn) else one
                for path, one in columns.items()
            }
            self._made = made = columns, mine  # two threads may make it: one keeps nothing then
        return made[1]
