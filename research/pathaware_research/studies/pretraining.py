"""Pretrainings side by side: how well prototypes of their features separate validation classes.

    pathaware pretrain miniimagenet --head cosine --crop 0.6 --epochs 40 --out trials/crop
    python -m pathaware_research.studies.pretraining trials/*

Prototypes are those of all features, as in `pathaware pretrain` itself, and of up to 128 directions in which
meta-training with `training.head=projected` begins. Tasks are 5-way, views single. The record has the
settings of every pretraining.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pathaware.core.prototype_start import directions
from pathaware.training.pretrained_classifier import PROJECTION, TASKS, read_pretraining, separation
from pathaware.training.provenance import write_record
from pathaware.training.run_folder import PretrainRun
from pathaware.training.tables import Table, markdown

RECORD = Path("results/other/pretraining-miniimagenet.json")
SHOTS = (5, 1)
DIMENSIONS = 128
IRRELEVANT = ("data_dir", "device", "threads", "graph", "validate", "save")


@torch.no_grad()
def measure(folder: Path) -> dict[str, Any]:
    """Settings and accuracies of a pretraining."""
    run = PretrainRun.open(folder)
    images = run.settings.images(["val"])
    found = run.load(images.device)
    features = torch.cat([found.model.features(x) for x in images.plain()])
    rows = read_pretraining(folder)[0].get(PROJECTION)
    if rows is None:
        rows = directions(found.model.head.get_parameter("weight"))
    spaces = {"all": features, "projected": features @ rows.to(features).T[:, :DIMENSIONS]}
    settings = {k: v for k, v in run.settings.to_dict().items() if k not in IRRELEVANT}
    return {
        "name": folder.name,
        "settings": {**settings, "teacher": Path(run.settings.teacher).name},
        "epoch": found.epoch,
        "seconds": [row["seconds"] for row in run.metrics()][-1],
        **{
            space: {str(shots): separation(values, images.counts, shots=shots) for shots in SHOTS}
            for space, values in spaces.items()
        },
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line per set of settings, means over the seeds, the best first."""
    spaces = [(space, shots) for space in ("all", "projected") for shots in SHOTS]
    header = [
        "",
        "epochs",
        "seeds",
        *(f"{shots} shot{'s' * (shots > 1)}, {space}" for space, shots in spaces),
    ]
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((describe(row["settings"]), row["settings"]["epochs"]), []).append(row)
    lines: list[list[str]] = []
    for (parts, epochs), same in groups.items():
        means = [fmean(row[space][str(shots)] for row in same) for space, shots in spaces]
        lines.append([parts, str(epochs), str(len(same)), *(f"{100 * mean:.2f}" for mean in means)])
    lines.sort(key=lambda line: -float(line[-2]))
    return Table.of("", header, lines)


def describe(settings: Mapping[str, Any]) -> str:
    """Describe the parts of a pretraining in a few words."""
    crop = "shifts" if settings["crop"] == 1 else f"crops from {settings['crop']}"
    parts = [crop]
    if settings["teacher"]:
        views = settings["teacher_views"]
        parts.append(f"teacher, {views} stored views" if views else "teacher, every view")
    if settings.get("match"):
        parts.append("and its features")
    if settings["teacher"] and settings["distil"] == 1:
        parts.append("no labels")
    parts += ["rotation"] if settings["rotation"] else []
    parts += ["CutMix"] if settings["cutmix"] else []
    parts += ["no jitter"] if not settings["jitter"] else []
    parts += [f"decay {settings['decay']:g}"] if settings["decay"] != 5e-4 else []
    parts += [f"batches of {settings['batch']}"] if settings["batch"] != 256 else []
    return ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="pretrainings of the same data set")
    parser.add_argument("--record", type=Path, default=RECORD, help="file to write")
    options = parser.parse_args(arguments)
    rows = []
    for folder in options.folders:
        rows.append(measure(folder))
        print(json.dumps(rows[-1]), flush=True)
        write_record(options.record, {"study": "pretraining", "tasks": TASKS, "rows": rows})
    print(markdown(table(rows)))


if __name__ == "__main__":
    main()
