"""The package keeps its architecture: imports go one way, and its size has bounds."""

from __future__ import annotations

import ast
import re

import pytest
from tools import architecture

INTERNALS = architecture.ROOT / "docs/internals.md"


def test_no_import_goes_against_the_rule():
    assert architecture.against_the_rule() == []


def test_the_package_never_imports_research():
    for path in architecture.files():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) pathaware_research", text, re.MULTILINE), path


def test_every_package_is_known():
    packages = {entry for entry in architecture.entries() if (architecture.PACKAGE / entry).is_dir()}
    assert packages == set(architecture.PACKAGES) == set(architecture.MAY_IMPORT)


@pytest.mark.parametrize(
    "text",
    [
        "from pathaware.training.config import Config",
        "import pathaware.training.config",
        "from pathaware import training",
        "def late():\n    from pathaware.training.config import Config",
    ],
)
def test_an_import_against_the_rule_is_found(text, tmp_path, monkeypatch):
    """`data` may not know of training, wherever it says so."""
    file = tmp_path / "data" / "store.py"
    file.parent.mkdir()
    file.write_text(text)
    monkeypatch.setattr(architecture, "PACKAGE", tmp_path)
    monkeypatch.setattr(architecture, "files", lambda: [file])
    assert len(architecture.against_the_rule()) == 1


@pytest.mark.parametrize(("name", "number"), architecture.numbers().items())
def test_the_package_keeps_its_bounds(name, number):
    assert number <= architecture.BOUNDS[name]


def test_training_builds_one_learner():
    entered, built = architecture.traced_training()
    assert built <= architecture.BOUNDS["learners built by train"]
    assert "methods/pamela.py" in entered


def test_settings_of_one_name_in_two_tables_are_those_with_another_meaning():
    twice = {name for name, owners in architecture.settings().items() if len(owners) > 1}
    common = "rate warmup head teacher distil temperature dropout validate save jitter cutmix shots queries"
    assert twice == set(common.split())


def test_the_method_of_the_paper_is_where_one_looks_for_it():
    text = (architecture.PACKAGE / "methods/pamela.py").read_text(encoding="utf-8")
    assert "θⱼ₊₁" in text
    assert "METHOD = Method(" in text


def test_the_library_does_not_name_options_of_the_command_line():
    """Messages name the field; `cli` turns it into an option."""
    for path in architecture.files():
        if architecture.package(path) in ("cli", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("UsageError", "RunError"):
                message = ast.unparse(node.args[0]) if node.args else ""
                assert not re.match(r"""f?['"]--[a-z]""", message), f"{path}: {message}"


MAKES = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "symlink_to", "mkdtemp", "save_file"}
COPIES = {"copyfile", "copy2", "copytree", "NamedTemporaryFile", "TemporaryDirectory"}
REMOVES = {"unlink", "rmtree"}


def writes(call: ast.Call) -> bool:
    """True for a call that changes a file or a folder."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    owner = getattr(getattr(call.func, "value", None), "id", "")
    plain = len(call.args) == 1 and not call.keywords  # of a path; texts and dataclasses take more
    modes = [
        each.value
        for each in (*call.args, *(k.value for k in call.keywords))
        if isinstance(each, ast.Constant)
    ]
    opens = name in ("open", "fdopen") and any(
        re.fullmatch(r"[wax+rbt]*[wax+][wax+rbt]*", str(m)) for m in modes
    )
    renames = name in ("rename", "replace") and (plain or owner == "os")
    return name in MAKES | COPIES | REMOVES or opens or renames or (owner == "torch" and name == "save")


def test_one_module_writes():
    """Except for what is written to a terminal that is closed."""
    found = {
        f"{path.relative_to(architecture.PACKAGE)}: {ast.unparse(node)}"
        for path in architecture.files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and writes(node)
    }
    elsewhere = {line for line in found if not line.startswith("core/writing.py: ")}
    assert elsewhere == {"cli/__init__.py: os.fdopen(os.open(os.devnull, os.O_WRONLY), 'w')"}
    assert len(found - elsewhere) > 10


READS = {"read_text", "read_bytes"}
ITS_OWN = {
    "cli/options.py",
    "data/importers/source.py",
    "inference/export/export.py",
    "inference/trained_model.py",
    "serve/app.py",
    "training/provenance.py",
}


def test_one_module_reads_what_others_wrote():
    """Other files that read are known: they read what belongs to the package, or to the system."""
    found = {
        path.relative_to(architecture.PACKAGE).as_posix()
        for path in architecture.files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in READS
    }
    assert found <= ITS_OWN


def test_the_map_in_the_documents_is_drawn_from_the_imports():
    assert architecture.package_map() in INTERNALS.read_text(encoding="utf-8"), "run `make tables`"


def test_the_files_of_the_walk_exist():
    text = INTERNALS.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?!tests)([a-z]+/[a-z_/]+\.py)`", text))
    assert len(named) > 15
    assert all((architecture.PACKAGE / name).exists() for name in named), named


def test_file_names_say_something():
    stems = {path.stem for path in architecture.files()}
    vague = {"base", "document", "core", "utils", "helpers", "misc", "common"}
    assert not vague & stems
