"""mmreplay: a disk-backed, memory-mapped experience store for reinforcement learning."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mmreplay import transforms
from mmreplay._version import __version__
from mmreplay.batches.batch import Batch
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import WindowBatch
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.hindsight import Hindsight
from mmreplay.datasets.load import load
from mmreplay.datasets.mixture import Mixture
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.datasets.statistics import Statistics
from mmreplay.datasets.wrappers import Decorated
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    DiskFullError,
    EmptyBufferError,
    FailedStoreError,
    FormatError,
    InvalidIdError,
    LockedError,
    MissingExtraError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    UnsupportedError,
)
from mmreplay.ids import LANE_SHIFT
from mmreplay.lazy_frames import LazyFrames
from mmreplay.reading.store import Store, open_store
from mmreplay.reading.trajectories import LazyTrajectory, Step, Trajectory
from mmreplay.schema import Field
from mmreplay.texts import Text
from mmreplay.writing.create import create
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

if TYPE_CHECKING:
    from mmreplay.archive.pull import Pulled, pull
    from mmreplay.archive.push import Pushed, push
    from mmreplay.exchange.convert import Exported, Imported, export_dataset, import_dataset
    from mmreplay.exchange.formats import ExchangeFormat, exchange_formats
    from mmreplay.exchange.losses import Loss
    from mmreplay.maintenance.added_columns import add_column, drop_column
    from mmreplay.maintenance.pack import Packed, pack
    from mmreplay.maintenance.repair.lane import LaneRepair
    from mmreplay.maintenance.repair.store import Repair, repair
    from mmreplay.maintenance.snapshot import Snapshot, snapshot
    from mmreplay.maintenance.tag import tag
    from mmreplay.maintenance.verify.report import Finding, Report
    from mmreplay.maintenance.verify.whole_store import verify
    from mmreplay.recording.experience import RecordExperience, RecordVectorExperience
    from mmreplay.recording.frame_stack import FrameStack
    from mmreplay.recording.progress import RecordProgress
    from mmreplay.recording.recorder import RecordResult, record
    from mmreplay.recording.signals import stop_on_signals
    from mmreplay.rendering.plot import plot
    from mmreplay.rendering.render import Rendered, render
    from mmreplay.viewer.export import ExportedView, export_view
    from mmreplay.viewer.view import view

__all__ = [
    "LANE_SHIFT",
    "Batch",
    "ClosedError",
    "CorruptStoreError",
    "Dataset",
    "Decorated",
    "DiskFullError",
    "EmptyBufferError",
    "ExchangeFormat",
    "Exported",
    "ExportedView",
    "FailedStoreError",
    "Field",
    "Finding",
    "FormatError",
    "FrameStack",
    "Hindsight",
    "Imported",
    "InvalidIdError",
    "LaneRepair",
    "LazyFrames",
    "LazyTrajectory",
    "LockedError",
    "Loss",
    "MissingExtraError",
    "Mixture",
    "MmreplayError",
    "Packed",
    "PrioritizedReplayBuffer",
    "Pulled",
    "Pushed",
    "RecordExperience",
    "RecordProgress",
    "RecordResult",
    "RecordVectorExperience",
    "Rendered",
    "Repair",
    "ReplayBuffer",
    "Report",
    "SchemaError",
    "SequenceBatch",
    "Settings",
    "Snapshot",
    "Statistics",
    "Step",
    "Store",
    "StoreExistsError",
    "StoreNotFoundError",
    "Text",
    "Trajectory",
    "UnsupportedError",
    "VectorWriter",
    "WindowBatch",
    "Writer",
    "__version__",
    "add_column",
    "create",
    "drop_column",
    "exchange_formats",
    "export_dataset",
    "export_view",
    "import_dataset",
    "load",
    "open",
    "pack",
    "plot",
    "pull",
    "push",
    "record",
    "render",
    "repair",
    "snapshot",
    "stop_on_signals",
    "tag",
    "transforms",
    "verify",
    "view",
]


def open(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading; see `mmreplay.reading.store.open_store`."""
    return open_store(path)


_LAZY = {
    name: f"mmreplay.{module}"
    for module, names in {
        "archive.pull": "pull Pulled",
        "archive.push": "push Pushed",
        "exchange.convert": "export_dataset Exported import_dataset Imported",
        "exchange.formats": "exchange_formats ExchangeFormat",
        "exchange.losses": "Loss",
        "maintenance.added_columns": "add_column drop_column",
        "maintenance.pack": "pack Packed",
        "maintenance.repair.lane": "LaneRepair",
        "maintenance.repair.store": "repair Repair",
        "maintenance.snapshot": "snapshot Snapshot",
        "maintenance.tag": "tag",
        "maintenance.verify.report": "Finding Report",
        "maintenance.verify.whole_store": "verify",
        "recording.experience": "RecordExperience RecordVectorExperience",
        "recording.frame_stack": "FrameStack",
        "recording.progress": "RecordProgress",
        "recording.recorder": "record RecordResult",
        "recording.signals": "stop_on_signals",
        "rendering.plot": "plot",
        "rendering.render": "render Rendered",
        "viewer.export": "export_view ExportedView",
        "viewer.view": "view",
    }.items()
    for name in names.split()
}
"""Names that are imported when they are used; some need an extra."""


def _name_public(names: Iterable[str]) -> None:
    """Let pickles and messages name `mmreplay`, and no module inside, which may move."""
    here = globals()
    for name in names:
        thing = here.get(name)
        if isinstance(thing, type):
            inside = vars(sys.modules[thing.__module__])
            words = " ".join(map(str, inspect.get_annotations(thing).values()))
            # For `typing.get_type_hints`, which looks for names in `__module__`.
            needed = set(re.findall(r"\w+", words)) & inside.keys() - here.keys()
            here.update({word: inside[word] for word in needed})
        if callable(thing):
            thing.__module__ = __name__


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(_LAZY[name])
    # With what came along: a report that `verify` returns may be pickled before it is named.
    # Kept, so that the next use of a name does not come here.
    loaded = {other: sys.modules[path] for other, path in _LAZY.items() if path in sys.modules}
    globals().update({other: getattr(module, other) for other, module in loaded.items()})
    _name_public(loaded)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, *(name for name in globals() if name.startswith("__"))})


_name_public(__all__)
