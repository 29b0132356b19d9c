"""`pathaware evaluate RUN`: how good is it on tasks it has not seen?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.", metavar="RUN")],
    tasks: Annotated[int, typer.Option(help="How many new tasks.", min=1)] = 1000,
    steps: Annotated[int | None, typer.Option(help="Inner steps; default: as trained.")] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Allow more steps than trained: repeat the last one's.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the tasks; the same for every method.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Adapt to new tasks and measure after every inner step."""
    from pathaware.cli.show import print_evaluation
    from pathaware.training.evaluation import evaluate as measure
    from pathaware.training.run import Run

    opened = Run.open(run)
    learner = opened.load()
    result = measure(learner, opened.config.problem, tasks=tasks, seed=seed, steps=steps, extend=extend)
    print_evaluation(opened, result, json=json)
