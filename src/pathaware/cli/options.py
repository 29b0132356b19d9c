"""Options that several commands share."""

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
Steps = Annotated[int | None, typer.Option(help="Inner steps [5; meta-sgd 1].")]
Skip = Annotated[str | None, typer.Option(help="PAMELA's interval w, 1 to the number of steps, or none [2].")]
Rate = Annotated[float | None, typer.Option(help="Inner rate, or where learned rates start [0.01].")]
Iterations = Annotated[int | None, typer.Option(help="Meta-iterations [40000 for sine, 60000 for images].")]
Tasks = Annotated[int | None, typer.Option(help="Tasks of a meta-iteration [25 waves, 4 of images].")]
Seed = Annotated[int | None, typer.Option(help="Seed of the start and of all tasks [0].")]
Out = Annotated[Path | None, typer.Option(help="New folder for the run; [runs/…].")]
FitMemory = Annotated[
    bool | None, typer.Option("--fit-memory", help="When memory runs out, take less at a time and go on.")
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting, as `method.q=shared` or `training.clip=1`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


# Whether a file can be written: asked before minutes of work, not after them.


def must_be_writable(option: str, path: Path) -> None:
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option}: {path} cannot be written")


def must_be_new(option: str, path: Path, replace: bool) -> None:
    """A file that can be written, and is not there unless it may be replaced."""
    must_be_writable(option, path)
    if path.exists() and not replace:
        raise UsageError(f"{option}: {path} is already there; --replace writes over it")


def must_have_room(option: str, folder: Path, names: Sequence[str]) -> None:
    """Make the folder if need be; what is in it by these names is left alone."""
    for name in names:
        if (folder / name).exists():
            raise UsageError(f"{option}: {folder / name} is there already; name another folder or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # the latter of a name that no system allows
        raise UsageError(f"{option}: {folder} cannot be made ({error})") from None
    must_be_writable(option, folder / names[0])


# What commands have in common that adapt a run to somebody's own pictures.


def read_support(source: Path, model: TrainedModel) -> SupportSet:
    """The labelled pictures; if some cannot be used, all of those are named."""
    from pathaware.inference import class_folders as folders

    try:
        return folders.read_support(source, model.image_input)
    except folders.SupportRefused as refused:
        if len(refused.problems) > 1:  # a single one is the error itself
            say_all(refused.problems)
        raise


def adapt(model: TrainedModel, support: SupportSet) -> AdaptedClassifier:
    return model.adapt(support.pixels, support.labels, len(support.classes))


def say_all(problems: tuple[str, ...] | list[str]) -> None:
    """On stderr, a line each, with nothing in it that a terminal would obey."""
    from pathaware.cli import one_line

    for problem in problems:
        print(one_line(problem), file=sys.stderr)
