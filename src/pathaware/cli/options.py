"""Options and checks that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pathaware.core.errors import UsageError

if TYPE_CHECKING:
    from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel


Method = Annotated[str, typer.Option(help="See `pathaware methods`.")]
Steps = Annotated[int | None, typer.Option(help="Inner steps (default: 5; meta-sgd: 1).")]
Skip = Annotated[
    str | None, typer.Option(help="PAMELA's interval w: 1 to the number of steps, or none (default: 2).")
]
Rate = Annotated[
    float | None,
    typer.Option(help="Inner learning rate, or the initial value of learned ones (default: 0.01)."),
]
Iterations = Annotated[
    int | None, typer.Option(help="Meta-iterations (default: 40000 for sine, 60000 for images).")
]
Tasks = Annotated[
    int | None, typer.Option(help="Tasks per meta-iteration (default: 25 for sine, 4 for images).")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the initialisation and of all tasks (default: 0).")]
Out = Annotated[Path | None, typer.Option(help="New folder for the run (default: runs/…).")]
FitMemory = Annotated[
    bool | None, typer.Option("--fit-memory", help="On out-of-memory, use smaller chunks and continue.")
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting, such as `method.q=shared` or `training.clip=1`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def must_be_writable(option: str, path: Path) -> None:
    """Raise if a file cannot be written; to be called before minutes of work."""
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option}: {path} cannot be written")


def must_be_new(option: str, path: Path, replace: bool) -> None:
    """Raise if a file cannot be written, or exists and may not be replaced."""
    must_be_writable(option, path)
    if path.exists() and not replace:
        raise UsageError(f"{option}: {path} is already there; --replace writes over it")


def must_have_room(option: str, folder: Path, names: Sequence[str]) -> None:
    """Create the folder if needed; raise if it contains one of these names."""
    for name in names:
        if (folder / name).exists():
            raise UsageError(f"{option}: {folder / name} exists; name another folder or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # the latter from a name that no system allows
        raise UsageError(f"{option}: {folder} cannot be made ({error})") from None
    must_be_writable(option, folder / names[0])


def read_support(source: Path, model: TrainedModel) -> SupportSet:
    """Read the labelled pictures; if some cannot be used, name all of them."""
    from pathaware.inference import class_folders as folders

    try:
        return folders.read_support(source, model.image_input)
    except folders.SupportRefused as refused:
        if len(refused.problems) > 1:  # a single one is the message of the error
            say_all(refused.problems)
        raise


def adapt(model: TrainedModel, support: SupportSet) -> AdaptedClassifier:
    return model.adapt(support.pixels, support.labels, len(support.classes))


def say_all(problems: tuple[str, ...] | list[str]) -> None:
    """Print the first ten problems, one per line of standard error, and the number of the others."""
    from pathaware.cli import one_line

    for problem in problems[:10]:
        print(one_line(problem), file=sys.stderr)
    if len(problems) > 10:
        print(f"… and {len(problems) - 10:,} more", file=sys.stderr)
