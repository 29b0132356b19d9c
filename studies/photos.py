"""The model `photos`: meta-train its adaptation, ship it, and measure it beside simple classifiers.

    pathaware pretrain miniimagenet --model resnet12 --width 64,128,256,480 --head cosine --crop 0.35 \
        --cutmix 0.5 --rotation 0.5 --set warmup=1 --set batch=256 --set rate=0.1 --out runs/backbone
    pathaware data import grocery --from FOLDER --proportions 0.01,0,0.99     # 80 of 81 classes are tested
    python -m studies.photos features runs/backbone runs/features   # of all images, minutes on a GPU
    python -m studies.photos choose results                         # the penalty of logistic regression
    python -m studies.photos train runs/backbone runs/photos        # minutes on a CPU
    python -m studies.photos ship runs/photos                       # into the package, in half precision
    python -m studies.photos evaluate results                       # the tables of docs/photos.md
    python -m studies.photos fixed runs/backbone runs results       # beside models for one size of task
    python -m studies.photos calibrate results                      # temperatures and thresholds, measured
    python -m studies.photos card results                           # accuracies in the model's card
    python -m studies.photos time results                           # seconds per photograph, on idle cores

All commands but `features`, `ship`, `card` and `time` take `--features runs/features`: float16 arrays
`DATA-plain.npy` and `DATA-mirror.npy` of all images in the order of the store. A few of them are compared
with the backbone's own. Images of another size are scaled to 84 × 84. The images of grocery are those of
Klasson, Zhang and Kjellström (WACV 2019), one folder for each of the 81 classes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.learner import FewShotLearner
from pathaware.core.seeding import generator
from pathaware.data.catalogue import open_store
from pathaware.data.pixels import ImageInput
from pathaware.data.store import ImageStore
from pathaware.inference.calibration import Calibration, fit_cell
from pathaware.inference.change_ways import load_for
from pathaware.inference.open_set import area, open_tasks, scores
from pathaware.inference.trained_model import SHIPPED, TrainedModel, find_run
from pathaware.models.backbones import FrozenBackbone, frozen_backbone
from pathaware.training.checksummed import read_checksummed, tensor_digest, write_checksummed
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate, interval_over_tasks, tasks_for
from pathaware.training.features import BASELINES, BATCH, ON_A_CPU, FeatureBaseline, seed_cache
from pathaware.training.metric import reliability
from pathaware.training.provenance import encode_values, evaluation_record, revision, write_record
from pathaware.training.run_folder import CHECKPOINT, CONFIG, METRICS, PROVENANCE, Run
from pathaware.training.session import TrainingSession

SETTINGS: list[tuple[int, int]] = [(5, 1), (5, 5), (10, 1), (10, 5), (20, 1), (20, 5)]
"""Ways and shots of the table."""
DATA = ("miniimagenet", "cifar-fs", "grocery")
SOURCES = (("miniimagenet", "val"), ("cifar-fs", "train"))
"""Classes of the tasks that meta-train; the network has seen none of them."""
VALIDATION = (("miniimagenet", "val"), ("cifar-fs", "val"))
PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""Values of C of logistic regression to choose from."""
TASKS = 600


def config(backbone: Path, size: tuple[int, int] | None = None, **training: Any) -> Config:
    """The settings of the model that ships, or of one for tasks of these ways and shots only."""
    problem = {
        "name": "classification",
        "data": "miniimagenet",
        "model_name": "resnet12",
        "widths": "64,128,256,480",
        "weights": str(backbone / CHECKPOINT),
        "adapt": "head",
        "ways": 16,
        "shots": 20,
        "varying": True,
        "meta_split": "val",
        "mirror_support": True,
    }
    if size is not None:
        problem |= {"ways": size[0], "shots": size[1], "varying": False}
    chosen = {"iterations": 800, "tasks": 8, "rate": 0.02, "device": "cpu", "validate": 0, **training}
    method = {"name": "proto-pamela", "adaptive": True, "power": 0.8, "steps": 10, "rate": 0.3, "anchors": 64}
    return Config.from_dict({"problem": problem, "method": method, "training": chosen})


@dataclass(frozen=True)
class MixedPlan:
    """A plan of tasks from one of several sources."""

    source: int
    plan: Any

    def __len__(self) -> int:
        return len(self.plan)

    def share(self, worker: int, workers: int) -> MixedPlan:
        return MixedPlan(self.source, self.plan.share(worker, workers))


