"""Training and drawing are replaced: what is tested is all that comes before them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pathaware.datasets.catalogue import open_store
from pathaware.report.tables.model import Table
from pathaware.reproduce.pace import Pace
from pathaware.training import evaluation
from pathaware.training.config import Config
from pathaware.training.session import train_run

# Imported before anything is replaced: one that came to know a stand-in as the original would keep it.
for _module in (
    "pathaware.bench.run",
    "pathaware.bench.scaling",
    "pathaware.report.run_report",
    "pathaware.reproduce.maker",
    "pathaware.sweep.grid",
    "pathaware.sweep.search",
    "pathaware.training.together",
):
    import_module(_module)


def accepted(*_: object, **__: object) -> None:
    """Where minutes of work would begin: everything was found usable."""
    sys.exit(0)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained, if not well."""
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
        "pathaware.training.together.train_sessions",
        "pathaware.reproduce.workshop.train_sessions",
        "pathaware.sweep.grid.run_grid",
        "pathaware.sweep.search.Search",
        "pathaware.report.figures.figures",
        "pathaware.report.run_report.figures",
        "pathaware.report.comparison.compare",
        "pathaware.bench.run.bench",
        "pathaware.bench.scaling.measure",
    ):
        monkeypatch.setattr(place, accepted)
    monkeypatch.setattr("pathaware.reproduce.workshop.measure", lambda *_: Pace(1.0, 0.01))
    table = Table.of("", ["a"], [["b"]])
    monkeypatch.setattr("pathaware.reproduce.maker.Maker._complexity", lambda _: table)
