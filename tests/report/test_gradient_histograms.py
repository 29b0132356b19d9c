"""Fig. 6: the positions of its cells, and when it is drawn."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from pathaware.report.figures import figures
from pathaware.report.gradient_histograms import ROWS, Scale, gradient_histograms
from pathaware.training.config import Config
from pathaware.training.gradient_probe import Histograms
from pathaware.training.run_files import HISTOGRAMS
from pathaware.training.run_folder import Run
from pathaware_research.paper.figures import fig6


@pytest.fixture
def a_run(tmp_path):
    """Runs with histograms of known gradients: ±0.5 in the inner steps, meta-gradients of 0.02."""

    def make(method: str, steps: int) -> Run:
        settings = {"problem": {"name": "sine", "points": 20}, "method": {"name": method, "steps": steps}}
        run = Run.create(tmp_path / f"{method}-{steps}", Config.from_dict(settings))
        kept = Histograms("2.weight")
        for iteration in range(0, 100, 10):
            kept.add(iteration, [torch.tensor([0.5, -0.5])] * steps + [torch.tensor([0.02])])
        kept.save(run.folder / HISTOGRAMS)
        return run

    yield make
    plt.close("all")


def test_cells_are_filled_where_the_gradients_are(a_run):
    figure = gradient_histograms([a_run("maml", 2)])
    inner, _, meta = figure.axes
    cells = inner.collections[0].get_array()
    rows = {row for row in range(ROWS) if cells[row].count()}
    ends = inner.collections[0].get_coordinates()[:, 0, 1]
    assert rows
    assert all(min(abs(e) for e in ends[row : row + 2]) < 0.5 * 1.1 for row in rows)
    assert all(max(abs(e) for e in ends[row : row + 2]) > 0.5 / 1.1 for row in rows)
    assert cells.filled(0).sum(0).tolist() == pytest.approx([1] * 10)
    assert meta.get_ylim()[1] < 0.1 < inner.get_ylim()[1]


def test_runs_share_scales_and_short_ones_leave_columns_empty(a_run):
    figure = gradient_histograms([a_run("maml", 1), a_run("pamela", 3)])
    axes = figure.axes
    assert len(axes) == 8
    assert [ax.axison for ax in axes] == [True, False, False, True, True, True, True, True]
    assert len({ax.get_ylim() for ax in (axes[0], *axes[4:7])}) == 1
    assert axes[3].get_ylim() == axes[7].get_ylim()
    assert [ax.get_title(loc="left") for ax in axes[:4]] == ["step 1", "step 2", "step 3", "meta-gradient"]


def test_zeros_do_not_affect_the_scale():
    counts = torch.zeros(1, 512)
    counts[0, 256], counts[0, 410] = 1e6, 1
    assert Scale.of(counts).limit > 0.1


def test_the_figure_is_drawn_for_runs_with_histograms(a_run, monkeypatch):
    import pathaware.report.figures as module

    for name in ("fitted_curves", "metric_per_step", "training_curves"):
        monkeypatch.setattr(module, name, lambda *given: None)
    torch.set_default_dtype(torch.float32)
    run = a_run("maml", 2)
    monkeypatch.setattr(type(run), "load", lambda self, device: nn.Module())
    assert "gradients" in [name for name, _, _ in figures([run])]
    (run.folder / HISTOGRAMS).unlink()
    assert "gradients" not in [name for name, _, _ in figures([run])]


def test_the_record_of_the_papers_figure_says_which_runs_it_is_of(a_run, tmp_path, monkeypatch):
    monkeypatch.setattr("pathaware_research.paper.figures.is_imported", lambda data: True)
    runs = [a_run("maml", 2), a_run("pamela", 2)]
    fig6("glyphs").draw(runs, tmp_path)
    record = json.loads((tmp_path / f"fig6-{runs[0].config.problem.label}.json").read_text(encoding="utf-8"))
    assert record["gradients"]["pamela"]["last tenth"]["largest"] == pytest.approx([0.5, 0.5, 0.02])
    assert record["runs"]["maml"]["iterations"] == runs[0].config.training.iterations
    assert record["runs"]["maml"]["seed"] == 0
