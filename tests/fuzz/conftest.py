"""Replaces training and drawing: the tests cover everything before them."""

from __future__ import annotations

import shutil
import socket
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pathaware.data.catalogue import open_store
from pathaware.data.importers.folder import FolderImporter
from pathaware.data.importing import import_dataset
from pathaware.data.pixels import ImageFormat
from pathaware.inference import calibration
from pathaware.inference.class_folders import read_labelled
from pathaware.inference.learning import learn, save_classifier
from pathaware.inference.trained_model import TrainedModel
from pathaware.training import evaluation
from pathaware.training.config import Config
from pathaware.training.settings import Pretraining
from pathaware.training.supervised import pretrain
from pathaware.training.tables import Table
from pathaware.training.train import train
from pathaware_research.paper.time_estimate import TimeEstimate
from tests.data.image_trees import class_folder
from tests.fuzz.lines import BACKBONE, CLASSIFIER, FROZEN, MODEL, PRETRAINED, RUN
from tests.models.residual18 import pretrained

# Imported before anything is replaced, because a module that imports a replacement would keep it.
for _module in (
    "pathaware_research.bench.comparison",
    "pathaware_research.bench.scaling",
    "pathaware_research.online.comparison",
    "pathaware_research.verification",
    "pathaware.report.run_report",
    "pathaware_research.paper.targets",
    "pathaware.sweep.search",
    "pathaware.training.distributed",
    "pathaware.training.supervised",
    "pathaware.training.train",
):
    import_module(_module)


def accepted(*_: object, **__: object) -> None:
    """Replaces minutes of work: all input was accepted."""
    sys.exit(0)


def not_served(_: object, bound: socket.socket, *__: object) -> None:
    bound.close()
    sys.exit(0)


@dataclass(frozen=True)
class Folders:
    """Folders and files by the names that command lines give them."""

    root: Path

    def copy_to(self, folder: Path, line: list[str]) -> None:
        """Copy those that a command line names: a command may change them."""
        for path in self.root.iterdir():
            if any(path.name in word for word in line):
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A run on waves, one on images, a saved classifier, a pretraining, and weights of a backbone."""
    torch.set_default_dtype(torch.float32)
    root, given = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("given")
    tables = {"problem": {"name": "sine"}, "method": {"name": "pamela"}, "training": {"iterations": 2}}
    train(Config.from_dict(tables), root / RUN)
    for number, name in enumerate("abcdefghijkl"):
        class_folder(given / ("train", "val", "test")[number // 4] / name, 20, first=100 * number)
    import_dataset("shapes", FolderImporter(ImageFormat(16, 3)), given)
    problem = {"name": "classification", "data": "shapes", "ways": 2, "shots": 1, "queries": 2}
    training = {"iterations": 2, "tasks": 1, "snapshots": 2, "validate": 1, "validation_tasks": 2}
    tables = {"problem": {**problem, "width": 4}, "method": {"name": "pamela"}, "training": training}
    train(Config.from_dict(tables), root / MODEL)
    save_file(dict(pretrained(channels=3).state_dict()), root / "weights.safetensors")
    problem |= {"model_name": BACKBONE, "weights": str(root / "weights.safetensors"), "adapt": "head"}
    tables = {"problem": problem, "method": {"name": "proto-pamela"}, "training": {"iterations": 1}}
    train(Config.from_dict(tables), root / FROZEN)
    calibration.fit_calibration(TrainedModel.open(root / FROZEN), tasks=1).write(root / FROZEN)
    for name in "abc":
        class_folder(given / "few" / name, 2, first=ord(name))
    model = TrainedModel.open(root / MODEL)
    labelled = read_labelled(given / "few", model.image_input)
    save_classifier(learn(model, labelled.support, labelled.names), model, root / CLASSIFIER)
    settings = {"data": "shapes", "width": 4, "epochs": 1, "precision": "fp32", "device": "cpu", "threads": 1}
    pretrain(Pretraining.from_dict(settings), root / PRETRAINED)
    return Folders(root)


@pytest.fixture(autouse=True)
def _quick(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch.set_default_dtype(torch.float32)
    if "folders" in request.fixturenames:
        request.getfixturevalue("folders")  # made before anything is replaced
    open_store("glyphs")
    plans = evaluation._plans
    monkeypatch.setattr(evaluation, "_plans", lambda *a: [next(iter(plans(*a)))[:1]])
    for place in (
        "pathaware.training.train.run_to_end",
        "pathaware.training.supervised.run_to_end",
        "pathaware_research.experiments.run_to_end",
        "pathaware.sweep.worker_pool.WorkerPool.run",
        "pathaware.sweep.search.run_grid",
        "pathaware.sweep.search.Search",
        "pathaware.report.figures.figures",
        "pathaware.report.run_report.figures",
        "pathaware.report.run_report.compare",
        "pathaware_research.bench.comparison.bench",
        "pathaware_research.bench.scaling.measure",
        "pathaware_research.online.comparison.compare",
        "pathaware_research.verification.retrain",
    ):
        monkeypatch.setattr(place, accepted)
    monkeypatch.setattr(
        "pathaware_research.paper.time_estimate.estimate_time", lambda *_: TimeEstimate(1.0, 0.01)
    )
    monkeypatch.setattr("pathaware.serve.server.serve", not_served)
    monkeypatch.setattr("torch.onnx.export", accepted)
    assert calibration.fit_calibration.__kwdefaults__ is not None
    monkeypatch.setitem(calibration.fit_calibration.__kwdefaults__, "tasks", 1)
    monkeypatch.setenv("PATHAWARE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    table = Table.of("", ["a"], [["b"]])
    monkeypatch.setattr("pathaware_research.paper.targets.Reproduction._complexity", lambda _: table)