class MixedTasks(TaskSource):
    """Each batch of tasks is of one of these sources, at random. No task mixes the classes of two."""

    def __init__(self, sources: list[TaskSource]) -> None:
        self.sources, self.capturable = sources, False

    def draw(self, tasks: int, generator: torch.Generator) -> MixedPlan:
        chosen = int(torch.randint(len(self.sources), (), generator=generator))
        return MixedPlan(chosen, self.sources[chosen].draw(tasks, generator))

    def gather(self, plan: MixedPlan) -> Episodes:
        return self.sources[plan.source].gather(plan.plan)


def train_on_sources(settings: Config, out: Path) -> None:
    """Meta-train on tasks of all sources."""
    problem: Any = settings.problem
    with TrainingSession(Run.create(out, settings)) as session:
        sources = []
        for data, split in SOURCES:
            there = dataclasses.replace(problem, data=data, meta_split=split)
            source = there.tasks("train", settings.training.torch_device, settings.training.torch_dtype)
            sources.append(tasks_for(session.trainer.learner, there, source))
        session.trainer.source = session.trainer.meta.source = MixedTasks(sources)
        while not session.done:
            session.advance()


def use_features(
    folder: Path,
    backbone: FrozenBackbone,
    form: ImageInput,
    stores: dict[str, ImageStore] | None = None,
    splits: tuple[str, ...] = ("train", "val", "test"),
) -> None:
    """Put features from files into the cache, after comparing some with the backbone's own."""
    for name, store in (stores or {name: open_store(name) for name in DATA}).items():
        for view in ("plain", "mirror"):
            table = torch.from_numpy(np.load(folder / f"{name}-{view}.npy"))
            check(store, table, backbone, form, mirrored=view == "mirror")
            for split in splits:
                classes = store.split(split)
                if not len(classes):
                    continue
                spans = zip(classes.starts.tolist(), classes.counts.tolist(), strict=True)
                members = torch.cat([torch.arange(start, start + count) for start, count in spans])
                seed_cache(store, members, backbone, table[members], mirrored=view == "mirror")


def shown(store: ImageStore, chosen: torch.Tensor, form: ImageInput, *, mirrored: bool) -> torch.Tensor:
    """These images as the network takes them."""
    pixels = store.images[chosen].float()
    if store.shape[1] != form.size:
        pixels = F.interpolate(pixels, (form.size, form.size), mode="bicubic", antialias=True).clamp(0, 255)
    x = form.normalised(pixels)
    return x.flip(-1) if mirrored else x


@torch.no_grad()
def check(
    store: ImageStore, table: torch.Tensor, backbone: FrozenBackbone, form: ImageInput, *, mirrored: bool
) -> None:
    chosen = torch.linspace(0, len(store) - 1, 4).long()
    found = backbone(shown(store, chosen, form, mirrored=mirrored))
    likeness = F.cosine_similarity(found, table[chosen].float())
    if likeness.min() < 0.99:
        raise SystemExit(
            f"features of {store.name} are not those of this backbone: cosine {likeness.min():.3f}"
        )


@torch.no_grad()
def write_features(backbone: Path, folder: Path) -> None:
    """Compute the features of all images of all data sets, plain and mirrored."""
    problem: Any = config(backbone).problem
    network, form = frozen_backbone(problem.model()), ImageInput.from_dict(problem.inputs())
    assert network is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, at_once = network.eval().to(device), BATCH if device.type == "cuda" else ON_A_CPU
    folder.mkdir(parents=True, exist_ok=True)
    for store in map(open_store, DATA):
        for view in ("plain", "mirror"):
            parts = torch.arange(len(store)).split(at_once)
            images = (shown(store, part, form, mirrored=view == "mirror") for part in parts)
            table = torch.cat([network(x.to(device)).half().cpu() for x in images])
            np.save(folder / f"{store.name}-{view}.npy", table.numpy())
            print(store.name, view, tuple(table.shape), flush=True)


def train(backbone: Path, out: Path, features: Path | None) -> None:
    use_features_of(config(backbone), features)
    train_on_sources(config(backbone), out)


def use_features_of(settings: Config, features: Path | None) -> None:
    if features:
        problem: Any = settings.problem
        network = frozen_backbone(problem.model())
        assert network is not None
        use_features(features, network.eval(), ImageInput.from_dict(problem.inputs()))


def ship(folder: Path) -> None:
    """Copy the run into the package: the frozen network in half precision."""
    run, target = Run.open(folder), SHIPPED / "photos"
    target.mkdir(exist_ok=True)
    tensors, about = read_checksummed(folder / CHECKPOINT)
    halved = {n: v.half() if ".backbone." in n and v.is_floating_point() else v for n, v in tensors.items()}
    # The path of the weights was that of a folder on one machine, and they are in the checkpoint.
    settings = dataclasses.replace(
        run.config, problem=dataclasses.replace(run.config.problem, weights="pretrained")
    )
    about["config"], about["inputs"] = settings.to_dict(), run.config.problem.inputs()
    write_checksummed(target / CHECKPOINT, halved, about)
    (target / CONFIG).write_text(settings.to_toml(), encoding="utf-8")
    for name in (METRICS, PROVENANCE):
        (target / name).write_bytes((folder / name).read_bytes())


