"""What the tests of mmreplay stand on, shipped so that others can test their own code with it.

- `model`: the oracle, every step in plain lists, everything that can be sampled worked out naively;
- `pair`: a writer and its model moved together;
- `checks`: a store compared with a model, byte for byte;
- `strategies`: hypothesis strategies for layouts, episodes and settings (needs `hypothesis`);
- `frames`: frames that say which row they are, to see torn or misplaced ones;
- `faults`: disks that fill up or fail, processes that die;
- `power`: a disk that loses power;
- `simulator`: histories of crashes on such a disk, decided by a seed;
- `mutants`: the protocol with a rule left out, which the simulator must notice;
- `lines`: lines of the package as points at which a process can die;
- `script`: what a writer process is to do, and its rows;
- `player`: the acts of which that consists;
- `actor`: a writer process to be killed;
- `recorder`: a recording process to be killed (needs `mmreplay[atari]`);
- `aftermath`: what a dead writer left, checked and gone on with;
- `scratch`: a directory in memory;
- `effort`: whether to look quickly or for long.
"""
