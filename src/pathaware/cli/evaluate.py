"""`pathaware evaluate RUN`: evaluate a run on new tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from pathaware.core.learner import QueryLevel
    from pathaware.training.evaluation import Balance


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or glyphs or sine.", metavar="RUN")],
    split: Annotated[str, typer.Option(help="Split of the tasks: train, val or test.")] = "test",
    tasks: Annotated[
        int | None, typer.Option(help="Number of new tasks (default: 1000 waves or 600 episodes).")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            help="What a prediction may know of the other queries of its task: nothing (alone), their "
            "batch-norm statistics (batch), or all that the method can use (joint). Default: as trained."
        ),
    ] = None,
    inductive: Annotated[bool, typer.Option("--inductive", help="Same as --queries alone.")] = False,
    balance: Annotated[
        str,
        typer.Option(
            help="Classes among the queries: balanced, or dirichlet for unequal numbers at the same total."
        ),
    ] = "balanced",
    steps: Annotated[int | None, typer.Option(help="Inner steps (default: as trained).")] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Allow more steps than trained: repeat the last one.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the tasks; the same for every method.", min=0)] = 0,
    record: Annotated[
        Path | None, typer.Option(help="Also write the result and its provenance to this JSON file.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Adapt to new tasks and measure predictions after every inner step."""
    from pathaware.cli.show import print_evaluation
    from pathaware.inference.trained_model import find_run
    from pathaware.training.evaluation import evaluate as measure
    from pathaware.training.provenance import evaluation_record, write_record
    from pathaware.training.run_folder import Run

    opened = Run.open(find_run(run))
    learner = opened.load(device)
    problem = opened.config.problem
    result = measure(
        learner,
        problem,
        split=split,
        tasks=problem.evaluation_tasks if tasks is None else tasks,
        seed=seed,
        steps=steps,
        extend=extend,
        queries=cast("QueryLevel | None", queries),
        balance=cast("Balance", balance),
        inductive=inductive,
    )
    if record:
        write_record(record, evaluation_record(opened, result))
    print_evaluation(opened, result, json=json)
