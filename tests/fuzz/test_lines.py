"""Any command line works, or is rejected with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from pathaware.cli import PANELS
from tests.data.image_trees import class_folder
from tests.fuzz.calling import LONG, QUICK, Called, call, cases, must_be_sound
from tests.fuzz.conftest import Folders
from tests.fuzz.lines import COMMANDS, NEWER, lines, varied

BASE = '[problem]\nname = "sine"\n[method]\nname = "maml"\n[sweep]\n'


def prepare() -> None:
    Path("file").write_text("")
    Path("kept.json").write_text("{}")
    Path("kept.png").write_text("precious")
    Path("folder").mkdir()
    Path("folder/kept").write_text("precious")
    for number, name in enumerate(("a", "b")):
        class_folder(Path("letters") / name, 2, first=10 * number)
    Path("sweep.toml").write_text(BASE + "training.seed = [0, 1]\n")
    Path("search.toml").write_text(
        BASE + 'search = "optuna"\ntrials = 2\nmethod.steps = { low = 1, high = 3 }\n'
    )


def try_line(line: list[str], folders: Folders) -> Called:
    def with_runs() -> None:
        prepare()
        folders.copy_to(Path.cwd(), line)

    called = call(line, with_runs)
    must_be_sound(called)
    return called


def test_every_command_is_tried():
    assert {path[0] for path in COMMANDS} == {name for panel in PANELS.values() for name in panel}


@QUICK
@given(line=lines())
def test_a_command_line_works_or_is_refused_in_one_line(folders, line):
    try_line(line, folders)


@pytest.mark.slow
@LONG
@given(line=lines())
def test_two_thousand_command_lines_work_or_are_refused(folders, line):
    try_line(line, folders)


@pytest.mark.parametrize("line", NEWER)
def test_the_lines_that_are_varied_work(folders, line):
    called = try_line(line.split(), folders)
    assert called.code == 0, called


@cases(25)
@given(line=varied())
def test_a_varied_line_of_a_newer_command_works_or_is_refused(folders, line):
    try_line(line, folders)


@pytest.mark.slow
@LONG
@given(line=varied())
def test_two_thousand_varied_lines_of_newer_commands_work_or_are_refused(folders, line):
    try_line(line, folders)
