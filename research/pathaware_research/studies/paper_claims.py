"""The paper's derivations in section 3.2 and its claims about Figs 4 and 5, on sine waves.

    python -m pathaware_research.studies.paper_claims --record results/other/paper-claims-sine.json

K = 10, the paper's settings (4 tasks, constant rate, no guard and no clipping) for 20,000 iterations; float64
afterwards. With w the interval, gⱼ the inner gradients and G = ∇L_query(θₙ):

    sum identity    θⱼ₊₁ = θⱼ₋w − (1 − Pⱼ) Σ_{s=0…w} Qⱼ₋ₛ gⱼ₋ₛ, relative to ‖θⱼ₊₁ − θⱼ₋w‖, after each skip
    meta-gradient   ∇_{θ₀} L_query(θₙ) ≈ G (1 − P̂) + G_MAML with P̂ = Σ (1 − P_r), beside G_MAML alone; Q = I
                    and n mod w = 0 as there: four steps, w = 2. P̂ is also tried as the mean of 1 − P_r
    smoother        ∫|f″| of the adapted curve, divided by that of the wave
    overshoots      the share of tasks whose error grows with the fourth step and shrinks with the fifth
    less varied     the standard deviation of the error over tasks after each step, to twice the steps
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import pathaware
from pathaware.core.learner import MetaLearner
from pathaware.core.seeding import generator
from pathaware.data import SineWaves
from pathaware.methods import Pamela
from pathaware.models import mlp
from pathaware.training.provenance import revision, write_record
from pathaware.training.tables import NOTHING, Table, pipe_table
from pathaware_research.records import measurement

METHODS: dict[str, Callable[..., MetaLearner]] = {
    "maml": pathaware.maml,
    "meta-sgd": pathaware.meta_sgd,
    "pamela": pathaware.pamela,
}
RECORD = "other/paper-claims-sine"
DEVIATIONS = (1, 3, 4, 5, 10)
"""Steps whose deviation a table shows; beyond the trained ones the last step is repeated."""
SKIPS = (0.05, 0.1, 0.25, 0.5, 0.75)
"""Values of P for the meta-gradient."""


def trained(method: str, seed: int, iterations: int) -> MetaLearner:
    torch.manual_seed(seed)
    learner = METHODS[method](mlp(), mse_loss, guard=False)
    pathaware.fit(learner, SineWaves(shots=10), iterations, seed=seed)
    return learner.double()


def waves(tasks: int, queries: int) -> pathaware.Episodes:
    source = SineWaves(shots=10, queries=queries, grid=True, dtype=torch.float64)
    return source.sample(tasks, generator(0, "paper claims"))


def quartiles(values: Tensor) -> list[float]:
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype)
    return [round(value, 4) for value in values.quantile(shares).tolist()]


def sum_identity(learner: MetaLearner, tasks: int) -> dict[str, list[float]]:
    """Quartiles of the relative error of the sum after each skip."""
    rule, episodes = learner.rule, waves(tasks, 10)
    assert isinstance(rule, Pamela)
    gradients: list[Tensor] = []

    def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
        losses, found = learner.gradient_at(point, episodes.support_x, episodes.support_y)
        gradients.append(found)
        return losses, found

    context = learner.context(episodes.support_x, episodes.support_y)
    points = learner.unroll(context, rule.steps, gradient).points
    steps, p = rule.per_parameter()
    found = {}
    for skip, j in enumerate(rule.skips):
        w = rule.interval
        total = sum(steps[s] * gradients[s] for s in range(j - w, j + 1))
        printed = points[j - w] - (1 - p[skip]) * total
        moved = torch.linalg.vector_norm(points[j + 1] - points[j - w], dim=1)
        error = torch.linalg.vector_norm(points[j + 1] - printed, dim=1) / moved
        found[f"after step {j + 1}"] = quartiles(error.detach())
    return found


def gradients_at(learner: MetaLearner, episodes: pathaware.Episodes) -> tuple[Tensor, Tensor]:
    """The meta-gradient of θ₀ and G, each `[T, D]`, and one task after another: θ₀ is a leaf of each."""
    start = learner.rule.layout.flatten(learner.model).detach().expand(len(episodes), -1).requires_grad_()
    x, y = episodes.support_x, episodes.support_y

    def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
        return learner.gradient_at(point, x, y, create_graph=True)

    points = [start]
    for j in range(learner.rule.steps):
        points.append(learner.rule.step(j, points, gradient(j, points[-1])[1]))
    losses = learner.execution.query_losses(points[-1], episodes.query_x, episodes.query_y).sum()
    meta, end = torch.autograd.grad(losses, [start, points[-1]])
    return meta, end


def meta_gradient(learner: MetaLearner, tasks: int) -> dict[str, dict[str, list[float]]]:
    """Quartiles over tasks of the relative errors of the paper's approximations, by P."""
    episodes, found = waves(tasks, 10), {}
    plain, _ = gradients_at(_with(learner, 0.0), episodes)
    for p in SKIPS:
        exact, end = gradients_at(_with(learner, p), episodes)
        size = torch.linalg.vector_norm(exact, dim=1)
        candidates = {
            "G_MAML": plain,
            "G (1 - sum) + G_MAML": end * (1 - 3 * (1 - p)) + plain,  # r = 0, 1, 2 for n // w = 2
            "G (1 - mean) + G_MAML": end * p + plain,
        }
        found[f"P = {p}"] = {
            name: quartiles(torch.linalg.vector_norm(each - exact, dim=1) / size)
            for name, each in candidates.items()
        }
    return found


