"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
