"""Any configuration file is accepted, or rejected with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.calling import LONG, QUICK, call, must_be_sound
from tests.fuzz.files import contents
from tests.fuzz.lines import settings

TRAINED = st.sampled_from(["sine", "glyphs --width 4", "preset glyphs"])
COMMANDS = st.sampled_from(["train", "evaluate", "plot", "report"])


def try_file(command: str, content: bytes) -> None:
    """Use the content as a preset, as a sweep, or as the configuration of a run."""

    def prepare() -> None:
        if command in ("train", "sweep"):
            Path("file.toml").write_bytes(content)
        else:
            Path("old").mkdir()
            Path("old/config.toml").write_bytes(content)

    lines = {
        "train": ["train", "preset", "file.toml", "--out", "out"],
        "sweep": ["sweep", "file.toml", "--out", "out"],
    }
    must_be_sound(call(lines.get(command, [command, "old"]), prepare))


def try_settings(command: str, given: list[str]) -> None:
    """Use settings on the command line."""
    options = [word for one in given for word in ("--set", one)]
    must_be_sound(call(["train", *command.split(), *options, "--out", "out"]))


@QUICK
@given(TRAINED, st.lists(settings, max_size=4))
def test_settings_are_used_or_refused_in_one_line(command, given):
    try_settings(command, given)


@pytest.mark.slow
@LONG
@given(TRAINED, st.lists(settings, max_size=4))
def test_two_thousand_settings_are_used_or_refused(command, given):
    try_settings(command, given)


@QUICK
@given(COMMANDS, contents())
def test_a_configuration_file_is_used_or_refused_in_one_line(command, content):
    try_file(command, content)


@QUICK
@given(contents(sweep=True))
def test_a_sweeps_file_is_used_or_refused_in_one_line(content):
    try_file("sweep", content)


@pytest.mark.slow
@LONG
@given(COMMANDS, contents())
def test_two_thousand_configuration_files_are_used_or_refused(command, content):
    try_file(command, content)


@pytest.mark.slow
@LONG
@given(contents(sweep=True))
def test_two_thousand_sweeps_files_are_used_or_refused(content):
    try_file("sweep", content)
