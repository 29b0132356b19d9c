"""How many of the labels that are marked as suspicious are wrong, and how many wrong labels are marked.

    # results/use/wrong-labels-val.json, to choose the odds
    python -m pathaware_research.studies.wrong_labels --split val
    python -m pathaware_research.studies.wrong_labels                 # results/use/wrong-labels-test.json

A folder has photographs of miniImageNet classes, and some of its labels are replaced by those of other
classes of the folder. The model `photos` marks a label if another one is so many times as probable (the
*odds*), after learning all other photographs (`suspicious_labels`), or all of the other folds (`learn`).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from pathaware.core.seeding import generator
from pathaware.data.catalogue import open_store
from pathaware.inference.influence import suspicious_labels
from pathaware.inference.learning import learn
from pathaware.inference.trained_model import SupportSet, TrainedModel, find_run
from pathaware.training.checksummed import tensor_digest
from pathaware.training.provenance import revision, write_record
from pathaware.training.run_folder import Run

DATA = "miniimagenet"
FOLDERS = ((5, 10, 4), (5, 10, 0), (5, 5, 2), (10, 10, 8))
"""Classes, photographs per class and wrong labels of a folder."""
ODDS = (1, 2, 5, 10, 20, 50, 100)
POOL = 50
"""Photographs per class from which those of all folders are drawn, so that features are computed once."""


def drawn_folder(
    pixels: torch.Tensor, size: tuple[int, int, int], seed: int
) -> tuple[SupportSet, torch.Tensor]:
    """A folder of photographs from `pixels [classes, POOL, …]`, and which of its labels are wrong."""
    ways, shots, wrong = size
    random = generator(seed, "wrong labels", *size)
    classes = torch.randperm(len(pixels), generator=random)[:ways]
    chosen = torch.stack([torch.randperm(pixels.shape[1], generator=random)[:shots] for _ in range(ways)])
    truth = torch.arange(ways).repeat_interleave(shots)
    labels, planted = truth.clone(), torch.randperm(len(truth), generator=random)[:wrong]
    labels[planted] = (labels[planted] + torch.randint(1, ways, (wrong,), generator=random)) % ways
    names = tuple(f"class {i}" for i in range(ways))
    return SupportSet(names, pixels[classes[:, None], chosen].flatten(0, 1), labels), labels != truth


def marks(model: TrainedModel, support: SupportSet) -> dict[str, torch.Tensor]:
    """Per procedure the log-odds `[images]` of the most probable other label and the own one."""
    alone = torch.full((len(support.labels),), -math.inf, dtype=torch.float64)
    for image, score, _ in suspicious_labels(model, support, odds=0):
        alone[image] = -score
    learned = learn(model, support, [str(i) for i in range(len(support.labels))])
    assert learned.predictions is not None
    folds = torch.full_like(alone, -math.inf)
    logarithms = learned.predictions.probabilities.log()
    own = support.labels[learned.test][:, None]
    folds[learned.test] = logarithms.scatter(1, own, -math.inf).amax(1) - logarithms.gather(1, own)[:, 0]
    return {"leave one out": alone, "five folds": folds}


def summary(counts: list[list[int]], wrong: int) -> dict[str, float | None]:
    """Precision, recall and marks per folder, from the numbers of marked and wrong marked labels of each."""
    marked, right = (sum(column) for column in zip(*counts, strict=True))
    return {
        "precision": right / marked if marked and wrong else None,
        "recall": right / (wrong * len(counts)) if wrong else None,
        "marked_per_folder": marked / len(counts),
    }


def measure(model: TrainedModel, split: str, draws: int, seed: int) -> list[dict[str, Any]]:
    store = open_store(DATA)
    spans, images = store.split(split), store.tensor("cpu")
    pools = [
        start + torch.randperm(count, generator=generator(seed, "pool", start))[:POOL]
        for start, count in zip(spans.starts.tolist(), spans.counts.tolist(), strict=True)
    ]
    pixels = torch.stack([images[pool] for pool in pools])
    assert model.memory is not None
    model.memory.most = 4 * pixels.shape[0] * POOL
    rows = []
    for size in FOLDERS:
        counts: dict[str, dict[str, list[list[int]]]] = {}
        for draw in range(draws):
            support, planted = drawn_folder(pixels, size, 1000 * seed + draw)
            for procedure, values in marks(model, support).items():
                for odds in ODDS:
                    marked = values >= math.log(odds)
                    both = [int(marked.sum()), int((marked & planted).sum())]
                    counts.setdefault(procedure, {}).setdefault(f"{odds:g}", []).append(both)
        for procedure, by_odds in counts.items():
            found = {odds: {**summary(each, size[2]), "marked": each} for odds, each in by_odds.items()}
            ways, shots, wrong = size
            row = {"ways": ways, "shots": shots, "wrong": wrong, "procedure": procedure, "odds": found}
            rows.append(row)
            for limit, each in found.items():
                print(*size, procedure, limit, {k: v for k, v in each.items() if k != "marked"}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="file of the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    revision()  # of the code that runs, whatever is committed meanwhile
    rows = measure(TrainedModel.open("photos", "cpu"), options.split, options.draws, options.seed)
    write_record(
        options.record or Path("results/use") / f"wrong-labels-{options.split}.json",
        {
            "study": "wrong labels",
            "data": DATA,
            "split": options.split,
            "draws": options.draws,
            "seed": options.seed,
            "tensors_sha256": tensor_digest(Run.open(find_run("photos")).learned()[0]),
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
