"""Links and tables of documents are up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pathaware_research.pages.documents import PAGES, fill

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_links_between_documents_exist():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize(("name", "blocks"), PAGES.items())
def test_tables_are_rendered_from_the_results(name, blocks):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert fill(text, blocks(ROOT / "results")) == text, "run `make tables`"


def test_a_block_that_a_document_lacks_is_an_error():
    with pytest.raises(ValueError, match="no block 'table9'"):
        fill("text", {"table9": "rows"})
