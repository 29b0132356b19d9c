"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Method = Annotated[str, typer.Option(help="See `pathaware methods`.")]
Steps = Annotated[int | None, typer.Option(help="Inner steps; default: the method's own.")]
Skip = Annotated[
    str | None, typer.Option(help="PAMELA's interval w, from 1 to the number of steps, or none.")
]
Rate = Annotated[float | None, typer.Option(help="Inner rate, or where learned rates start.")]
Iterations = Annotated[int | None, typer.Option(help="Meta-iterations.")]
Tasks = Annotated[int | None, typer.Option(help="Tasks of a meta-iteration.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the start and of all tasks.")]
Out = Annotated[Path | None, typer.Option(help="New folder for the run; default: runs/….")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting, as `method.q=shared` or `training.clip=1`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
