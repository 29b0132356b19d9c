"""Calls commands in this process and checks how they end."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings

from pathaware.cli import main
from pathaware.inference.calibration import CALIBRATION

_SLOWER = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
LONGEST_CALL = 120
"""Seconds; a command that takes longer is taken for endless."""
MOST_LINES = 12
"""Ten problems, a count of the others, and the error itself."""
LISTING = {"--from", "--support", "--images", "learn"}
"""Options and commands that read images; they may list the files that they cannot use."""


def cases(count: int) -> settings:
    """Run `count` examples, the same ones every time, without a deadline since machines are noisy."""
    return settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=_SLOWER
    )


QUICK, LONG = cases(100), cases(2000)


class Endless(BaseException):
    """Not an `Exception`, which a command might catch."""


@dataclass(frozen=True)
class Called:
    arguments: list[str]
    code: int
    out: str
    errors: str
    left: set[str]
    """Names of files and folders that appeared or vanished."""
    changed: set[str]
    """Files that were there before and have other contents now, or are gone."""

    @property
    def lines(self) -> list[str]:
        """The lines of standard error that are not warnings, such as one about unusual images."""
        return [line for line in self.errors.splitlines() if not line.startswith("warning: ")]


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


@contextlib.contextmanager
def limited(seconds: float = LONGEST_CALL) -> Iterator[None]:
    def end(*_: object) -> None:
        raise Endless(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call(
    arguments: list[str],
    prepare: Callable[[], object] = lambda: None,
    look: Callable[[], object] = lambda: None,
) -> Called:
    """Run a command in a new folder; return exit code, standard error and what it did to the folder.

    `look` is called in the folder after the command.
    """
    with fresh_folder():
        prepare()
        called = quietly(arguments)
        look()
        return called


def quietly(arguments: list[str], seconds: float = LONGEST_CALL) -> Called:
    """Run a command in the current folder."""
    folder = Path.cwd()
    names, contents = _files(folder), _contents(folder)
    code, out, errors = ended(arguments, seconds)
    now = _contents(folder)
    changed = {name for name, content in contents.items() if now.get(name) != content}
    left = _without_drawings(_files(folder) ^ names)
    return Called(arguments, code, out, errors, left, changed)


def ended(arguments: list[str], seconds: float = 30) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that must end in time, without a traceback."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out), limited(seconds):
        try:
            main(arguments)
            raise AssertionError("it did not exit")
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), code
    return code, out.getvalue(), errors.getvalue()


def must_be_sound(called: Called) -> None:
    """The command succeeded, or failed with one line; it replaced nothing unasked and left nothing behind."""
    assert called.code in (0, 1, 2), called
    lines = called.lines
    assert all(line.isprintable() and len(line) < 2100 for line in lines), called
    assert sum(line.startswith("error: ") for line in lines) <= 1, called
    asked = "--calibrate" if all(Path(p).name == CALIBRATION for p in called.changed) else "--replace"
    assert asked in called.arguments or not called.changed, called
    if called.code == 2 and "Usage:" in called.out:  # a group without a command prints its help
        assert not called.errors, called
    elif called.code == 2:
        assert called.errors.endswith("\n"), called
        assert lines[-1].startswith("error: "), called
        assert len(lines) <= (MOST_LINES if LISTING & set(called.arguments) else 1), called
    if called.code == 2:
        assert not called.left, called


def _without_drawings(files: set[str]) -> set[str]:
    """Leave out glyphs, which are drawn on first use and stored in --data-dir."""
    drawn = {f"{name}/" for name in files if name.endswith("/glyphs")}
    return {
        name for name in files if not any(f"{name}/".startswith(d) or d.startswith(f"{name}/") for d in drawn)
    }


def _files(folder: Path) -> set[str]:
    return {os.path.join(where, name) for where, *names in os.walk(folder) for part in names for name in part}


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
