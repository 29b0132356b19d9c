"""Train small runs of every kind and print a digest of each, to see whether a change of code changes numbers.

    python -m pathaware_research.benchmarks.golden --out before.json            before the change
    python -m pathaware_research.benchmarks.golden \\
        --against before.json  after it; exit code 1 if a digest differs
    python -m pathaware_research.benchmarks.golden --device cuda --only graph  runs whose name contains a text

A digest covers the names, types and bits of all learned tensors, and the metrics but for their seconds. Runs
start through the command line, so this file outlives what it checks. Digests of two machines differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

WAVES: dict[str, Any] = {"name": "sine"}
DRAWINGS: dict[str, Any] = {
    "name": "classification",
    "data": "glyphs",
    "width": 8,
    "queries": 3,
    "shots": 1,
}
SHORT = {"iterations": 6, "validate": 3, "validation_tasks": 5}
DIRECT = {"rate": 1.0, "q_start": 0.1}
RECIPE = {
    "average": 0.995,
    "evaluate_average": True,
    "distil": 0.5,
    "dropout": 0.1,
    "classify": 0.5,
    "warmup": 3,
    "rule_rate": 2e-3,
    "head": "prototypes",
}


def drawings(method: str, problem: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    settings = {"name": method, **(DIRECT if method == "pamela" else {})}
    return {"problem": {**DRAWINGS, **(problem or {})}, "method": settings, "training": {**SHORT, **training}}


def waves(method: str, iterations: int, **training: Any) -> dict[str, Any]:
    settings = {"name": method, **(DIRECT if method == "pamela" else {})}
    return {"problem": WAVES, "method": settings, "training": {"iterations": iterations, **training}}


RUNS: dict[str, dict[str, Any]] = {
    "sine pamela": waves("pamela", 60, validate=20, validation_tasks=20, histograms=20),
    "sine meta-sgd": waves("meta-sgd", 40),
    "sine meta-lstm": waves("meta-lstm", 20),
    "sine anil": waves("anil", 20),
    "sine l2l": waves("l2l", 20),
    "sine loop": waves("pamela", 20, execution="loop"),
    "pamela": drawings("pamela"),
    "pamela in chunks": drawings("pamela", chunk=2, checkpoint=True),
    "pamela in bf16": drawings("pamela", precision="bf16"),
    "pamela without a graph": drawings("pamela", graph=False),
    "maml++ with snapshots": drawings("maml++", snapshots=2),
    "mt-net": drawings("mt-net"),
    "metal": drawings("metal"),
    "alfa": drawings("alfa"),
    "imaml": drawings("imaml"),
    "reptile": drawings("reptile"),
    "r2d2": drawings("r2d2"),
    "prototypical": drawings("prototypical"),
    "umtra": drawings("umtra"),
    "recipe": drawings("pamela", {"cutmix": 0.5, "jitter": 0.4, "erase": 0.3}, **RECIPE),
    "resumed": drawings("pamela", iterations=60, save=2),
    "sine resumed": waves("pamela", 1500, save=20),
    "two processes": drawings("pamela"),
}
"""Runs of `pathaware train` by name."""
PRETRAININGS = {
    "pretraining": "batch=32 validate=1 rotation=0.5 ema=0.9",
    "pretraining resumed": "batch=32 validate=1 cutmix=0.5 crop=1.0",
}
"""Settings of runs of `pathaware pretrain` by name."""


def command(name: str, folder: Path, device: str) -> list[str]:
    """The command of a run, whose folder is `folder / "run"`."""
    out = ["--out", str(folder / "run")]
    if name in PRETRAININGS:
        options = [part for each in PRETRAININGS[name].split() for part in ("--set", each)]
        rest = ["pretrain", "glyphs", "--epochs", "2", "--width", "8", "--device", device]
        return [*pathaware(), *rest, *options, *out]
    tables = RUNS[name]
    tables = {**tables, "training": {**tables["training"], "device": device, "threads": 1}}
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    (folder / "run.toml").write_text("\n".join(lines), encoding="utf-8")
    processes = 2 if name == "two processes" else 1
    return [*pathaware(processes), "train", "preset", str(folder / "run.toml"), "--test-tasks", "0", *out]


def pathaware(processes: int = 1) -> list[str]:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return [sys.executable, "-m", *(launcher if processes > 1 else ()), "pathaware"]


def train(name: str, folder: Path, device: str) -> str:
    """Train a run and return its digest; one with "resumed" in its name is stopped on the way."""
    folder.mkdir()
    run, log = folder / "run", (folder / "log").open("w")
    process = subprocess.Popen(command(name, folder, device), stdout=log, stderr=log)
    if "resumed" in name:
        while process.poll() is None and not list(run.glob("state-*")):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait()
        kind = "pretrain" if name in PRETRAININGS else "train"
        if "--test-tasks" in command(name, folder, device):
            again = [*pathaware(), kind, "--resume", str(run), "--test-tasks", "0"]
        else:
            again = [*pathaware(), kind, "--resume", str(run)]
        process = subprocess.Popen(again, stdout=log, stderr=log)
    if process.wait():
        return "failed: " + (folder / "log").read_text()[-300:]
    return digest(run)


def digest(run: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(run.glob("*.safetensors")):
        if path.name.startswith("state-"):  # also has the seconds
            continue
        tensors = load_file(path)
        for name in sorted(tensors):
            found.update(f"{path.stem} {name} {tensors[name].dtype} {tensors[name].shape}".encode())
            found.update(tensors[name].tobytes())
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = {key: value for key, value in json.loads(line).items() if key != "seconds"}
        found.update(json.dumps(row, sort_keys=True).encode())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    names = [name for name in (*RUNS, *PRETRAININGS) if options.only in name]
    before = json.loads(options.against.read_text()) if options.against else {}
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.workers) as pool:
        folders = [Path(place) / name.replace(" ", "-") for name in names]
        digests = dict(
            zip(names, pool.map(train, names, folders, [options.device] * len(names)), strict=True)
        )
    changed = [name for name in names if before and before.get(name) != digests[name]]
    for name in names:
        state = "  DIFFERENT" if name in changed else "  as before" if before else ""
        print(f"{name:24} {digests[name]}{state}")
    if options.out:
        options.out.write_text(json.dumps(digests, indent=1) + "\n")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
