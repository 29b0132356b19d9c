"""Records of results: what was measured, with which code, configuration, seed and device.

Everything in `results/` is written by `write_record`. The record of an evaluated run is `evaluation_record`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import platform
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pathaware.core import VERSION
from pathaware.core.errors import UsageError
from pathaware.core.reading import MOST_TENSORS, read_file
from pathaware.core.writing import make_folder, replace_file
from pathaware.methods import get_method
from pathaware.training.checksummed import CHECKPOINT, tensor_digest
from pathaware.training.config import Config
from pathaware.training.evaluation import Evaluation

if TYPE_CHECKING:
    from pathaware.training.run_folder import Run

PACKAGE = Path(__file__).parents[1]
EVALUATED = "evaluated"
"""Key of a record whose tasks have another data set, or other ways or shots, than those of the training."""
NUMERICS = 2
"""Grows when a training by linear steps gives other bits: 1 until whole paths of ReLU networks became one
program. Records without it are of 1 or 2."""
CURVE = 50
"""Largest number of points of a training curve in a record."""


def environment() -> dict[str, str]:
    """Versions and hardware, without anything that identifies the machine or its user."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "pathaware": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
    }


@functools.cache
def _cpu() -> str:
    """The CPU's model and the instructions that PyTorch uses; results on CPUs of one kind have equal bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


@functools.cache
def revision() -> dict[str, Any]:
    """The `commit` of this package and whether it is `dirty` (has uncommitted changes); None if unknown.

    It comes from git, or from the variable GIT_COMMIT that CI systems set, and is asked for once per process,
    since the code that was imported does not change afterwards.
    """
    if "GIT_COMMIT" in os.environ:
        return {"commit": os.environ["GIT_COMMIT"], "dirty": None}
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # or it is installed in another repository
        return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def _git(*arguments: str) -> str:
    # `status` would lock the index to refresh it, in the way of a commit at the same moment.
    command = ["git", "--no-optional-locks", *arguments]
    return subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True).stdout.strip()


def origin(iteration: int, device: torch.device) -> dict[str, Any]:
    """The provenance of a training process that starts, or resumes, at an iteration."""
    return {"iteration": iteration, **revision(), "environment": environment(), "device": str(device)}


def method_version(config: Config) -> int:
    """The version of the method's mathematics. It grows when the numbers that a method gives change."""
    return get_method(config.method).version


def identity(config: Config) -> dict[str, Any]:
    """The conditions that decide a result besides the settings in `run_store.signature`.

    `validated` is True if the checkpoint was chosen on validation tasks.
    """
    return {
        "validated": config.training.validate > 0,
        "precision": config.training.precision,
        "method_version": method_version(config),
    }


def evaluation_record(run: Run, evaluation: Evaluation) -> dict[str, Any]:
    """The result of an evaluated run with everything that made it.

    - `evaluated`: data set, ways and shots of the tasks, only if they are not those of the training.
    - `task_values`: the final metric of every task, see `task_values`.
    - `identity`: see `identity`; the version of the method is the one that the run was trained with.
    - `checkpoint_rule`: which checkpoint was evaluated; `checkpoint_sha256`, `tensors_sha256`: digests of its
      file, and of the names, types, shapes and values in it.
    - `training_loss`, `validation`: pairs of iteration and value.
    - `trained_with`: the content of the run's `provenance.json`: commit, versions and device of the training.
      `write_record` adds those of the evaluation.
    """
    rows = list(run.metrics())
    trained_with = run.provenance()
    versions = [entry["method_version"] for entry in trained_with if "method_version" in entry]
    file = run.folder / CHECKPOINT
    tensors, _ = run.learned()
    curve = [[row["iteration"], row["loss"]] for row in rows]
    other = evaluation.other_tasks(run.config.problem)
    training = run.config.training
    best = f"the best by {training.validation_tasks} validation tasks every {training.validate} iterations"
    return {
        "result": evaluation.summary(),
        **({EVALUATED: other} if other else {}),
        "evaluation_seed": evaluation.seed,
        "task_values": encode_values(evaluation.values[:, -1]),
        "config": run.config.to_dict(),
        "identity": {**identity(run.config), **({"method_version": versions[-1]} if versions else {})},
        "training_iterations": rows[-1]["iteration"] if rows else None,
        "training_seconds": rows[-1]["seconds"] if rows else None,
        "training_loss": curve[:: -(-len(curve) // CURVE) or 1],
        "validation": [[r["iteration"], r["validation"]] for r in rows if r["validation"] is not None],
        "skipped": sum(row["skipped"] for row in rows),
        "checkpoint_rule": best if training.validate else "the last",
        "checkpoint_sha256": hashlib.sha256(read_file(file, MOST_TENSORS)).hexdigest(),
        "tensors_sha256": tensor_digest(tensors),
        "trained_with": trained_with,
    }


def write_record(path: Path, content: Mapping[str, Any], field: str = "record") -> None:
    """Write `content` as JSON, with commit, `dirty` flag and environment unless it has its own.

    Missing folders are created. If the file cannot be written, the error names the argument `field`.
    """
    record = {**content}
    for name, value in {**revision(), "environment": environment()}.items():
        record.setdefault(name, value)
    try:
        make_folder(path.parent)
        replace_file(path, to_json(record) + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})", field=field) from None


def to_json(value: Any, indent: int = 0) -> str:
    """Indented JSON with lists of numbers and texts on one line."""
    pad = "\n" + " " * (indent + 1)
    if isinstance(value, Mapping) and value:
        parts = [f"{json.dumps(str(key))}: {to_json(each, indent + 1)}" for key, each in value.items()]
        return "{" + pad + f",{pad}".join(parts) + pad[:-1] + "}"
    if isinstance(value, (list, tuple)) and any(isinstance(each, (Mapping, list, tuple)) for each in value):
        parts = [to_json(each, indent + 1) for each in value]
        return "[" + pad + f",{pad}".join(parts) + pad[:-1] + "]"
    return json.dumps(value)


def encode_values(values: Tensor) -> str:
    """Values of tasks as text: base64 of zlib of little-endian float32."""
    return base64.b64encode(zlib.compress(values.numpy().astype("<f4").tobytes(), 9)).decode()


def task_values(record: Mapping[str, Any]) -> Tensor | None:
    """The final metric of every task `[tasks]` in an evaluation record; None in records that have none.

    In a file they are base64 of zlib of little-endian float32.
    """
    text = record.get("task_values")
    if text is None or isinstance(text, Tensor):
        return text
    return torch.from_numpy(np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f4").astype(np.float32))
