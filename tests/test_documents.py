"""Code in the documents runs; examples in docstrings say the truth."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pathaware.bench import document
from pathaware.report.results_table import BEGIN, render, replaced

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = ("pathaware.layout", "pathaware.learner", "pathaware.settings")


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_of_a_document_run(path):
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(path), "exec"), {})


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_hold(name):
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed


def test_links_between_documents_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_readmes_tables_are_those_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert replaced(text, render(ROOT / "results")) == text, "run `make tables`"
    assert BEGIN in text


def test_the_tables_on_performance_are_those_of_the_results():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    tables = document.render(ROOT / "results", ROOT / "docs" / "images")
    assert replaced(text, tables) == text, "run `make tables`"
    assert BEGIN in text
