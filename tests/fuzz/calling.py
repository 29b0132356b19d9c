"""Calls commands in this process and checks how they end."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings

from pathaware.cli import main

_SLOWER = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


def cases(count: int) -> settings:
    """Run `count` examples, the same ones every time, without a deadline since machines are noisy."""
    return settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=_SLOWER
    )


QUICK, LONG = cases(100), cases(2000)


@dataclass(frozen=True)
class Called:
    code: int
    errors: str
    left: set[str]


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


def call(arguments: list[str], prepare: Callable[[], object] = lambda: None) -> Called:
    """Run a command in a new folder; return exit code, standard error and the files it left."""
    with fresh_folder() as folder:
        prepare()
        before = _files(folder)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            try:
                main(arguments)
            except SystemExit as end:
                code = end.code
        assert code is None or isinstance(code, int), code
        return Called(code or 0, errors.getvalue(), _without_drawings(_files(folder) ^ before))


def must_be_sound(called: Called) -> None:
    """The command succeeded, or failed with one line and left no files."""
    assert called.code in (0, 2), called
    if called.code == 2:
        assert called.errors.startswith("error: "), called
        assert called.errors.endswith("\n"), called
        line = called.errors[:-1]
        assert line.isprintable(), called
        assert len(line) < 2100, called
        assert not called.left, called


def _without_drawings(files: set[str]) -> set[str]:
    """Leave out glyphs, which are drawn on first use and stored in --data-dir."""
    drawn = {f"{name}/" for name in files if name.endswith("/glyphs")}
    return {
        name for name in files if not any(f"{name}/".startswith(d) or d.startswith(f"{name}/") for d in drawn)
    }


def _files(folder: Path) -> set[str]:
    return {os.path.join(where, name) for where, *names in os.walk(folder) for part in names for name in part}
