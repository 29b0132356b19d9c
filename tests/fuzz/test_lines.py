"""Any command line works, or is rejected with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from pathaware.cli import PANELS
from tests.data.image_trees import class_folder
from tests.fuzz.calling import LONG, QUICK, call, must_be_sound
from tests.fuzz.lines import COMMANDS, RUN, lines

BASE = '[problem]\nname = "sine"\n[method]\nname = "maml"\n[sweep]\n'


def prepare() -> None:
    Path("file").write_text("")
    Path("kept.json").write_text("{}")
    Path("kept.png").write_text("precious")
    Path("folder").mkdir()
    Path("folder/kept").write_text("precious")
    for name in ("a", "b"):
        class_folder(Path("letters") / name, 1)
    Path("sweep.toml").write_text(BASE + "training.seed = [0, 1]\n")
    Path("search.toml").write_text(
        BASE + 'search = "optuna"\ntrials = 2\nmethod.steps = { low = 1, high = 3 }\n'
    )


def try_line(line: list[str], run: Path) -> None:
    must_be_sound(call([str(run) if part == RUN else part for part in line], prepare))


def test_every_command_is_tried():
    assert {path[0] for path in COMMANDS} == {name for panel in PANELS.values() for name in panel}


@QUICK
@given(line=lines())
def test_a_command_line_works_or_is_refused_in_one_line(run, line):
    try_line(line, run)


@pytest.mark.slow
@LONG
@given(line=lines())
def test_two_thousand_command_lines_work_or_are_refused(run, line):
    try_line(line, run)
