"""Kill a run at random moments, resume it each time, and compare it with an uninterrupted run.

python research/pathaware_research/benchmarks/killing.py \\
    [sine|glyphs] [--kills 20] [--iterations 4000] [--set …]

The tests do this with small runs; here the sizes are those of real ones. The exit code is 1 if a single bit
of the parameters or metrics differs.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from pathaware.training.checksummed import CHECKPOINT, read_checksummed
from pathaware.training.run_files import CONFIG
from pathaware.training.run_folder import Run


def command(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "pathaware", "train", *arguments, "--json"])


def start_or_resume(folder: Path, problem: list[str]) -> subprocess.Popen[bytes]:
    if (folder / CONFIG).exists():
        return command("--resume", str(folder))
    return command(*problem, "--out", str(folder))


def ends(folder: Path) -> tuple[list[dict[str, object]], dict[str, torch.Tensor]]:
    run = Run.open(folder)
    assert run.finished
    metrics = [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()]
    return metrics, read_checksummed(folder / CHECKPOINT)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("problem", nargs="?", default="sine", choices=("sine", "glyphs"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=4000)
    parser.add_argument("--set", action="append", default=["training.save=50"])
    options = parser.parse_args()
    settings = [part for text in options.set for part in ("--set", text)]
    problem = [options.problem, "--iterations", str(options.iterations), *settings]
    with tempfile.TemporaryDirectory() as place:
        calm, killed = Path(place) / "calm", Path(place) / "killed"
        started = time.perf_counter()
        assert command(*problem, "--out", str(calm)).wait() == 0
        whole = time.perf_counter() - started
        kills = 0
        while kills < options.kills:
            process = start_or_resume(killed, problem)
            try:
                process.wait(random.uniform(0, 1.5 * whole / options.kills + 5))
                break  # it finished between two kills
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        assert start_or_resume(killed, problem).wait() == 0
        (metrics, parameters), (metrics_too, parameters_too) = ends(calm), ends(killed)
        same = metrics == metrics_too and all(
            torch.equal(v, parameters_too[k]) for k, v in parameters.items()
        )
        print(f"{options.problem}: killed {kills} times, {'equal to the last bit' if same else 'DIFFERENT'}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
