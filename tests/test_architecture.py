"""The package keeps its architecture: rooms, arrows between them, and bounds on its size."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tools import house

INTERNALS = house.ROOT / "docs/internals.md"


def test_no_import_goes_against_the_rule():
    assert house.against_the_rule() == []


def test_the_package_never_imports_research():
    for path in house.files():
        assert "pathaware_research" not in path.read_text(encoding="utf-8"), path


def test_every_room_is_known():
    rooms = {entry for entry in house.entries() if (house.PACKAGE / entry).is_dir()}
    assert rooms == set(house.ROOMS) == set(house.MAY_IMPORT)


@pytest.mark.parametrize(
    "text",
    [
        "from pathaware.training.config import Config",
        "import pathaware.training.config",
        "from pathaware import training",
        "def late():\n    from pathaware.training.config import Config",
    ],
)
def test_an_arrow_against_the_rule_is_found(text, tmp_path, monkeypatch):
    """`data` may not know of training, wherever it says so."""
    file = tmp_path / "data" / "store.py"
    file.parent.mkdir()
    file.write_text(text)
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    monkeypatch.setattr(house, "files", lambda: [file])
    assert len(house.against_the_rule()) == 1


def test_the_package_keeps_its_bounds():
    assert len(house.files()) <= house.BOUNDS["Python files"]
    assert len(house.entries()) <= house.BOUNDS["entries at the top"]
    assert house.levels() <= house.BOUNDS["import levels"]


def test_training_enters_few_files():
    entered = house.entered_by_training()
    assert "methods/pamela.py" in entered
    assert len(entered) <= house.BOUNDS["files entered by train"], entered


def test_the_method_of_the_paper_is_short_and_where_one_looks_for_it():
    text = (house.PACKAGE / "methods/pamela.py").read_text(encoding="utf-8")
    assert text.count("\n") < 110
    assert "θⱼ₊₁" in text
    assert "METHOD = Method(" in text


def test_the_library_does_not_name_options_of_the_command_line():
    """Messages name the field; `cli` turns it into an option."""
    for path in house.files():
        if house.room(path) in ("cli", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("UsageError", "RunError"):
                message = ast.unparse(node.args[0]) if node.args else ""
                assert not re.match(r"""f?['"]--[a-z]""", message), f"{path}: {message}"


def test_the_diagram_in_the_documents_is_that_of_the_imports():
    assert house.diagram() in INTERNALS.read_text(encoding="utf-8"), "run `make tables`"


def test_file_names_say_something():
    """No two files of the package share a stem, but for tests' own and for what a name must be."""
    stems: dict[str, list[Path]] = {}
    for path in house.files():
        stems.setdefault(path.stem, []).append(path)
    vague = {"base", "document", "core", "utils", "helpers", "misc", "common"}
    assert not vague & set(stems)
