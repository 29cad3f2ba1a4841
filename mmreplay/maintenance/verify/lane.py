"""One lane: its log, or its two logs and the rules between them.

Invariant: what is said of a lane is said of one state of it; when a writer opened or closed it
meanwhile, it is examined again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path

from mmreplay.errors import CorruptStoreError, LockedError, MmreplayError
from mmreplay.format.columns import lane_columns, start_columns, tick_columns
from mmreplay.format.layout import LOGS, STARTS, TICKS
from mmreplay.maintenance.verify import directory_names, documents, metadata
from mmreplay.maintenance.verify.log import UNTRUSTED, LogExamination
from mmreplay.maintenance.verify.metadata import Arrays
from mmreplay.maintenance.verify.report import Finding, Tally
from mmreplay.maintenance.verify.second_look import Watch, WriterChangedError
from mmreplay.maintenance.verify.steps import StepRules
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.lane_state import lane_state
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.schema import Schema
from mmreplay.storage.chunk_files import EvictedError

_ATTEMPTS = 200
_PATIENCE_S = 0.05


def examine(root: Path, path: Path, tally: Tally) -> Examination:
    """Examine a lane; raises LockedError if a writer opens and closes it all the time."""
    read = (tally.files, tally.bytes)
    for _ in range(_ATTEMPTS):
        tally.files, tally.bytes = read
        out = Examination(root, path, tally)
        try:
            out.run()
        except (WriterChangedError, EvictedError):
            time.sleep(_PATIENCE_S)
        else:
            return out
    raise LockedError(
        f"{path}: a writer opened or closed this lane {_ATTEMPTS} times while it was being "
        f"verified; verify it again when it is done"
    )


class Examination:
    """One lane, examined once.

    Attributes:
        watch: its findings.
        arrays: those of a lane of one environment whose metadata can be used.
        state: ``closed``, ``live``, ``crashed`` or, if it cannot be opened, ``unknown``.
        environments: of the lane, as far as that is known.
        is_vector: whether it is known to be one of many environments.
        from_start: whether no row that can be sampled lies before its damage.
        n_rows: rows examined; of many environments, ticks.
        untrusted: rows past the head that the state page speaks of.
    """

    def __init__(self, root: Path, path: Path, tally: Tally) -> None:
        self._root, self._tally = root, tally
        self.watch = Watch(root, path, tally)
        self.arrays = Arrays()
        self.state = "unknown"
        self.environments = 1
        self.is_vector = self.from_start = False
        self.n_rows = self.untrusted = 0

    def run(self) -> None:
        """Examine; WriterChangedError, EvictedError if a writer opened or closed it meanwhile."""
        if not metadata.read_root(self.watch):
            return
        schema = metadata.read_schema(self.watch)
        if schema is None:
            return
        own = self.watch.metadata or {}
        if own["kind"] == "vector":
            self._run_vector(schema, own["width"])
            return
        path = self.watch.path
        log = LogExamination(self.watch, lane_columns(schema))
        self.arrays = log.arrays
        self._check_copy([self.watch])
        log.run(lambda: LaneReader(path), path)
        self._take(log)

    def _take(self, log: LogExamination) -> None:
        self.state, self.n_rows, self.untrusted = log.state, log.n_rows, log.untrusted
        self.from_start = log.from_start

    def _run_vector(self, schema: Schema, width: int) -> None:
        """The two logs of a lane of many environments, each by itself, then together."""
        path, self.environments, self.is_vector = self.watch.path, width, True
        columns = {TICKS: tick_columns(schema, width), STARTS: start_columns(schema)}
        self._check_names()
        logs: dict[str, LogExamination] = {}
        watches = {name: Watch(self._root, path, self._tally, name) for name in columns}
        for name, watch in watches.items():
            if watch.path.is_symlink():
                continue  # it is a finding already
            if metadata.read_root(watch, ("log",)) and self._check_uuid(watch):
                of_ticks = width if name == TICKS else None
                logs[name] = LogExamination(watch, columns[name], of_ticks)
        if len(logs) == len(columns):
            self._check_copy(list(watches.values()))
        complete = len(logs) == len(columns) and all(log.arrays.complete for log in logs.values())
        lane = self._open(watches) if complete else None
        rules = StepRules(self.watch, lane, watches) if isinstance(lane, VectorReader) else None
        for name, log in logs.items():
            log.run(functools.partial(_log_of, lane, path, name), path)
        if rules is not None:
            rules.check(live=logs[TICKS].state == "live")
        if TICKS in logs and logs[TICKS].untrusted:
            watches[STARTS].warnings = [
                one for one in watches[STARTS].warnings if UNTRUSTED not in one.message
            ]  # for the same reason, which is told
        for watch in watches.values():
            self.watch.findings += watch.findings
            self.watch.warnings += watch.warnings
        if TICKS in logs:
            self._take(logs[TICKS])
            self.from_start = any(log.from_start for log in logs.values())
            closed = all(watch.closed for watch in watches.values() if watch.metadata)
            if self.state != "unknown" and not closed:
                self.state = lane_state(path, closed=False)

    def _open(self, watches: dict[str, Watch]) -> VectorReader | Exception:
        """Open the lane; if it cannot be, why, which is a finding if nothing else will say so."""
        try:
            lane = VectorReader(self.watch.path, own_documents=True)
        except (MmreplayError, OSError) as error:
            if all(watch.closed for watch in watches.values()):
                text = str(error).removeprefix(f"{self.watch.path}: ")
                self.watch.note([self.watch.finding("zarr.json", text)])
            return error
        for log in lane.logs:
            if log.metadata != watches[log.path.name].metadata:
                raise WriterChangedError
        return lane

    def _check_copy(self, logs: Sequence[Watch]) -> None:
        """The copy of all documents, in the lane's own, says what they say.

        That of a lane that is not closed is of no use to anybody, and the next opening removes it.
        `logs` are those that were read; the lane's own watch, if it is of one environment.
        """
        watch, own = self.watch, dict[str, bytes | None]()
        for log in logs:
            below = log.path.relative_to(watch.path).as_posix()
            prefix = "" if log is watch else f"{below}/"
            own |= {} if log is watch else {below: log.document}
            own |= {f"{prefix}{path}": data for path, data in log.documents.items()}
        file = watch.path / "zarr.json"
        if not all(log.closed for log in logs):
            return
        texts = list(documents.copy_problems(watch.document, own, str(file)))
        if not texts:
            return
        for log in logs:
            log.check_same_writer()
        # Of a vector lane opened and closed since it was read, only this has changed in there.
        if metadata.read(watch, "zarr.json") != watch.document:
            raise WriterChangedError
        watch.note([watch.finding("zarr.json", text) for text in texts])

    def _check_uuid(self, watch: Watch) -> bool:
        """Whether a log is of this lane."""
        expected, found = ((one.metadata or {}).get("uuid") for one in (self.watch, watch))
        if expected != found:
            text = f"uuid: expected that of the lane, {expected}, found {found}"
            watch.note([watch.finding("zarr.json", text)])
        return expected == found

    def _check_names(self) -> None:
        """There is nothing else in the lane's own directory."""
        watch = self.watch

        def check() -> tuple[list[Finding], list[Finding]]:
            found = list(directory_names.foreign_in_vector(watch.path))
            foreign = [watch.finding(name, text) for name, text, litter in found if not litter]
            return foreign, [watch.finding(name, text) for name, text, litter in found if litter]

        watch.warnings += watch.confirm(check)


def _log_of(lane: VectorReader | Exception | None, path: Path, name: str) -> LogReader:
    """A log of a lane; raises what its opening does, or did: it has looked for long enough."""
    if isinstance(lane, Exception):
        about = next((one for one in LOGS if str(lane).startswith(f"{path / one}: ")), name)
        if about != name:
            raise CorruptStoreError(f"not read, as {about} cannot be opened") from lane
        raise lane
    if lane is None:
        lane = VectorReader(path, own_documents=True)
    for log in lane.logs:
        if log.path.name == name:
            return log
    raise CorruptStoreError(f"{path}: has no log {name}")