def choose(results: Path, features: Path | None) -> None:
    """Choose C of logistic regression on validation classes: the best mean over data, ways and shots."""
    run = opened(features)
    rows = []
    for data, split in VALIDATION:
        for ways, shots in ((5, 1), (5, 5), (10, 1), (10, 5)):
            learner, problem = load_for(run, "cpu", ways, shots)
            there = dataclasses.replace(problem, data=data)  # type: ignore[type-var]
            found: dict[str, Any] = {"data": data, "split": split, "ways": ways, "shots": shots}
            for penalty in PENALTIES:
                baseline = FeatureBaseline(learner, "logistic", penalty=penalty)
                result = evaluate(baseline, there, split=split, tasks=200, queries="alone")
                found[f"{penalty:g}"] = with_interval(result.values[:, -1])
            rows.append(found)
            print(found, flush=True)
    means = {f"{c:g}": sum(row[f"{c:g}"]["mean"] for row in rows) / len(rows) for c in PENALTIES}
    chosen = float(max(means, key=lambda name: means[name]))
    write_record(
        results / "photos-logistic.json", {"tasks": 200, "rows": rows, "means": means, "chosen": chosen}
    )
    print(means, chosen)


def opened(features: Path | None) -> Run:
    """The shipped run; its features are put into the cache."""
    run = Run.open(find_run("photos"))
    if features:
        network = frozen_backbone(run.load("cpu").model)
        assert network is not None
        use_features(features, network.eval(), ImageInput.from_dict(run.learned()[1]))
    return run


def measure(results: Path, features: Path | None) -> None:
    """Accuracy on test classes by ways and shots, each photograph on its own, beside the baselines.

    All use the same features: of support photographs the mean over both views, of queries the plain view.
    """
    run, rows = opened(features), []
    chosen = json.loads((results / "photos-logistic.json").read_text(encoding="utf-8"))["chosen"]
    for data in DATA:
        for ways, shots in SETTINGS:
            learner, problem = load_for(run, "cpu", ways, shots)
            there = dataclasses.replace(problem, data=data)  # type: ignore[type-var]
            learners: dict[str, FewShotLearner] = {"photos": learner.eval()}
            learners |= {name: FeatureBaseline(learner, name) for name in BASELINES}
            learners["logistic-chosen"] = FeatureBaseline(learner, "logistic", penalty=chosen)
            found: dict[str, Any] = {"data": data, "ways": ways, "shots": shots}
            values = {}
            for name, each in learners.items():
                result = evaluate(each, there, tasks=TASKS, queries="alone")
                values[name] = result.values[:, -1]
                found[name] = {**result.summary(), "task_values": encode_values(values[name])}
            found["lead"] = {
                name: with_interval(values["photos"] - values[name]) for name in learners if name != "photos"
            }
            rows.append(found)
            print(
                data,
                ways,
                shots,
                {name: f"{100 * found[name]['accuracy']:.2f}" for name in learners},
                {name: f"{100 * v['mean']:.2f} ± {100 * v['ci95']:.2f}" for name, v in found["lead"].items()},
                flush=True,
            )
            # After every row, so that a stopped evaluation leaves what it has.
            content = evaluation_record(run, result)
            kept = ("config", "checkpoint_sha256", "tensors_sha256", "trained_with", "training_iterations")
            write_record(
                results / "photos.json",
                {**{key: content[key] for key in kept}, "penalty_chosen": chosen, "rows": rows},
            )


def measure_fixed(backbone: Path, runs: Path, results: Path, features: Path | None) -> None:
    """Meta-train for five classes of one and of five photographs only, and compare on the same test tasks."""
    run, rows = Run.open(find_run("photos")), []
    for ways, shots in ((5, 1), (5, 5)):
        settings = config(backbone, (ways, shots))
        out = runs / f"photos-{ways}way-{shots}shot"
        use_features_of(settings, features)
        if not (out / CHECKPOINT).exists():
            train_on_sources(settings, out)
        special = Run.open(out)
        for data in DATA:
            values = {}
            for name, each in (("photos", run), ("for this size only", special)):
                learner, problem = load_for(each, "cpu", ways, shots)
                there = dataclasses.replace(problem, data=data)
                values[name] = evaluate(learner.eval(), there, tasks=TASKS, queries="alone").values[:, -1]
            difference = values["photos"] - values["for this size only"]
            found = {name: with_interval(each) for name, each in values.items()}
            rows.append(
                {"data": data, "ways": ways, "shots": shots, **found, "difference": with_interval(difference)}
            )
            print(rows[-1], flush=True)
    write_record(results / "photos-fixed.json", {"tasks": TASKS, "rows": rows, **digests(run)})


