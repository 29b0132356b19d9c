"""Code blocks of README.md, CONTRIBUTING.md and docs/: Python runs, commands parse, cheap commands run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image

from pathaware.cli import app, main
from pathaware.core.errors import UsageError
from pathaware.data import open_store
from pathaware.sweep.plan import SweepPlan

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDE = ROOT / "docs/new-method.md"

LANGUAGES = {"python", "console", "toml", "sh", "text", "mermaid"}
"""Fences that documents may use; `text` is for output, formulas and files of other programs."""

RUN_ELSEWHERE = {
    "new-method.md": "here, as files",
    "own-data.md": "tests/test_own_data.py",
    "export.md": "tests/inference/test_export_document.py",
}
"""Pages whose Python needs files that another test makes."""

OTHER_PROGRAMS = {".", "cd", "dask", "git", "pre-commit"}
"""Programs in examples that are not ours to check."""

CHEAP = ("methods", "predict glyphs", "export glyphs --support letters --to torch", "data list")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def commands(path: Path) -> list[list[str]]:
    """The commands of a page's console blocks, as lists of words without comments."""
    lines = [
        line
        for block in blocks(path, "console")
        for line in re.findall(r"^\$ (.*)", block.replace("\\\n", ""), re.MULTILINE)
    ]
    return [shlex.split(part, comments=True) for line in lines for part in line.split(" && ")]


def arguments_of_pathaware(command: list[str]) -> list[str] | None:
    """The arguments after `pathaware`, `python -m pathaware` or `torchrun … -m pathaware`."""
    program, *rest = command
    if program == "pathaware":
        return rest
    if (
        program in ("python", "torchrun")
        and "pathaware" in rest
        and rest[rest.index("pathaware") - 1] == "-m"
    ):
        return rest[rest.index("pathaware") + 1 :]
    return None


def calls() -> list[Any]:
    """Every different call of `pathaware` in the documents."""
    found = {}
    for path in DOCUMENTS:
        for command in commands(path):
            arguments = arguments_of_pathaware(command)
            if arguments is not None:
                found.setdefault(" ".join(arguments), arguments)
    return [pytest.param(arguments, id=text) for text, arguments in found.items()]


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder of an example: labelled images in `letters`, others in `new`, and `one.png`."""
    monkeypatch.chdir(tmp_path)
    images = open_store("glyphs").images
    for c, name in enumerate(("alpha", "beta", "gamma")):
        for i in range(4):
            path = tmp_path / ("letters" if i < 2 else "new") / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(255 - images[20 * c + i, 0].numpy()).save(path)
    shutil.make_archive("letters", "zip", "letters")
    shutil.copy("new/alpha/2.png", "one.png")
    return tmp_path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_has_a_language_that_is_checked(path):
    opening = re.findall(r"^```(.*)\n(?:.*\n)*?^```$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(opening) <= LANGUAGES


@pytest.mark.parametrize(
    "path",
    [p for p in DOCUMENTS if p.name not in RUN_ELSEWHERE and blocks(p, "python")],
    ids=lambda p: p.name,
)
def test_python_blocks_of_a_page_run_in_order(path, folder):
    namespace: dict[str, Any] = {}
    for block in blocks(path, "python"):
        exec(compile(block, str(path), "exec"), namespace)


def test_the_commands_of_the_guide_to_custom_methods_run(tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    files = re.findall(r"\*\*(\w+\.py)\*\*\n\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert sum(len(code.splitlines()) for _, code in files) < 60
    for name, code in files:
        (tmp_path / name).write_text(code, encoding="utf-8")
    for program, *arguments in commands(GUIDE):
        assert program == "python"
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"mse ([\d.]+)", done.stdout)[1]) < 2  # about 4 before adaptation


@pytest.mark.parametrize("arguments", calls())
def test_a_call_of_pathaware_parses(arguments):
    command, name = typer.main.get_command(app), "pathaware"
    while True:
        context = command.make_context(name, list(arguments))
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            assert "--resume" in arguments or "--version" in arguments
            return
        name, command, arguments = command.resolve_command(context, rest)


@pytest.mark.parametrize(
    "arguments", [call for call in calls() if re.match(r"train (?!--resume)(?!.*heavy_ball)", call.id)]
)
def test_the_settings_of_a_training_are_accepted(arguments, folder, monkeypatch):
    """All but the training itself: methods, presets and settings exist, and values are allowed."""
    accepted: list[object] = []
    monkeypatch.setattr(
        "pathaware.cli.train.train_and_evaluate", lambda *given, **more: accepted.append(given)
    )
    assert code_of(lambda: main(list(arguments))) == 0
    assert len(accepted) == 1


@pytest.mark.parametrize("arguments", [call for call in calls() if call.id.startswith(CHEAP)])
def test_a_cheap_command_runs(arguments, folder, capsys):
    assert code_of(lambda: main([*arguments])) == 0, capsys.readouterr().err


def code_of(call: Callable[[], None]) -> object:
    with pytest.raises(SystemExit) as left:
        call()
    return left.value.code or 0


def test_other_commands_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for path in DOCUMENTS:
        for program, *rest in commands(path):
            if program == "make":
                assert set(rest) <= targets, f"{path.name}: make {' '.join(rest)}"
            elif program == "pip":
                extras = ",".join(re.findall(r"\.\[([\w,]+)\]", " ".join(rest)))
                assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"]), (
                    path.name
                )
            elif program == "python" and rest[0] != "-m":
                assert (ROOT / rest[0]).is_file(), f"{path.name}: {rest[0]}"
            elif program not in ("pathaware", "python", "torchrun"):
                assert program in OTHER_PROGRAMS, f"{path.name}: {program}"


def test_the_sweeps_of_the_guide_are_accepted(tmp_path):
    grid, search = blocks(ROOT / "docs/sweeps.md", "toml")
    files = {"grid.toml": grid, "search.toml": grid.partition("[sweep]")[0] + search}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(list(SweepPlan.read(tmp_path / "grid.toml").grid())) == 12  # as the page says
    assert SweepPlan.read(tmp_path / "search.toml").trials == 40
    (tmp_path / "wrong.toml").write_text(grid.replace('"maml"', '"mmal"'), encoding="utf-8")
    with pytest.raises(UsageError, match="mmal"):
        list(SweepPlan.read(tmp_path / "wrong.toml").grid())


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p, "sh")], ids=lambda path: path.name)
def test_shell_scripts_have_no_syntax_errors(path):
    for script in blocks(path, "sh"):
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
