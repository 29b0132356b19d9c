"""The notebook runs, and what it shows fits a notebook: one progress bar, figures, an estimator as HTML."""

from __future__ import annotations

import importlib
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from tools import notebook_page
from tools.run_notebook import run

from pathaware import FewShotClassifier, FewShotRegressor, Pamela
from pathaware.models import mlp
from pathaware.report import coefficients, style

NOTEBOOK = Path(__file__).parents[1] / "examples/first_steps.ipynb"


def kinds(cell) -> list[str]:
    """What a cell shows, without the order of figures and text."""
    return sorted(
        output.output_type if output.output_type == "stream" else ",".join(sorted(output.data))
        for output in cell.outputs
    )


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_runs_and_shows_what_is_stored_in_it():
    assert NOTEBOOK.stat().st_size < 400_000
    cells, stored = code_cells(run(NOTEBOOK)), code_cells(nbformat.read(NOTEBOOK, as_version=4))
    assert [kinds(cell) for cell in cells] == [kinds(cell) for cell in stored]
    assert all(cell.outputs for cell in cells)
    printed = [[o.text for o in cell.outputs if o.output_type == "stream"] for cell in (cells[3], stored[3])]
    assert printed[0] == printed[1] != []

    assert "FewShotClassifier" in cells[1].outputs[0].data["text/html"]
    assert [kinds(cell) for cell in cells[4:6]] == [["image/png,text/plain"]] * 2  # figures, each once

    (progress,) = [output for output in cells[-1].outputs if output.output_type != "stream"]
    assert "· 100/100 ·" in progress.data["text/plain"]
    assert progress.data["text/html"].startswith('<progress value="100" max="100">')
    assert [o.name for o in cells[-1].outputs if o.output_type == "stream"] == ["stdout"]


def test_a_page_is_made_of_it():
    kept = []
    page, images = notebook_page.convert(NOTEBOOK, lambda html: kept.append(html) or "HERE")
    assert page.startswith("# First steps")
    assert len(images) == page.count("![output](images/") == 5
    assert all(image.startswith(b"\x89PNG") for image in images.values())
    assert page.count("HERE") == len(kept) == 2
    assert "18 of 18 are right" in page


def test_figures_leave_pyplot_alone():
    torch.set_default_dtype(torch.float32)
    before = matplotlib.get_backend()
    try:
        matplotlib.use("svg")
        importlib.reload(style)
        figure = coefficients(Pamela(mlp(1, (4,), 1)))
        assert matplotlib.get_backend() == "svg"
        assert plt.get_fignums() == []
        assert figure._repr_png_().startswith(b"\x89PNG")
    finally:
        matplotlib.use(before)


@pytest.mark.parametrize("estimator", [FewShotClassifier("glyphs"), FewShotRegressor("sine", device="cpu")])
def test_an_estimator_is_shown_with_its_parameters(estimator):
    shown = estimator._repr_html_()
    assert type(estimator).__name__ in shown
    assert "sk-top-container" in shown
    assert "device" in shown
