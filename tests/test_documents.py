"""Code in the documents runs; examples in docstrings say the truth."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pathaware.bench import document
from pathaware.report.blocks import fill
from pathaware.reproduce.document import readme, reproduction

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


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("README.md", lambda: readme(ROOT / "results")),
        ("docs/reproduction.md", lambda: reproduction(ROOT / "results")),
        ("docs/performance.md", lambda: {"results": document.render(ROOT / "results", ROOT / "docs/images")}),
    ],
)
def test_the_tables_of_a_document_are_those_of_the_results(name, blocks):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert fill(text, blocks()) == text, "run `make tables`"


def test_a_part_that_a_document_lacks_is_an_error():
    with pytest.raises(ValueError, match="no part 'table9'"):
        fill("text", {"table9": "rows"})
