"""Which score tells images of no class best from those of a class, on validation classes.

    # results/use/answers-scores-cifar-fs.json
    python -m pathaware_research.studies.unknown_scores RUN --tasks 200

Tasks have five classes of five images, and queries of five other classes. A score is measured by the area
under the ROC curve and by the share of foreign queries that it refuses if it may refuse 5 % of the known ones
(the threshold is that of the same tasks). Statistics that some scores need are of training classes.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.batch_norm import freeze_batch_norm
from pathaware.core.last_layer import last_linear
from pathaware.core.seeding import generator
from pathaware.data.catalogue import open_store
from pathaware.inference.open_set import area
from pathaware.inference.trained_model import TrainedModel, find_run
from pathaware.training.checksummed import tensor_digest
from pathaware.training.provenance import revision, write_record
from pathaware.training.run_folder import Run

WAYS, SHOTS, QUERIES = 5, 5, 5
STATISTICS = 60
"""Tasks of training classes from which the covariances are estimated."""
SHOWN = 4
"""Images of each training class with which a query is compared."""


def features(network: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs of the last layer `[N, F]`, of any length, and logits."""
    seen: list[Tensor] = []
    handle = last_linear(network)[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    logits = network(x)
    handle.remove()
    return seen[-1].flatten(1).double(), logits.double()


def tasks_of(
    model: TrainedModel, split: str, tasks: int, seed: int, shown: Tensor | None
) -> dict[str, Tensor]:
    """Features and logits of tasks, each `[tasks, …]`, ordered by class; queries of known classes come first.

    `shown` are images `[R, C, size, size]` whose features every adapted network computes too.
    """
    problem: Any = dataclasses.replace(
        model.config.problem, ways=2 * WAYS, shots=SHOTS, queries=QUERIES, augment=False
    )
    source, learner = problem.tasks(split, model.device, torch.float32), model.learner(WAYS)
    found: dict[str, list[Tensor]] = {}
    for task in range(tasks):
        episodes = source.sample(1, generator(seed, "unknown scores", split, task))
        support_x, support_y, x, y = (tensor[0] for tensor in episodes.tensors())
        chosen = support_y.argsort(stable=True)[: WAYS * SHOTS]
        support_x, support_y, x = support_x[chosen], support_y[chosen], x[y.argsort(stable=True)]
        with torch.no_grad():
            network = freeze_batch_norm(learner.adapt(support_x, support_y), support_x)
            parts = {"support": features(network, support_x)[0]}
            parts["query"], parts["logits"] = features(network, x)
            if shown is not None:
                parts["support mirrored"] = features(network, support_x.flip(-1))[0]
                parts["query mirrored"] = features(network, x.flip(-1))[0]
                parts["shown"] = features(network, shown)[0]
        for name, values in parts.items():
            found.setdefault(name, []).append(values)
    return {name: torch.stack(values) for name, values in found.items()}


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def by_class(support: Tensor) -> Tensor:
    """`[tasks, classes, shots, F]`."""
    classes: Tensor = support.unflatten(1, (WAYS, SHOTS))
    return classes


def to_means(support: Tensor, query: Tensor) -> Tensor:
    """Squared distances `[tasks, queries, classes]` to the class means."""
    return torch.cdist(query, by_class(support).mean(2)).square()


def metric(covariance: Tensor, power: float, shrinkage: float) -> Tensor:
    """V diag(w + shrinkage)^power of a covariance whose mean eigenvalue is 1."""
    values, vectors = torch.linalg.eigh(covariance / covariance.diagonal().mean())
    scaled: Tensor = vectors * (values.clamp(min=0) + shrinkage) ** power
    return scaled


def scores(found: dict[str, Tensor], training: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scores `[tasks, queries]` by name; larger means more foreign."""
    support, query, logits = unit(found["support"]), unit(found["query"]), found["logits"]
    distances = to_means(support, query)
    nearest, second = distances.topk(2, largest=False).values.unbind(-1)
    to_images = torch.cdist(query, support).square()
    left_out = (by_class(support) - by_class(support).mean(2, keepdim=True)) * SHOTS / (SHOTS - 1)
    spread = left_out.square().sum(-1).mean(-1)
    centre = support.mean(1, keepdim=True)
    mirrored = [unit(found[name] + found[f"{name} mirrored"]) for name in ("support", "query")]
    seen = unit(training["support"])
    within = (by_class(seen) - by_class(seen).mean(2, keepdim=True)).flatten(0, 2)
    total = seen.flatten(0, 1) - seen.flatten(0, 1).mean(0)
    whitened = metric(within.T @ within, -0.5, 1.0)
    weighted = metric(total.T @ total, 0.25, 0.0)
    means = unit(found["shown"]).unflatten(1, (-1, SHOWN)).mean(2)
    others = torch.cdist(query, means).square().topk(5, largest=False).values.mean(-1)
    return {
        "maximum probability": -logits.softmax(-1).amax(-1),
        "energy": -logits.logsumexp(-1),
        "nearest mean": nearest,
        "nearest mean by spread (ours)": (distances / (1 + spread / spread.mean() / 2)[:, None]).amin(-1),
        "nearest by second nearest": nearest / second,
        "nearest × (nearest by second nearest)": nearest.square() / second,
        "nearest image": to_images.amin(-1),
        "mean of three nearest images": to_images.topk(3, largest=False).values.mean(-1),
        "nearest mean, features centred by task": to_means(unit(support - centre), unit(query - centre)).amin(
            -1
        ),
        "nearest mean, mirrored views": to_means(*mirrored).amin(-1),
        "nearest mean, Mahalanobis": to_means(support @ whitened, query @ whitened).amin(-1),
        "nearest mean, principal directions": to_means(support @ weighted, query @ weighted).amin(-1),
        "nearest mean less training classes": nearest - others,
    }


def combined(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores of known and foreign queries of the second half of the tasks, by a logistic regression on all
    scores that was fitted to the first half."""
    from sklearn.linear_model import LogisticRegression

    half = len(next(iter(values.values()))) // 2
    table = torch.stack([(v - v[:half].mean()) / v[:half].std() for v in values.values()], -1)
    foreign = (torch.arange(table.shape[1]) >= table.shape[1] // 2).expand(table.shape[:2])
    fitted = LogisticRegression(max_iter=1000).fit(table[:half].flatten(0, 1), foreign[:half].flatten())
    result = torch.from_numpy(fitted.decision_function(table[half:].flatten(0, 1)))
    return tuple(result.view(-1, table.shape[1]).chunk(2, dim=1))  # type: ignore[return-value]


def measured(known: Tensor, foreign: Tensor) -> dict[str, float]:
    limits = {share: known.flatten().quantile(1 - share) for share in (0.01, 0.05, 0.1)}
    refused = {f"refused at {share:g}": (foreign > t).double().mean().item() for share, t in limits.items()}
    return {"auroc": area(known, foreign), **refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="file of the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    revision()  # of the code that runs, whatever is committed meanwhile
    model = TrainedModel.open(options.run, "cpu")
    problem: Any = model.config.problem
    store = open_store(problem.data, Path(problem.data_dir) if problem.data_dir else None)
    spans = store.split("train")
    random = generator(options.seed, "unknown scores", "shown")
    chosen = [
        start + torch.randperm(count, generator=random)[:SHOWN]
        for start, count in zip(spans.starts.tolist(), spans.counts.tolist(), strict=True)
    ]
    shown = model.image_input.normalised(store.images[torch.cat(chosen)])
    training = tasks_of(model, "train", STATISTICS, options.seed, None)
    values = scores(tasks_of(model, "val", options.tasks, options.seed, shown), training)
    rows = {name: measured(*each.chunk(2, dim=1)) for name, each in values.items()}
    rows["logistic regression on all of these (half of the tasks)"] = measured(*combined(values))
    record = options.record or Path("results/use") / f"answers-scores-{problem.data}.json"
    content = {
        "study": "scores",
        "data": problem.data,
        "method": model.config.method,
        "tensors_sha256": tensor_digest(Run.open(find_run(options.run)).learned()[0]),
        "ways": WAYS,
        "shots": SHOTS,
        "split": "val",
        "tasks": options.tasks,
        "seed": options.seed,
    }
    write_record(record, {**content, "measured": rows})
    for name, row in rows.items():
        print(f"{name:55} {row['auroc']:.3f} {100 * row['refused at 0.05']:.1f} %")


if __name__ == "__main__":
    main()
