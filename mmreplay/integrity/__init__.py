"""Is a store what it was when it was written? `verify` reads all of it and says.

    verify       every file of a store against docs/format.md and docs/semantics.md
    Report       what it read and found
    Finding      one thing that is damaged, with lane, array, file and rows
    repair       a sound store of what is sound in a damaged one
    Repair       what it kept and lost

Invariant: `verify` writes nothing and holds no lock, and what a running writer is just changing is
never taken for damage: a finding is looked at again, in the lane's newest state, before it counts.
`repair` changes no byte of a damaged store.
"""

from __future__ import annotations

from mmreplay.integrity.repairs import LaneRepair, Repair, repair
from mmreplay.integrity.report import Finding, Report
from mmreplay.integrity.store import verify

__all__ = ["Finding", "LaneRepair", "Repair", "Report", "repair", "verify"]
