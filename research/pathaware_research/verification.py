"""Checks records: their numbers against the values of single tasks, and a training against its digest."""

from __future__ import annotations

import json
import math
import random
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pathaware.core.errors import UsageError
from pathaware.data.catalogue import GLYPHS
from pathaware.data.store import counted
from pathaware.methods import get_method
from pathaware.training.checksummed import tensor_digest
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate, interval_over_tasks
from pathaware.training.metric import METRICS, median
from pathaware.training.provenance import EVALUATED, NUMERICS, environment, method_version, task_values
from pathaware.training.train import train
from pathaware_research.records import read_records

TOLERANCE = 1e-6
"""Relative; the values of tasks are stored in single precision."""
ROUNDING = 1e-5
"""Relative difference up to which the values of tasks may differ from those that another version computed."""
CHEAP = 300.0
"""Seconds of training up to which a record is trained again."""


@dataclass(frozen=True)
class Verification:
    """Names of the records that were `checked`, of those `without_values` of tasks, and of `others`, files of
    other measurements such as times. `mismatches` are lines about numbers that do not follow from the values.
    """

    checked: list[str]
    without_values: list[str]
    mismatches: list[str]
    others: list[str]


def records(folder: Path, others: list[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and content of every record of an evaluated run in a folder and below it.

    The names of other files are added to `others`.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", field="folder")
    for study, name, record in read_records(folder, apart=True):
        yield f"runs/{study}.jsonl#{name}", record
    for path in sorted(folder.rglob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read ({error})", field="folder") from None
        if isinstance(record, dict) and "result" in record and "config" in record:
            yield str(path.relative_to(folder)), record
        elif others is not None:
            others.append(str(path.relative_to(folder)))


def verify(folder: Path) -> Verification:
    """Compute mean, interval, median and worst task of every record again."""
    found = Verification([], [], [], [])
    for name, record in records(folder, found.others):
        try:
            values = task_values(record)
        except (ValueError, zlib.error) as error:
            found.mismatches.append(f"{name}: task_values cannot be read ({error})")
            continue
        if values is None:
            found.without_values.append(name)
            continue
        found.checked.append(name)
        found.mismatches.extend(f"{name}: {line}" for line in _mismatches(record["result"], values.double()))
    return found


def _mismatches(result: Mapping[str, Any], values: torch.Tensor) -> Iterator[str]:
    metric = next(metric for name, metric in METRICS.items() if name in result)
    name = metric.name
    computed = {
        "tasks": len(values),
        name: values.mean().item(),
        f"{name}_ci95": interval_over_tasks(values),
        f"{name}_median": median(values),
        metric.worst_key: metric.worst(values).item(),
    }
    computed[f"{name}_per_step"] = computed[name]
    earlier = {f"{name}_median": values.median().item()}  # the lower of the two middle values
    for key, value in computed.items():
        if key not in result:  # older records have no median
            continue
        stated = result[key][-1] if key.endswith("_per_step") else result[key]
        accepted = (value, earlier.get(key, value))
        if not any(math.isclose(stated, each, rel_tol=TOLERANCE, abs_tol=1e-9) for each in accepted):
            yield f"{key} is {stated}, the tasks give {value}"


def obstacle(record: Mapping[str, Any]) -> str | None:
    """The reason why a record cannot be trained again here to the last bit, or None."""
    if EVALUATED in record:
        return "its tasks are not those of its training"
    config = Config.of_run(record["config"])
    origin = record.get("trained_with") or []
    if "tensors_sha256" not in record or "task_values" not in record:
        return "it has no digest of its tensors"
    if record["result"].get("snapshots", 1) != 1:
        return "it is of the mean of several checkpoints"
    if config.problem.name != "sine" and getattr(config.problem, "data", None) != GLYPHS:
        return "it needs a data set that does not come with the package"
    if len(origin) != 1 or origin[0]["device"] != "cpu" or origin[0]["processes"] != 1:
        return "it was not trained in one piece by one process on a CPU"
    if record["training_seconds"] > CHEAP:
        return f"its training took more than {CHEAP:.0f} seconds"
    there, here = origin[0]["environment"], environment()
    needed = ["torch", "cpu"] + (["cores"] if not config.training.threads else [])
    for name in needed:
        if there.get(name) != here[name]:
            return f"it was made with {name} {there.get(name)}, here is {here[name]}"
    trained = record["identity"]["method_version"]
    if get_method(config.method).same_numbers(trained) != method_version(config):
        return f"it is of version {trained} of {config.method}, here is version {method_version(config)}"
    numerics = origin[0].get("numerics")
    if numerics != NUMERICS:
        return f"its order of sums is of version {numerics or 'unknown'}, here is version {NUMERICS}"
    return None


def repeatable(folder: Path) -> tuple[list[tuple[str, dict[str, Any]]], Counter[str]]:
    """The records that can be trained again here, and for how many others each reason forbids it."""
    possible, reasons = [], Counter[str]()
    for name, record in records(folder):
        reason = obstacle(record)
        if reason is None:
            possible.append((name, record))
        else:
            reasons[reason] += 1
    return possible, reasons


def choose(folder: Path, seed: int | None = None) -> tuple[str, dict[str, Any]]:
    """A random record that can be trained again here; an error that gives the reasons if there is none."""
    possible, reasons = repeatable(folder)
    if not possible:
        told = "; ".join(f"{reason} ({count} records)" for reason, count in reasons.items())
        raise UsageError(f"no record can be trained again: {told or 'there are none'}", field="retrain")
    return random.Random(seed).choice(possible)


@dataclass(frozen=True)
class Retrained:
    """The outcome of a repeated training: lines about `mismatches`, and the number of tasks whose values are
    `differing` from those of the record, by `rounding` at most, relative."""

    mismatches: list[str]
    differing: int
    rounding: float


def retrain(record: Mapping[str, Any]) -> Retrained:
    """Train and evaluate a record's configuration again.

    The trained tensors must be equal to the last bit. So are the values of tasks, unless the record is of
    a version that evaluated in another order of sums; then they must agree to `ROUNDING`.
    """
    config, result = Config.of_run(record["config"]), record["result"]
    with tempfile.TemporaryDirectory() as folder:
        run = train(config, Path(folder) / "run")
        tensors, _ = run.learned()
        again = evaluate(
            run.load("cpu"),
            config.problem,
            split=result["split"],
            tasks=result["tasks"],
            seed=record["evaluation_seed"],
            queries=result["queries"],
            balance=result["balance"],
            views=result.get("views", "single"),
            refine=result.get("refine", "none"),
        )
    lines = []
    if tensor_digest(tensors) != record["tensors_sha256"]:
        lines.append("the trained tensors differ from those of the record")
    values, found = task_values(record), again.values[:, -1].float()
    assert values is not None  # `obstacle` has seen to it
    relative = (found - values).abs() / values.abs().clamp(min=ROUNDING)
    if wrong := int((relative > ROUNDING).sum()):
        lines.append(f"values differ for {wrong} of {counted(len(values), 'task')}")
    return Retrained(lines, int((found != values).sum()), float(relative.max()))