def with_interval(values: torch.Tensor) -> dict[str, float]:
    return {"mean": values.double().mean().item(), "ci95": interval_over_tasks(values.double())}


def digests(run: Run) -> dict[str, str]:
    return {"tensors_sha256": tensor_digest(run.learned()[0])}


SIZES = [(ways, shots) for ways in (2, 5, 10) for shots in (1, 5, 20)]
"""Ways and shots that are calibrated."""


def parts_of_test(store: ImageStore, parity: int) -> ImageStore:
    """The test classes of a store in two parts: every other one is in `val`, to calibrate on, the others in
    `test`, to measure on."""
    classes, test = [], 0
    for span in store.manifest.classes:
        split = "train"
        if span.split == "test":
            split = "val" if test % 2 == parity else "test"
            test += 1
        classes.append(dataclasses.replace(span, split=split))  # type: ignore[arg-type]
    return ImageStore(dataclasses.replace(store.manifest, classes=tuple(classes)), store.images, store.folder)


def calibrate(results: Path, features: Path | None) -> None:
    """Fit temperatures and thresholds on the test classes of miniImageNet, which no part of the model has
    seen. They are measured on classes that they were not fitted to: each half of the test classes with those
    of the other half, and the other data sets with all of them."""
    torch.set_num_threads(1)
    model, run = TrainedModel.open("photos", "cpu"), Run.open(find_run("photos"))
    own, *others = (open_store(name) for name in DATA)
    halves = [parts_of_test(own, parity) for parity in (0, 1)]
    if features:
        network = frozen_backbone(model.learner(5).model)
        assert network is not None
        for store in (own, *others, *halves):
            use_features(features, network.eval(), model.image_input, {store.name: store}, ("val", "test"))
    measured = [(5, 1), (5, 5), (5, 20)]
    by_half = [fit(model, store, "val", measured) for store in halves]
    shipped = fit(model, own, "test", SIZES)
    shipped.write(SHIPPED / "photos")
    rows = []
    for name, tests in (
        ("miniimagenet", list(zip(halves, by_half, strict=True))),
        *((store.name, [(store, shipped)]) for store in others),
    ):
        for ways, shots in measured:
            found = measure_confidence(model, tests, ways, shots)
            rows.append({"data": name, "ways": ways, "shots": shots, **found})
            print(name, ways, shots, found, flush=True)
    write_record(results / "photos-calibration.json", {"tasks": TASKS, "rows": rows, **digests(run)})


