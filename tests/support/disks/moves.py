"""A directory that loses its path while it is used: renamed, removed, or its link turned.

Invariant: what is at the path afterwards, another directory or nothing, is nobody's but who put it
there.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

WAYS = ("renamed", "removed", "link turned")


class Place:
    """A path in a new folder; the first store that is at it goes away at `move`."""

    def __init__(self, folder: Path, way: str) -> None:
        folder.mkdir()
        self.folder, self.way = folder, way
        self.path = folder / "store.zarr"
        self.second = folder / "second.zarr"
        self.first: Path | None = self.path
        self.moved = False
        if way == "link turned":
            self.first = folder / "first.zarr"
            self.path.symlink_to(self.first.name)

    def move(self) -> bool:
        """Take the first store away from the path; whether it was there.

        A repair that exchanges it takes it away itself for a moment, and would put it back.
        """
        self.moved = True
        was_there = self.path.exists()
        if self.way == "link turned":
            turned = self.folder / "turned"
            turned.symlink_to(self.second.name)
            turned.replace(self.path)
        elif self.way == "renamed":
            try:
                self.first = self.path.rename(self.folder / "moved.zarr")
            except FileNotFoundError:
                was_there = False
                self.first = self.folder / "store.zarr.damaged"  # as the repair will name it
        else:
            self.first = None
            while self.path.exists():  # a thread may be making a file in it
                with contextlib.suppress(OSError):
                    shutil.rmtree(self.path)
        return was_there

    def put_second(self) -> None:
        """Let the second store, made elsewhere and closed, be at the path."""
        if self.way != "link turned":
            self.second.rename(self.path)
            self.second = self.path

    def stores(self) -> list[Path]:
        """What should stand in the folder."""
        stores = [self.path] if self.first is None else [self.path, self.first]
        return [*stores, self.second] if self.way == "link turned" else stores
