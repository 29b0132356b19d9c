"""Replaces training and drawing: the tests cover everything before them."""

from __future__ import annotations

import socket
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pathaware.data.catalogue import open_store
from pathaware.experiments.paper.time_estimate import TimeEstimate
from pathaware.training import evaluation
from pathaware.training.config import Config
from pathaware.training.session import train_run
from pathaware.training.tables import Table

# Imported before anything is replaced, because a module that imports a replacement would keep it.
for _module in (
    "pathaware.experiments.bench.comparison",
    "pathaware.experiments.bench.scaling",
    "pathaware.experiments.online.comparison",
    "pathaware.experiments.verification",
    "pathaware.experiments.report.run_report",
    "pathaware.experiments.paper.targets",
    "pathaware.experiments.sweep.grid",
    "pathaware.experiments.sweep.search",
    "pathaware.training.distributed",
    "pathaware.training.pretrain_run",
):
    import_module(_module)


def accepted(*_: object, **__: object) -> None:
    """Replaces minutes of work: all input was accepted."""
    sys.exit(0)


def not_served(_: object, bound: socket.socket, *__: object) -> None:
    bound.close()
    sys.exit(0)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained for two iterations."""
    tables = {"problem": {"name": "sine"}, "method": {"name": "pamela"}, "training": {"iterations": 2}}
    return train_run(Config.from_dict(tables), tmp_path_factory.mktemp("runs") / "run", quiet=True).folder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    torch.set_default_dtype(torch.float32)
    open_store("glyphs")
    plans = evaluation._plans
    monkeypatch.setattr(evaluation, "_plans", lambda *a: [next(iter(plans(*a)))[:1]])
    for place in (
        "pathaware.training.session.train_sessions",
        "pathaware.training.pretrain_run._train",
        "pathaware.experiments.run_store.train_sessions",
        "pathaware.experiments.sweep.grid.run_grid",
        "pathaware.experiments.sweep.search.Search",
        "pathaware.experiments.report.figures.figures",
        "pathaware.experiments.report.run_report.figures",
        "pathaware.experiments.report.run_report.compare",
        "pathaware.experiments.bench.comparison.bench",
        "pathaware.experiments.bench.scaling.measure",
        "pathaware.experiments.online.comparison.compare",
        "pathaware.experiments.verification.retrain",
    ):
        monkeypatch.setattr(place, accepted)
    monkeypatch.setattr(
        "pathaware.experiments.paper.time_estimate.estimate_time", lambda *_: TimeEstimate(1.0, 0.01)
    )
    monkeypatch.setattr("pathaware.serve.server.serve", not_served)
    table = Table.of("", ["a"], [["b"]])
    monkeypatch.setattr("pathaware.experiments.paper.targets.Reproduction._complexity", lambda _: table)
