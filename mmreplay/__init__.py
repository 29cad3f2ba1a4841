"""mmreplay: a disk-backed, memory-mapped experience store for reinforcement learning."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mmreplay import transforms
from mmreplay._version import __version__
from mmreplay.buffers import ReplayBuffer
from mmreplay.dataset import Dataset
from mmreplay.decorated import Decorated
from mmreplay.errors import (
    ClosedError,
    CorruptStoreError,
    DiskFullError,
    EmptyBufferError,
    FailedStoreError,
    FormatError,
    InvalidIdError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.format import LANE_SHIFT
from mmreplay.gather import Batch, Settings
from mmreplay.hindsight import Hindsight
from mmreplay.lane import Writer
from mmreplay.lanes import create
from mmreplay.lazyframes import LazyFrames
from mmreplay.loading import load
from mmreplay.mixture import Mixture
from mmreplay.prioritized import PrioritizedReplayBuffer
from mmreplay.schema import Field
from mmreplay.sequences import SequenceBatch
from mmreplay.store import Store, open_store
from mmreplay.trajectories import LazyTrajectory, Step, Trajectory
from mmreplay.vector import VectorWriter

if TYPE_CHECKING:
    from mmreplay.adapters.gymnasium import (
        FrameStack,
        RecordProgress,
        RecordResult,
        record,
        stop_on_signals,
    )
    from mmreplay.integrity import Finding, LaneRepair, Repair, Report, repair, verify
    from mmreplay.snapshots import Snapshot, snapshot

__all__ = [
    "LANE_SHIFT",
    "Batch",
    "ClosedError",
    "CorruptStoreError",
    "Dataset",
    "Decorated",
    "DiskFullError",
    "EmptyBufferError",
    "FailedStoreError",
    "Field",
    "Finding",
    "FormatError",
    "FrameStack",
    "Hindsight",
    "InvalidIdError",
    "LaneRepair",
    "LazyFrames",
    "LazyTrajectory",
    "LockedError",
    "Mixture",
    "MmreplayError",
    "PrioritizedReplayBuffer",
    "RecordProgress",
    "RecordResult",
    "Repair",
    "ReplayBuffer",
    "Report",
    "SchemaError",
    "SequenceBatch",
    "Settings",
    "Snapshot",
    "Step",
    "Store",
    "StoreExistsError",
    "StoreNotFoundError",
    "Trajectory",
    "VectorWriter",
    "Writer",
    "__version__",
    "create",
    "load",
    "open",
    "record",
    "repair",
    "snapshot",
    "stop_on_signals",
    "transforms",
    "verify",
]


def open(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading; see `mmreplay.store.open_store`."""
    return open_store(path)


_LAZY = {
    "FrameStack": "mmreplay.adapters.gymnasium",  # an extra
    "record": "mmreplay.adapters.gymnasium",  # likewise
    "RecordProgress": "mmreplay.adapters.gymnasium",
    "RecordResult": "mmreplay.adapters.gymnasium",
    "stop_on_signals": "mmreplay.adapters.gymnasium",
    "verify": "mmreplay.integrity",
    "Finding": "mmreplay.integrity",
    "Report": "mmreplay.integrity",
    "repair": "mmreplay.integrity",
    "Repair": "mmreplay.integrity",
    "LaneRepair": "mmreplay.integrity",
    "snapshot": "mmreplay.snapshots",
    "Snapshot": "mmreplay.snapshots",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
