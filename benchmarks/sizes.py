"""How much is measured: in full, or just enough to see that a benchmark works."""

from __future__ import annotations

import dataclasses

__all__ = ["FULL", "QUICK", "Scale"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of everything.

    Attributes:
        name: ``full`` or ``quick``.
        games: recorded, by the name of their files.
        steps: recorded of each.
        envs: environments of a recorded store.
        runs: of everything that is repeated.
        rounds: turns in each run, of batches.
        append_steps: steps of an append run.
        stall_steps: steps of which the slowest is looked for.
        peer_rows: transitions in the peer's buffer.
        vector_rows: of the store of vectors.
        widths: environments that step together.
        vector_cells: steps of single environments in an append run of each width.
        priority_rows: transitions beside a peer's tree of priorities.
        few_rows: transitions of the smaller buffer whose priorities are updated.
        many_rows: of the larger one.
        open_rows: of the stores that are opened.
        opened: fresh processes that open each of them.
        record_steps: of each run with and without recording.
        memory_steps: recorded while memory is watched.
        memory_batches: sampled while memory is watched.
        learner_epochs: of a learner that is given batches in several orders.
        before: the commit that this code is held against.
        pairs: of processes, one of each of the two, that take turns.
        pace_steps: of each store that each process writes.
        base_rows: of a lane whose files the long ones repeat, by hard links.
        long_times: how often the long one does, and one beside it eight times.
        long_lanes: stores of as many rows together, loaded as one.
        prioritized_times: how often one with priorities does.
        long_batches: sampled from each of them.
        seen_frames: of each policy, to choose codecs and lengths by.
        default_runs: of everything that is timed of them; as many policies, if there are.
        default_rounds: batches of 32 in each run.
        exchange_steps: exported and imported, of frames and of vectors.
        exchange_runs: of each of these.
        exchange_rows: exported and imported while memory is watched.
        viewed_rows: of the store that a page shows.
        view_runs: of a server and a page on it.
        view_pairs: of a writer that is watched and then not.
        scrubbed_gb: of frames that the server is asked for.
    """

    name: str
    games: tuple[str, ...]
    steps: int
    envs: int
    runs: int
    rounds: int
    append_steps: int
    stall_steps: int
    peer_rows: int
    vector_rows: int
    widths: tuple[int, ...]
    vector_cells: int
    priority_rows: int
    few_rows: int
    many_rows: int
    open_rows: int
    opened: int
    record_steps: int
    memory_steps: int
    memory_batches: int
    learner_epochs: int
    before: str
    pairs: int
    pace_steps: int
    base_rows: int
    long_times: int
    long_lanes: int
    prioritized_times: int
    long_batches: int
    seen_frames: int
    default_runs: int
    default_rounds: int
    exchange_steps: int
    exchange_runs: int
    exchange_rows: int
    viewed_rows: int
    view_runs: int
    view_pairs: int
    scrubbed_gb: float


FULL = Scale(
    "full",
    ("mspacman", "breakout"),
    steps=120_000,
    envs=8,
    runs=7,
    rounds=200,
    append_steps=100_000,
    stall_steps=500_000,
    peer_rows=40_000,
    vector_rows=1_000_000,
    widths=(16, 256, 1024, 4096),
    vector_cells=1_000_000,
    priority_rows=1_000_000,
    few_rows=100_000,
    many_rows=10_000_000,
    open_rows=1_000_000,
    opened=9,
    record_steps=16_000,
    memory_steps=200_000,
    memory_batches=20_000,
    learner_epochs=4,
    before="d84db38",
    pairs=5,
    pace_steps=8_000,
    base_rows=131_072,
    long_times=1_526,
    long_lanes=64,
    prioritized_times=763,
    long_batches=600,
    seen_frames=12_288,
    default_runs=3,
    default_rounds=60,
    exchange_steps=20_000,
    exchange_runs=3,
    exchange_rows=1_000_000,
    viewed_rows=1_000_000,
    view_runs=5,
    view_pairs=9,
    scrubbed_gb=10.0,
)

QUICK = Scale(
    "quick",
    ("breakout",),
    steps=800,
    envs=2,
    runs=2,
    rounds=3,
    append_steps=600,
    stall_steps=1_000,
    peer_rows=300,
    vector_rows=5_000,
    widths=(2, 16),
    vector_cells=2_000,
    priority_rows=3_000,
    few_rows=1_000,
    many_rows=5_000,
    open_rows=2_000,
    opened=1,
    record_steps=80,
    memory_steps=200,
    memory_batches=40,
    learner_epochs=2,
    before="HEAD",
    pairs=1,
    pace_steps=200,
    base_rows=2_048,
    long_times=80,
    long_lanes=4,
    prioritized_times=20,
    long_batches=4,
    seen_frames=512,
    default_runs=1,
    default_rounds=2,
    exchange_steps=600,
    exchange_runs=1,
    exchange_rows=5_000,
    viewed_rows=2_000,
    view_runs=1,
    view_pairs=1,
    scrubbed_gb=0.01,
)
