"""The comparison: every contestant checked, then timed beside the others, on the same inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.path import Order
from pathaware.experiments.bench.contestants import COMPILED, ENGINE, LOOP, Contestant, Missing
from pathaware.experiments.bench.peers import PEERS
from pathaware.experiments.bench.timing import in_turns, one_line, warmed_up
from pathaware.experiments.bench.workloads import Inputs, Job, MethodName, What, Workload
from pathaware.training.provenance import commit, environment

SAME = 1e-6
"""Relative difference in float64 up to which two meta-gradients are the same one."""
BURST = 0.1
"""Seconds that a contestant trains for in a turn."""
METHODS: tuple[MethodName, ...] = ("maml", "pamela")
RACES: tuple[tuple[What, Order], ...] = (
    ("training", "second"),
    ("training", "first"),
    ("adaptation", "none"),
)

Entry = dict[str, Any]
"""What a table says of one contestant: `ms`, `quartiles_ms`, `memory_mb`, `difference` and `same`; or
`missing`, why it does not take part; or `error`."""


def contestants(only: Sequence[str] = ()) -> list[Contestant]:
    everyone: list[Contestant] = [ENGINE, COMPILED, LOOP, *PEERS]
    names = [c.name for c in everyone]
    for name in only:
        if name not in names:
            raise UsageError(f"{name!r} is none of {', '.join(names)}", field="only")
    return [c for c in everyone if (c.name in only if only else c is not COMPILED)]


def bench(
    workloads: Sequence[Workload],
    among: Sequence[Contestant],
    *,
    device: torch.device,
    precision: str,
    repeats: int,
    threads: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Everything there is to know of a comparison, as it is kept in a file."""
    rows = []
    for workload in workloads:
        for what, order in RACES:
            report(f"{workload.name}: {what}{'' if order == 'none' else f', {order} order'}")
            jobs = [Job(workload, what, method, order, str(device), precision, threads) for method in METHODS]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # peers are old and PyTorch is new
                rows += race(jobs, among, device, repeats)
    return {
        "bench": "contestants",
        "device": device.type,
        "precision": precision,
        "repeats": repeats,
        "burst_seconds": BURST,
        "contestants": {c.name: _version(c) for c in among},
        "rows": rows,
        "commit": commit(),
        "environment": environment(),
    }


def race(
    jobs: Sequence[Job], among: Sequence[Contestant], device: torch.device, repeats: int
) -> list[dict[str, Any]]:
    """Jobs that differ in their method only, timed in turns with each other; one row for each."""
    jobs[0].config().training.apply()
    inputs = Inputs(jobs[0])
    keys = [(job, c) for job in jobs for c in among]
    references = {job: _computed(ENGINE, job, inputs.episodes) for job in jobs}
    entries: dict[tuple[Job, Contestant], Entry] = {}
    work = {}
    for job, contestant in keys:
        entry = entries[job, contestant] = {}
        try:
            entry.update(_checked(contestant, job, inputs.episodes, references[job]))
            prepare = contestant.training if job.what == "training" else contestant.adaptation
            work[job, contestant], memory = warmed_up(partial(prepare, job, inputs), device)
            entry["memory_mb"] = memory
        except Missing as reason:
            entries[job, contestant] = {"missing": str(reason)}
        except Exception as error:  # a library that fails is a result, and no reason to lose the others'
            entries[job, contestant] = {"error": one_line(error)}
    burst = BURST if jobs[0].what == "training" else 0.0  # an adaptation comes alone
    times, errors = in_turns(work, repeats, device, inputs.turn, burst)
    for key, timing in times.items():
        entries[key].update(timing.to_dict())
    for key, line in errors.items():
        entries[key] = {"error": line}
    return [
        {
            "row": job.workload.name,
            "sizes": job.workload.sizes,
            "what": job.what,
            "order": job.order,
            "method": job.method,
            "threads": torch.get_num_threads(),
            "entries": {c.name: entries[job, c] for c in among},
        }
        for job in jobs
    ]


def _computed(contestant: Contestant, job: Job, episodes: Episodes) -> Tensor:
    exact = episodes.to(dtype=torch.float64)
    if job.what == "training":
        return contestant.meta_gradient(job, exact)
    return contestant.predictions_per_step(job, exact)


def _checked(contestant: Contestant, job: Job, episodes: Episodes, reference: Tensor) -> Entry:
    """Whether it computes what we compute: meta-gradients, or an adapted network's answers, in float64."""
    found = _computed(contestant, job, episodes)
    difference = float((found - reference).norm() / reference.norm())
    return {"difference": difference, "same": difference <= SAME}


def _version(contestant: Contestant) -> str:
    try:
        return contestant.version()
    except Missing as reason:
        return str(reason)