def _with(learner: MetaLearner, p: float) -> MetaLearner:
    """The same network with Q = I, four steps of 0.01 and this P."""
    rule = Pamela(learner.rule.layout, 4, q="constant", p_start=p).double()
    return MetaLearner(learner.model, rule, learner.loss, guard=False)


@torch.no_grad()
def curves(learner: MetaLearner, tasks: int) -> dict[str, Any]:
    """How smooth the curves are, and the errors after each step."""
    episodes = waves(tasks, 1001)
    steps = 2 * learner.rule.steps
    found = learner.predictions_per_step(*episodes.tensors()[:3], steps=steps, extend=True).outputs
    errors = torch.stack([(each - episodes.query_y).square().mean((1, 2)) for each in found])

    def bend(y: Tensor) -> Tensor:
        return y.diff(dim=1).diff(dim=1).abs().sum((1, 2))

    after = learner.rule.steps
    result: dict[str, Any] = {
        "bend": quartiles(bend(found[after]) / bend(episodes.query_y)),
        "mean": [round(float(e.mean()), 4) for e in errors],
        "median": [round(float(e.median()), 4) for e in errors],
        "deviation": [round(float(e.std()), 4) for e in errors],
    }
    if after >= 5:
        grows = errors[4] > errors[3]
        result["grows with step 4"] = float(grows.float().mean())
        result["and shrinks with step 5"] = float((grows & (errors[5] < errors[4])).float().mean())
    return result


def blocks(results: Path) -> dict[str, str]:
    """Tables of the record: how methods adapt, and the errors of the paper's meta-gradient."""
    runs = measurement(results, RECORD)["runs"]
    rows = []
    for method in METHODS:
        found = [run for run in runs if run["method"] == method]

        def average(name: str, place: int, found: list[dict[str, Any]] = found) -> str:
            values = [run[name][place] for run in found if place < len(run[name])]
            return f"{sum(values) / len(values):.3g}" if values else NOTHING

        grows = [run["grows with step 4"] for run in found if "grows with step 4" in run]
        share = f"{100 * sum(grows) / len(grows):.0f} %" if grows else NOTHING
        deviations = [average("deviation", step) for step in DEVIATIONS]
        rows.append((method, str(len(found)), average("bend", 1), share, *deviations))
    header = ("method", "seeds", "bend", "grows with step 4", *(f"deviation after {s}" for s in DEVIATIONS))
    errors = [run["meta-gradient"] for run in runs if "meta-gradient" in run]
    names = list(errors[0][f"P = {SKIPS[0]}"])
    by_p = [
        (f"P = {p}", *(f"{sum(each[f'P = {p}'][n][1] for each in errors) / len(errors):.2f}" for n in names))
        for p in SKIPS
    ]
    return {
        "paper-claims": pipe_table(Table.of("", header, rows)),
        "paper-gradients": pipe_table(Table.of("", ("", *names), by_p)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--record", type=Path, help="file of the record")
    options = parser.parse_args()
    revision()  # the record names the code that runs now
    runs = []
    for seed in range(options.seeds):
        for method in METHODS:
            learner = trained(method, seed, options.iterations)
            run = {"method": method, "seed": seed, **curves(learner, options.tasks)}
            if method == "pamela":
                run["sum identity"] = sum_identity(learner, options.tasks)
                run["meta-gradient"] = meta_gradient(learner, options.tasks)
            print(run, flush=True)
            runs.append(run)
    if options.record:
        settings = {name: getattr(options, name) for name in ("iterations", "seeds", "tasks")}
        write_record(options.record, {"problem": "sine, K = 10", **settings, "runs": runs})


if __name__ == "__main__":
    main()
