"""`pathaware train PROBLEM`: meta-train one method and keep the run in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Meta-train a method on a problem.", no_args_is_help=True)


@app.command("sine")
def sine(
    method: Annotated[str, typer.Option(help="See `pathaware methods`.")] = "pamela",
    shots: Annotated[int, typer.Option(help="Support points of a task (the paper's K).")] = 10,
    queries: Annotated[int, typer.Option(help="Points of a task that the meta-loss is taken on.")] = 10,
    steps: Annotated[int | None, typer.Option(help="Inner steps; default: the method's own.")] = None,
    skip: Annotated[str | None, typer.Option(help="PAMELA's interval w, or none.")] = None,
    rate: Annotated[float | None, typer.Option(help="Inner rate, or where Q starts.")] = None,
    iterations: Annotated[int, typer.Option(help="Meta-iterations.")] = 60_000,
    tasks: Annotated[int, typer.Option(help="Tasks of a meta-iteration.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the start and of all tasks.")] = 0,
    out: Annotated[Path | None, typer.Option(help="New folder for the run.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting, as `method.q=shared` or `training.clip=10`."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Few-shot regression of sine waves."""
    from pathaware.training.config import parse_value

    given = {"steps": steps, "skip": skip and parse_value(skip), "rate": rate}
    asked = {"steps": steps, "skip": skip, "rate": rate}
    tables: dict[str, dict[str, Any]] = {
        "problem": {"name": "sine", "shots": shots, "queries": queries},
        "method": {"name": method, **{k: given[k] for k, v in asked.items() if v is not None}},
        "training": {"iterations": iterations, "tasks": tasks, "seed": seed},
    }
    run_training(tables, setting or [], out, json)


def run_training(
    tables: dict[str, dict[str, Any]], settings: list[str], out: Path | None, json: bool
) -> None:
    """Train what the tables say, keep it, and say how good it became."""
    from pathaware.cli.show import print_evaluation
    from pathaware.training.config import Config, parse_setting
    from pathaware.training.evaluation import evaluate
    from pathaware.training.session import default_folder, train_run

    for text in settings:
        table, key, value = parse_setting(text)
        tables[table][key] = value
    config = Config.from_dict(tables)
    run = train_run(config, out or default_folder(config), quiet=json)
    print_evaluation(run, evaluate(run.load(), config.problem), json=json)
    if not json:
        print(f"the run is in {run.folder}; see it with: pathaware plot {run.folder}")
