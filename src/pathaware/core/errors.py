"""The exceptions that callers are meant to catch."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


class UsageError(ValueError):
    """An argument, setting or file cannot be used.

    The message is one line that names the setting or file and says what is allowed. `field` is the name of
    the argument at fault, where there is one; the command line turns it into an option. There the line is
    printed and the exit code is 2; in Python this is an ordinary `ValueError`.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}")
        self.message, self.field = message, field

    def __reduce__(self) -> tuple[type[UsageError], tuple[str, str | None]]:
        return UsageError, (self.message, self.field)


class UnfinishedRun(UsageError):
    """A run has no checkpoint yet; the command line adds how to resume it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is not finished", field="run")
        self.folder = folder


class RunError(RuntimeError):
    """A run cannot continue, for a reason outside of its settings or one that shows only during training.

    The message is one line that says what happened, what was saved, and what to try; the command line exits
    with code 1.
    """


class Stopped(Exception):
    """Training was stopped by a signal; every run in `folders` can be resumed from its saved state.

    `kind` is `train`, or `pretrain` for supervised pretraining.
    """

    def __init__(
        self,
        signum: int,
        folders: Sequence[Path],
        kind: str = "train",
        how: str = "stopped after a complete step; the state is saved",
    ) -> None:
        self.signum, self.folders, self.kind = signum, list(folders), kind
        super().__init__(f"{signal.Signals(signum).name}: {how}")


def printable(text: str) -> str:
    """Make control characters visible, so that names from files cannot control a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known name that is spelled most like it, if any.

    >>> did_you_mean("protoypical", ["maml", "prototypical"])
    '; did you mean prototypical?'
    >>> did_you_mean("xyz", ["maml", "prototypical"])
    ''
    """
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def no_such_setting(name: str, owner: str, known: Iterable[str]) -> UsageError:
    """The error for a setting that `owner` does not have: with the most similar name, or else all names."""
    hint = did_you_mean(name, known) or f"; it has {', '.join(known)}"
    return UsageError(f"{name}: {owner} has no such setting{hint}")
