"""Code and examples in documents and docstrings run; tables are up to date."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pathaware.experiments.run_store import Results
from tools.documents import PAGES, compared_problems, fill

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDE = ROOT / "docs/new-method.md"
EXAMPLES = (
    "pathaware.core.parameters",
    "pathaware.core.learner",
    "pathaware.online.learner",
    "pathaware.core.settings",
    "pathaware.inference.estimators",
    "pathaware.inference.trained_model",
)


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.name != GUIDE.name], ids=lambda path: path.name)
def test_python_blocks_of_a_document_run(path):
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(path), "exec"), {})


def test_the_commands_of_the_guide_to_new_methods_run(tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    files = re.findall(r"\*\*(\w+\.py)\*\*\n\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert sum(len(code.splitlines()) for _, code in files) < 60
    for name, code in files:
        (tmp_path / name).write_text(code, encoding="utf-8")
    (commands,) = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    for command in re.findall(r"\$ python (.*)", commands):
        done = subprocess.run(
            [sys.executable, *shlex.split(command)], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"mse ([\d.]+)", done.stdout)[1]) < 2  # about 4 before adapting


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_are_correct(name):
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed


def test_links_between_documents_exist():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize(("name", "blocks"), PAGES.items())
def test_tables_are_rendered_from_the_results(name, blocks):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert fill(text, blocks(ROOT / "results")) == text, "run `make tables`"


def test_methods_in_a_row_of_the_readme_were_trained_equally_long():
    rows = [each.equally_long() for each in compared_problems(Results.read(ROOT / "results"))]
    assert any(maml for maml, _ in rows)
    for maml, pamela in rows:
        assert {result.iterations for result in maml} == {result.iterations for result in pamela}


def test_a_block_that_a_document_lacks_is_an_error():
    with pytest.raises(ValueError, match="no block 'table9'"):
        fill("text", {"table9": "rows"})
