"""The comparison: every implementation is checked, then timed in turns with the others on the same inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.path import Order
from pathaware.training.tables import NOTHING, Remark
from pathaware_research.bench.implementations import COMPILED, ENGINE, LOOP, Implementation, Unavailable
from pathaware_research.bench.libraries import LIBRARIES
from pathaware_research.bench.timing import in_turns, one_line, warmed_up
from pathaware_research.bench.workloads import Inputs, Job, MethodName, What, Workload

SAME = 1e-6
"""The largest relative difference in float64 between results that count as equal."""
ERROR_TASKS = 9
"""The largest number of tasks of which the error of a precision is the median."""
BURST = 0.1
"""The least number of seconds that an implementation trains for in a turn."""
METHODS: tuple[MethodName, ...] = ("maml", "pamela")
MEASUREMENTS: tuple[tuple[What, Order], ...] = (
    ("training", "second"),
    ("training", "first"),
    ("adaptation", "none"),
)
IMPLEMENTATIONS: tuple[Implementation, ...] = (ENGINE, COMPILED, LOOP, *LIBRARIES)
TITLES = {each.name: each.title for each in IMPLEMENTATIONS}

Entry = dict[str, Any]
"""The result of one implementation: `ms`, `quartiles_ms`, `memory_mb`, `difference` and `same`; or `missing`,
the reason why it was not timed; or `error`."""


def implementations(only: Sequence[str] = ()) -> list[Implementation]:
    """The implementations with these names; by default all but the compiled one."""
    for name in only:
        if name not in TITLES:
            hint = did_you_mean(name, TITLES)
            raise UsageError(f"{name!r} must be one of {', '.join(TITLES)}{hint}", field="only")
    return [each for each in IMPLEMENTATIONS if (each.name in only if only else each is not COMPILED)]


def bench(
    workloads: Sequence[Workload],
    chosen: Sequence[Implementation],
    *,
    device: torch.device,
    precision: str | Sequence[str],
    repeats: int,
    threads: int | None = None,
    report: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Time every workload in each precision; return the record that `--json` writes.

    `keep` gets the record whenever a workload has been timed, with the rows that there are.
    """
    precisions = [precision] if isinstance(precision, str) else list(precision)
    rows: list[dict[str, Any]] = []
    record = {
        "bench": "contestants",
        "device": device.type,
        "precision": ", ".join(precisions),
        "repeats": repeats,
        "burst_seconds": BURST,
        "contestants": {each.name: _version(each) for each in chosen},
        "rows": rows,
    }
    for workload, (what, order), given in product(workloads, MEASUREMENTS, precisions):
        detail = [*([] if order == "none" else [f"{order} order"]), *(precisions[1:] and [given])]
        report(", ".join([f"{workload.name}: {what}", *detail]))
        jobs = [Job(workload, what, method, order, str(device), given, threads) for method in METHODS]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old libraries use deprecated parts of PyTorch
            rows += time_jobs(jobs, chosen, device, repeats)
        keep(record)
    return record


def time_jobs(
    jobs: Sequence[Job], chosen: Sequence[Implementation], device: torch.device, repeats: int
) -> list[dict[str, Any]]:
    """Time jobs that differ only in their method, in turns with each other; return one row per job."""
    jobs[0].config().training.apply()
    inputs = Inputs(jobs[0])
    references = {job: _compute(ENGINE, job, inputs.episodes) for job in jobs}
    entries: dict[tuple[Job, Implementation], Entry] = {}
    work = {}
    for key in [(job, each) for job in jobs for each in chosen]:
        job, implementation = key
        try:
            entries[key] = _check(implementation, job, inputs.episodes, references[job])
            prepare = implementation.training if job.what == "training" else implementation.adaptation
            work[key], entries[key]["memory_mb"] = warmed_up(partial(prepare, job, inputs), device)
        except Unavailable as reason:
            entries[key] = {"missing": str(reason)}
        except Exception as error:  # a library that fails must not stop the others
            entries[key] = {"error": one_line(error)}
    burst = BURST if jobs[0].what == "training" else 0.0  # in use, an adaptation runs by itself
    times, errors = in_turns(work, repeats, device, inputs.turn, burst)
    for key, timing in times.items():
        entries[key].update(timing.to_dict())
    for key, line in errors.items():
        entries[key] = {"error": line}
    errors_of_ours = {
        job: precision_error(job, inputs.episodes) if job.what == "training" and ENGINE in chosen else None
        for job in jobs
    }
    return [
        {
            "row": job.workload.name,
            "sizes": job.workload.sizes,
            "what": job.what,
            "order": job.order,
            "method": job.method,
            "precision": job.precision,
            "error": errors_of_ours[job],
            "threads": torch.get_num_threads(),
            "entries": {each.name: entries[job, each] for each in chosen},
        }
        for job in jobs
    ]


def precision_error(job: Job, episodes: Episodes) -> float:
    """The relative error of one task's meta-gradient in the job's precision, against float64: the median of
    the first few tasks. Two pixels that tie in one precision only can change a single one by a factor of ten.
    """
    errors = []
    for t in range(min(len(episodes), ERROR_TASKS)):
        task = episodes[t]
        exact = _compute(ENGINE, job, task)
        errors.append(float((ENGINE.meta_gradient_as_trained(job, task) - exact).norm() / exact.norm()))
    return float(np.median(errors))


