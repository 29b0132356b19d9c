"""Where a number was made."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import torch

from pathaware.core import VERSION
from pathaware.core.errors import UsageError
from pathaware.training.evaluation import Evaluation
from pathaware.training.run_folder import Run


def environment() -> dict[str, str]:
    """Versions and hardware, without anything that names the machine or its user."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "pathaware": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "cores": str(os.cpu_count()),
    }


# A result with everything that made it: the files in `results/`.


def write_record(path: Path, run: Run, evaluation: Evaluation, seed: int) -> None:
    """Result, configuration, commit, environment and training time, as one JSON file."""
    rows = list(run.metrics())
    record = {
        "result": evaluation.summary(),
        "evaluation_seed": seed,
        "config": run.config.to_dict(),
        "training_seconds": rows[-1]["seconds"] if rows else None,
        "validation": [[r["iteration"], r["validation"]] for r in rows if r["validation"] is not None],
        "skipped": sum(row["skipped"] for row in rows),
        "commit": commit(),
        "environment": environment(),
    }
    try:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})", field="record") from None


def commit() -> str | None:
    """Of the code that runs, where that can be told: by the variable that CI systems set, or by git."""
    if "GIT_COMMIT" in os.environ:
        return os.environ["GIT_COMMIT"]
    where = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=where, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
