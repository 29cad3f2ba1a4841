"""What mmreplay costs and saves, measured: ``python -m benchmarks --help``.

One module a subject, each with ``run(result, scale, data)``:

    append    buffer.step at full speed
    sample    batches of stacked transitions, from every codec
    vectors   batches of small float observations
    statistics  mean, deviation, bounds and quantiles of columns
    disk      bytes on disk of recorded games
    record    what recording costs while environments step
    open      opening a store, closed and after kill -9
    memory    resident memory while recording and sampling
    pack      copying and compressing a store again

Around them: `experience` makes the stores, `naive` says what a batch must be, `fresh` holds what is
measured in a process of its own, `timing` and `results` keep the figures, `report` the table.
"""

import os

# Before numpy is imported anywhere: one thread, as a batch has.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