def _compute(implementation: Implementation, job: Job, episodes: Episodes) -> Tensor:
    compute = implementation.meta_gradient if job.what == "training" else implementation.predictions
    return compute(job, episodes.to(dtype=torch.float64))


def _check(implementation: Implementation, job: Job, episodes: Episodes, reference: Tensor) -> Entry:
    """The relative difference in float64 from our meta-gradient or our predictions."""
    found = _compute(implementation, job, episodes)
    difference = float((found - reference).norm() / reference.norm())
    return {"difference": difference, "same": difference <= SAME}


def _version(implementation: Implementation) -> str:
    try:
        return implementation.version()
    except Unavailable as reason:
        return str(reason)


def header(record: dict[str, Any], what: What) -> list[str]:
    """The header above `lines`: milliseconds per implementation, then ratios."""
    names = [TITLES.get(name, name) for name in record["contestants"]]
    order = ["order"] if what == "training" else []
    ratios = [f"{other} / pathaware" for other in _compared(record)]
    precision, error = _optional(record, what)
    titles = [
        "row",
        *order,
        "method",
        *(["precision"] if precision else []),
        *names,
        *ratios,
        "PAMELA / MAML",
    ]
    return [*titles, *(["error"] if error else [])]


def lines(record: dict[str, Any], what: What) -> list[list[str]]:
    """The rows of one kind of work. Other libraries implement MAML only."""
    rows = [row for row in record["rows"] if row["what"] == what]
    cells = []
    for row in rows:
        entries = row["entries"]
        order = [row["order"]] if what == "training" else []
        times = [cell(entries.get(name, {})) for name in record["contestants"]]
        ratios = [_ratio(entries, other, entries, "pathaware") for other in _compared(record)]
        precision, error = _optional(record, what)
        named = [row["row"], *order, row["method"], *([row["precision"]] if precision else [])]
        measured = [f"{row['error']:.0e}" if row.get("error") is not None else NOTHING] if error else []
        cells.append([*named, *times, *ratios, _pamela_to_maml(row, rows), *measured])
    return cells


def _optional(record: dict[str, Any], what: What) -> tuple[bool, bool]:
    """Return whether the table has columns for the precision, if there are several, and for its error."""
    rows = [row for row in record["rows"] if row["what"] == what]
    several = len({row.get("precision") for row in record["rows"]}) > 1
    return several, any(row.get("error") is not None for row in rows)


def _compared(record: dict[str, Any]) -> list[str]:
    """The implementations whose time is also given as a multiple of ours."""
    return [name for name in ("loop", "higher") if name in record["contestants"]]


def memory_header(record: dict[str, Any]) -> list[str]:
    precision = ["precision"] if _optional(record, "training")[0] else []
    return ["row", "order", "method", *precision, *(TITLES.get(name, name) for name in record["contestants"])]


def memory_lines(record: dict[str, Any]) -> list[list[str]]:
    """Megabytes of a meta-iteration; empty unless measured on a GPU."""
    if record["device"] != "cuda":
        return []
    precision = ["precision"] if _optional(record, "training")[0] else []
    return [
        [
            *(row[key] for key in ["row", "order", "method", *precision]),
            *(_megabytes(row["entries"].get(name, {})) for name in record["contestants"]),
        ]
        for row in record["rows"]
        if row["what"] == "training"
    ]


def cell(entry: Entry) -> str:
    """A time in milliseconds, marked if the result differs from ours; or the reason why there is none."""
    if "ms" not in entry:
        reason = f"failed: {entry['error']}" if entry.get("error") else entry.get("missing")
        return Remark(reason) if reason else NOTHING
    time = number(entry["ms"])
    return time if entry["same"] else f"{time}, not the same result (off by {entry['difference']:.0e})"


def number(value: float) -> str:
    """A value with three significant digits, or without decimals from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def disagreement(record: dict[str, Any]) -> str:
    """A sentence on the largest difference between implementations that compute the same."""
    found = [e["difference"] for row in record["rows"] for e in row["entries"].values() if e.get("same")]
    return f"Results agree to {max(found):.0e} in float64." if found else "Nothing was compared."


def _ratio(above: dict[str, Entry], name: str, below: dict[str, Entry], other: str) -> str:
    time, base = above.get(name, {}).get("ms"), below.get(other, {}).get("ms")
    return NOTHING if time is None or base is None else number(time / base)


def _pamela_to_maml(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The time of our PAMELA divided by that of our MAML in the same measurement."""
    if row["method"] != "pamela":
        return NOTHING
    same = ("row", "order", "precision")
    maml = [r for r in rows if r["method"] == "maml" and all(r.get(key) == row.get(key) for key in same)]
    return _ratio(row["entries"], "pathaware", maml[0]["entries"], "pathaware") if maml else NOTHING


def _megabytes(entry: Entry) -> str:
    value = entry.get("memory_mb")
    return NOTHING if value is None else number(value)
