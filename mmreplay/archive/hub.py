"""A store in a dataset repository of the Hugging Face Hub: its files, a card, the web page.

Invariant: a push is one commit on top of the one that was the newest when it began. The files are
those of a closed store: the Hub, which stores equal files once, needs no objects and no manifest.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmreplay.archive.manifest import is_of_rest
from mmreplay.errors import (
    CorruptStoreError,
    FailedStoreError,
    FormatError,
    LockedError,
    MissingExtraError,
    SchemaError,
    StoreNotFoundError,
    printable,
)
from mmreplay.maintenance.snapshot import Snapshot, snapshot
from mmreplay.maintenance.verify.whole_store import verify
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import durable_writes
from mmreplay.system.staging import staging_directory

_URL = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+?)/?")
_STORE, _PAGE, _CARD = "store.zarr", "page", "README.md"
_LANE = re.compile(r"lane-[0-9]{5}/")
_KIND = "dataset"
_CHANGED = 412

_TEXT = """\
---
tags: [reinforcement-learning, offline-rl, mmreplay, zarr]
---
# {name}

{transitions:,} transitions of {environment} as a store of
[mmreplay](https://pypi.org/project/mmreplay): plain zarr v3 in `{store}`, with every step of every
episode in order.

```python
import mmreplay

data = mmreplay.load("{url}", cache="data")
batch = data.sample(32)
```
"""
_OF_PAGE = """
Every step can be looked at in a browser: download the folder `page`, run `python -m http.server` in
it, or upload it to a static Space.
"""


def _repository(url: str) -> str:
    found = _URL.fullmatch(url)
    if found is None:
        raise SchemaError(f"url: expected hf://datasets/OWNER/NAME, found {url!r:.200}")
    return found[1]


@contextlib.contextmanager
def _hub(url: str) -> Iterator[Any]:
    """The library, with its errors as ours."""
    try:
        import huggingface_hub  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError(
            'hf:// needs huggingface_hub: pip install "mmreplay[huggingface]"'
        ) from error
    errors = huggingface_hub.errors
    try:
        yield huggingface_hub
    except errors.RepositoryNotFoundError as error:
        raise StoreNotFoundError(
            f"{url}: there is no such repository, or it is private: check the URL, and log in "
            f"(`hf auth login`)"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        response = getattr(error, "response", None)
        if getattr(response, "status_code", None) == _CHANGED:
            raise LockedError(
                f"{url}: the repository was changed while this push ran; nothing was lost: push "
                f"again"
            ) from error
        raise FailedStoreError(
            f"{url}: {str(error).strip().splitlines()[0][:500]}; call again"
        ) from error


def push_to_hub(path: Path, url: str, page: Any) -> tuple[int, int, int]:
    """Make a commit with a closed copy of a store; its lanes, files and bytes. See `push`."""
    name = _repository(url)
    if page is not None and not Path(page, "index.html").is_file():
        raise SchemaError(f"page: expected a folder that export_view has written, found {page!r}")
    with _hub(url) as hub, staging_directory(path.absolute()) as staged:
        folder = Path(str(staged))
        made = snapshot(path, folder / _STORE)
        files = [one.stat().st_size for one in (folder / _STORE).rglob("*") if one.is_file()]
        api = hub.HfApi()
        api.create_repo(name, repo_type=_KIND, exist_ok=True)
        parent = api.repo_info(name, repo_type=_KIND).sha
        if not api.file_exists(name, _CARD, repo_type=_KIND):
            durable_writes.write_new(folder / _CARD, _card(name, url, made, page).encode())
        if page is not None:
            durable_writes.share_tree(Path(page), folder / _PAGE)
        api.upload_folder(
            repo_id=name,
            repo_type=_KIND,
            folder_path=folder,
            commit_message=f"{made.transitions:,} transitions",
            delete_patterns=[f"{_STORE}/*", *([f"{_PAGE}/*"] if page is not None else [])],
            parent_commit=parent,
        )
    return made.lanes, len(files), sum(files)


def _card(name: str, url: str, made: Snapshot, page: Any) -> str:
    own = read_metadata(Path(made.path)).get("env") or {}
    environment = printable(str(own.get("id", "an environment")))[:200]
    text = _TEXT.format(
        name=name, transitions=made.transitions, environment=environment, store=_STORE, url=url
    )
    return text + (_OF_PAGE if page is not None else "")


def pull_from_hub(url: str, new: Path) -> int:
    """Make a repository's store at `new`, verified, by links to the library's cache; its bytes."""
    name = _repository(url)
    with _hub(url) as hub:
        folder = Path(hub.snapshot_download(name, repo_type=_KIND, allow_patterns=[f"{_STORE}/*"]))
    source, size = folder / _STORE, 0
    files = [one for one in sorted(source.rglob("*")) if not one.is_dir()]
    if not files:
        raise StoreNotFoundError(f"{url}: no {_STORE} in this repository: no push has written it")
    durable_writes.remove_tree(new)
    for file in files:
        below = file.relative_to(source).as_posix()
        if not is_of_rest(_LANE.sub("", below, count=1)):
            raise FormatError(f"{url}: {_STORE}/{below!r:.200}: a store has no such file")
        durable_writes.make_directory((new / below).parent)
        # The library's own links lead to files that it never changes.
        durable_writes.share_file(file.resolve(), new / below)
        size += (new / below).stat().st_size
    report = verify(str(new))
    if not report.sound:
        raise CorruptStoreError(f"{url}: {report.findings[0]}; what has arrived is not kept")
    return size
