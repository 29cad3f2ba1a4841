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
- `victims`: small stores of every kind, to be spoilt and put right again;
- `texts`, `payloads`: JSON, shards and compressed chunks that are not what they should be;
- `hostile`: changes that do harm where they can, checksums that fit included;
- `extremes`: those that are made every time: links, pipes, giants, bombs;
- `limits`: a child process with limits of memory, time and paths;
- `ordeal`: all of mmreplay let loose on such a store;
- `actor`: a writer process to be killed;
- `onlooker`: readers that check all they are shown, while others write;
- `ring`: a process that steps a small replay buffer for long;
- `usage`: what a process and a store take: memory, descriptors, maps, threads, disk;
- `scratch`: a directory in memory;
- `effort`: whether to look quickly or for long.
"""
