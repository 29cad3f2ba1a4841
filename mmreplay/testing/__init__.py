"""What the tests of mmreplay stand on, shipped so that others can test their own code with it.

- `model`: the oracle, every step in plain lists, everything that can be sampled worked out naively;
- `pair`: a writer and its model moved together;
- `checks`: a store compared with a model, byte for byte;
- `strategies`: hypothesis strategies for layouts, episodes and settings (needs `hypothesis`);
- `frames`: frames that say which row they are, to see torn or misplaced ones;
- `faults`: disks that fill up or fail, processes that die;
- `flips`: bits that flip in a closed store;
- `damage`: files of a closed store damaged, and which rows that costs;
- `power`: a disk that loses power;
- `simulator`: histories of crashes on such a disk, decided by a seed;
- `mutants`: the protocol with a rule left out, which the simulator must notice;
- `mounts`: small real file systems to fill and to cut off (root on Linux);
- `actor`: a writer process to be killed;
- `onlooker`: readers that check all they are shown, while others write;
- `ring`: a process that steps a small replay buffer for long;
- `usage`: what a process and a store take: memory, descriptors, maps, threads, disk;
- `scratch`: a directory in memory;
- `effort`: whether to look quickly or for long.
"""
