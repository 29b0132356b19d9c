"""Training on a CPU in one process and in several, beside the sequential loop.

    python -m pathaware_research.benchmarks.processes --processes 2 --json results/timings/processes-cpu.json

They run in turns (`step_times.py`), so that noise affects all alike. The cores are divided among
the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pathaware.training.provenance import write_record

STEP_TIMES = Path(__file__).with_name("step_times.py")


def milliseconds(options: argparse.Namespace, processes: int, execution: str) -> dict[str, float]:
    """Milliseconds per meta-iteration, by method."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "steps.json"
        subprocess.run(
            [
                sys.executable,
                *(launcher if processes > 1 else []),
                *(STEP_TIMES, "--rows", options.row, "--methods", options.methods),
                *("--execution", execution, "--device", "cpu", "--precision", "fp32"),
                *("--seconds", str(options.seconds), "--json", record),
            ],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": str(max(1, cores // processes))},
            stdout=subprocess.DEVNULL,
        )
        return {row["method"]: row["ms"] for row in json.loads(record.read_text())["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--row", default="glyphs")
    parser.add_argument("--methods", default="maml,pamela")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    entries = {
        "sequential loop": (1, "loop"),
        "one process": (1, "auto"),
        f"{options.processes} processes": (options.processes, "auto"),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in entries}
    for _ in range(options.rounds):
        for name, (processes, execution) in entries.items():
            found[name].append(milliseconds(options, processes, execution))
    rows = {
        name: {method: statistics.median(times[method] for times in rounds) for method in rounds[0]}
        for name, rounds in found.items()
    }
    for name, row in rows.items():
        print(f"{name:16}", *(f"{method} {ms:.1f} ms" for method, ms in row.items()), sep="  ")
    if options.json:
        settings = {"row": options.row, "rounds": options.rounds, "seconds": options.seconds}
        write_record(options.json, {**settings, "milliseconds": rows, "all": found}, field="json")


if __name__ == "__main__":
    main()