def fit(model: TrainedModel, store: ImageStore, split: str, sizes: list[tuple[int, int]]) -> Calibration:
    """Temperatures and thresholds from the classes of a split."""
    cells = []
    for ways, shots in sizes:
        size: dict[str, Any] = {"ways": ways, "shots": shots, "queries": 5, "tasks": 500 // ways, "seed": 0}
        found = list(open_tasks(model, split=split, foreign=False, store=store, **size))
        cells.append(fit_cell(ways, shots, found))
    return Calibration(tuple(cells), "test classes of miniImageNet")


def measure_confidence(
    model: TrainedModel, tests: list[tuple[ImageStore, Calibration]], ways: int, shots: int
) -> dict[str, Any]:
    """Calibration error before and after, and the shares refused as unknown, over the tests of all stores."""
    size: dict[str, Any] = {"ways": ways, "shots": shots, "queries": 5, "tasks": TASKS // len(tests)}
    before, after, truths, areas, temperatures = [], [], [], [], []
    refused: dict[float, list[torch.Tensor]] = {}
    for store, fitted in tests:
        found = list(open_tasks(model, split="test", store=store, seed=1, **size))
        logits = torch.stack([task.logits for task in found])
        temperatures.append(fitted.temperature(ways, shots))
        before.append(logits)
        after.append(logits / temperatures[-1])
        truths.append(torch.stack([task.labels for task in found]))
        weight = fitted.spread_weight(ways, shots)
        known, foreign = (scores(found, weight, foreign=each)["distance"] for each in (False, True))
        areas.append(area(known, foreign))
        for share in (0.01, 0.05, 0.1):
            limit = fitted.threshold(share, ways, shots)
            both = torch.stack([(each > limit).double().mean(1) for each in (known, foreign)])
            refused.setdefault(share, []).append(both)
    truth = torch.cat(truths)
    shares = {share: torch.cat(parts, dim=1) for share, parts in refused.items()}
    return {
        "accuracy": with_interval((torch.cat(before).argmax(-1) == truth).double().mean(1)),
        "temperature": sum(temperatures) / len(temperatures),
        "calibration_error": reliability(torch.cat(before), truth).error,
        "calibrated_error": reliability(torch.cat(after), truth).error,
        "auroc": sum(areas) / len(areas),
        "refused": [
            {"asked": share, "known": with_interval(both[0]), "foreign": with_interval(both[1])}
            for share, both in shares.items()
        ],
    }


def measure_time(results: Path) -> None:
    """Seconds to learn five classes of five photographs, and per further photograph.

    First CPU time of one core, which does not depend on what else the machine does; then wall-clock time on
    all cores, which must be idle.
    """
    torch.set_num_threads(1)
    found: dict[str, Any] = {f"{name}_cpu_s": value for name, value in timed(time.process_time).items()}
    torch.set_num_threads(os.cpu_count() or 1)
    found |= {f"{name}_wall_s": value for name, value in timed(time.perf_counter).items()}
    found["load_average"] = os.getloadavg()[0]
    size = sum(path.stat().st_size for path in (SHIPPED / "photos").iterdir())
    digest = hashlib.sha256((SHIPPED / "photos" / CHECKPOINT).read_bytes()).hexdigest()
    write_record(results / "photos-time.json", {**found, "model_bytes": size, "checkpoint_sha256": digest})
    print(found, size)


def timed(clock: Callable[[], float]) -> dict[str, float]:
    """Seconds by this clock, with a model that remembers nothing."""
    pixels = torch.randint(0, 256, (60, 3, 84, 84), dtype=torch.uint8, generator=generator(0, "time"))
    labels = torch.arange(5).repeat_interleave(5)
    model = TrainedModel.open("photos", "cpu")
    model.adapt(pixels[-10:], labels[:10] // 5, 2)  # opens what is opened once
    started = clock()
    adapted = model.adapt(pixels[:25], labels, 5)
    learning, labelling = clock() - started, []
    for i in range(25, 40):
        started = clock()
        adapted.probabilities(pixels[i : i + 1])
        labelling.append(clock() - started)
    started = clock()
    model.adapt(pixels[:25], labels, 5)
    return {
        "learn_25_photographs": learning,
        "learn_them_again": clock() - started,
        "label_one_photograph": sorted(labelling)[len(labelling) // 2],
    }


def write_card(results: Path) -> None:
    """Write the accuracies of the record into the model's card, a line per data set, ways and shots."""
    path = SHIPPED / "photos" / "card.toml"
    names = {
        "miniimagenet": "miniImageNet",
        "cifar-fs": "CIFAR-FS (scaled up)",
        "grocery": "Grocery Store (of a kind not trained on)",
    }
    lines = []
    for row in json.loads((results / "photos.json").read_text(encoding="utf-8"))["rows"]:
        own, mean, logistic = (
            100 * row[k]["accuracy"] for k in ("photos", "nearest-mean", "logistic-chosen")
        )
        task = f"{names[row['data']]}, {row['ways']} classes, {row['shots']} per class"
        spread = 100 * row["photos"]["accuracy_ci95"]
        others = f"nearest class mean {mean:.1f}, logistic regression {logistic:.1f}"
        lines.append(f"{task}: {own:.1f} % ± {spread:.1f} ({others})")
    listed = (
        "accuracy = [\n" + "".join(f"    {json.dumps(line, ensure_ascii=False)},\n" for line in lines) + "]\n"
    )
    text = re.sub(
        r"accuracy = \[.*?\]\n", lambda _: listed, path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        choices=("features", "choose", "train", "ship", "evaluate", "fixed", "calibrate", "card", "time"),
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--features", type=Path)
    given = parser.parse_args()
    revision()  # of the code that runs, whatever is written meanwhile
    if given.what == "features":
        write_features(*given.paths)
    elif given.what == "choose":
        choose(*given.paths, given.features)
    elif given.what == "train":
        train(*given.paths, given.features)
    elif given.what == "ship":
        ship(*given.paths)
    elif given.what == "evaluate":
        measure(*given.paths, given.features)
    elif given.what == "fixed":
        measure_fixed(*given.paths, given.features)
    elif given.what == "calibrate":
        calibrate(*given.paths, given.features)
    elif given.what == "card":
        write_card(*given.paths)
    else:
        measure_time(*given.paths)


if __name__ == "__main__":
    main()
