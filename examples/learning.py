"""All examples that learn, at full length, with the seeds below: their results, and pictures.

    python examples/learning.py [--folder DIR] [--processes 2] [--only online killed]

Writes examples/results/learning.json and docs/images/learning*.svg. A run whose result is in DIR,
as NAME-SEED.json, is not run again: so what was stopped goes on. Seconds are the processor's.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "examples/results/learning.json", ROOT / "docs/images"
DARK = ["dark_background", {"axes.prop_cycle": mpl.rcParamsDefault["axes.prop_cycle"]}]
PICTURES = {"learning.svg": "default", "learning-dark.svg": DARK}
SEEDS = dict.fromkeys(("online", "killed"), range(8))  # two that are compared; others have three
RUNS = {  # in this order, as `offline` needs the store of `online`
    "online": "online_minatar.py {folder}/online-{seed} --seed {seed}",
    "killed": "online_minatar.py {folder}/killed-{seed} --seed {seed} --kill 40000",
    "offline": "offline_minatar.py {folder}/online-0/store.zarr --seed {seed}",
    "cartpole": "sb3_cartpole.py --seed {seed}",
    "pendulum": "sac_pendulum.py --seed {seed}",
    "recurrent": "recurrent_cartpole.py --seed {seed}",
    "pong": "pong_clone.py --seed {seed}",
    "chunks": "action_chunks.py --seed {seed}",
    "dreamer": "dreamer_chunks.py --seed {seed}",
}
PANELS = {  # what of a result is shown beside what, and what it is called
    "offline": ("MinAtar Breakout, offline", "random", "recorded_last", "cql", "clone"),
    "pendulum": ("Pendulum, SAC", "untrained", "return"),
    "recurrent": ("CartPole without velocities", "memoryless", "return", "recorded"),
    "pong": ("Pong from pixels", "random", "return", "scripted"),
    "chunks": ("Car, chunks of actions", "single_return", "return", "recorded"),
}


def seeds(name):
    return SEEDS.get(name, range(3))


def run(name, seed, folder):
    """Run one example with one seed, unless its result is there."""
    path = folder / f"{name}-{seed}.json"
    if not path.exists():
        command = [sys.executable, *RUNS[name].format(folder=folder, seed=seed).split()]
        done = subprocess.run(  # noqa: S603  our own
            command, cwd=ROOT / "examples", check=True, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        path.write_text(done.stdout.splitlines()[-1] + "\n", encoding="utf-8")
    print(f"{name}, seed {seed}: {path.read_text(encoding='utf-8').strip()}", flush=True)


def collect(folder):
    """The results of a folder, as they are written."""
    runs = {
        name: [
            json.loads(path.read_text(encoding="utf-8"))
            for seed in seeds(name)
            if (path := folder / f"{name}-{seed}.json").exists()
        ]
        for name in RUNS
    }
    packages = ("mmreplay", "numpy", "torch", "gymnasium", "MinAtar", "stable-baselines3", "ale-py")
    return {
        "machine": {"system": platform.system(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in packages},
        "runs": runs,
        "returns": {name: summary([one["return"] for one in runs[name]]) for name in SEEDS},
    }


def summary(returns):
    if not returns:
        return {}
    mean = round(sum(returns) / len(returns), 2)
    return {"lowest": min(returns), "mean": mean, "highest": max(returns)}


def draw(runs, path, style="default"):
    """Curves of the online trainings, and a point for each seed of the others."""
    with plt.style.context(style):
        _draw(runs, path)


def _draw(runs, path):
    mpl.rcParams |= {"svg.hashsalt": "learning", "font.size": 8, "axes.titlesize": 9}
    figure, axes = plt.subplot_mosaic("AAAB;CDEF", figsize=(12, 5.4), layout="constrained")
    first, *others = axes.values()
    for name, color in (("online", "C0"), ("killed", "C1")):
        curves = [tuple(zip(*one["curve"], strict=True)) for one in runs[name]]
        for steps, returns in curves:
            first.plot(steps, returns, color=color, lw=0.6, alpha=0.5)
        if curves:
            mean = [sum(each) / len(each) for each in zip(*(one[1] for one in curves), strict=True)]
            label = f"{name}, mean of {len(curves)} seeds"
            first.plot(curves[0][0], mean, color=color, lw=2, label=label)
        for one in runs[name]:
            if "killed_at" in one:
                first.axvline(one["killed_at"], color=color, lw=0.4, ls=":")
    first.set(title="MinAtar Breakout, online: training returns", xlabel="steps")
    first.legend(fontsize=6)
    for axis, (name, (title, *shown)) in zip(others, PANELS.items(), strict=True):
        for place, what in enumerate(shown):
            values = [one[what] for one in runs[name]]
            axis.plot([place] * len(values), values, "o", mfc="none", color="C0", clip_on=False)
        labels = ["learned" if what == "return" else what.replace("_", " ") for what in shown]
        axis.set_xticks(range(len(shown)), labels)
        axis.set(title=f"{title}: return", xlim=(-0.5, len(shown) - 0.5))
        axis.grid(axis="y", lw=0.3)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="of the runs; left out, one that is removed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for names in (["online"], [name for name in RUNS if name != "online"]):
            with ThreadPoolExecutor(args.processes) as threads:
                todo = [(name, seed) for name in names if name in args.only for seed in seeds(name)]
                list(threads.map(lambda each: run(*each, folder), todo))
        results = collect(folder)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name, style in PICTURES.items():
        draw(results["runs"], IMAGES / name, style)


if __name__ == "__main__":
    main()
