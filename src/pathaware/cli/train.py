"""`pathaware train PROBLEM`: meta-train a method and keep the run in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathaware.cli.options import (
    FitMemory,
    Iterations,
    Json,
    Method,
    Out,
    Rate,
    Seed,
    Setting,
    Skip,
    Steps,
    Tasks,
)
from pathaware.core.errors import UsageError

if TYPE_CHECKING:
    from pathaware.training.config import Config

app = typer.Typer(help="Meta-train a method on a problem, or resume a run that was stopped.")

FOLDER = "folder"
SETS = ("miniimagenet", "cifar-fs", "fc100", "tieredimagenet", "omniglot", "glyphs")

Shots = Annotated[
    int | None, typer.Option(help="Support examples: points (default: 10) or images per class (default: 5).")
]
Queries = Annotated[
    int | None, typer.Option(help="Query examples: points (default: 10) or images per class (default: 15).")
]
Ways = Annotated[int | None, typer.Option(help="Classes per task (default: 5).")]
Model = Annotated[
    str | None, typer.Option(help="conv4, resnet12 or package.module:function (default: conv4).")
]
Width = Annotated[int | None, typer.Option(help="Filters per layer (default: 64).")]
Data = Annotated[str | None, typer.Option(help="Another imported data set; see `pathaware data list`.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the imported data sets.")]


@app.callback(invoke_without_command=True)
def resume(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Option("--resume", help="Resume the run in this folder.", metavar="RUN")
    ] = None,
    setting: Setting = None,
    json: Json = False,
) -> None:
    if context.invoked_subcommand is not None:
        if run is not None:
            raise UsageError(
                f"the settings are those of the run; leave out {context.invoked_subcommand}", field="resume"
            )
        return
    if run is None:
        print(context.get_help())
        raise typer.Exit(2)
    from pathaware.training.session import open_to_resume

    opened = open_to_resume(run, parse_settings(setting))
    train_and_evaluate(opened.config, opened.folder, json, resume=True)


@app.command("sine")
def sine(
    method: Method = "pamela",
    shots: Shots = None,
    queries: Queries = None,
    steps: Steps = None,
    skip: Skip = None,
    rate: Rate = None,
    iterations: Iterations = None,
    tasks: Tasks = None,
    seed: Seed = None,
    out: Out = None,
    fit_memory: FitMemory = None,
    setting: Setting = None,
    json: Json = False,
) -> None:
    """Few-shot regression of sine waves."""
    tables: dict[str, dict[str, Any]] = {
        "problem": {"name": "sine", "shots": shots, "queries": queries},
        "method": {"name": method, "steps": steps, "skip": skip, "rate": rate},
        "training": {"iterations": iterations, "tasks": tasks, "seed": seed, "fit_memory": fit_memory},
    }
    run_training(given(tables), setting, out, json)


def images(
    context: typer.Context,
    method: Method = "pamela",
    ways: Ways = None,
    shots: Shots = None,
    queries: Queries = None,
    model: Model = None,
    width: Width = None,
    steps: Steps = None,
    skip: Skip = None,
    rate: Rate = None,
    iterations: Iterations = None,
    tasks: Tasks = None,
    seed: Seed = None,
    data: Data = None,
    data_dir: DataDir = None,
    out: Out = None,
    fit_memory: FitMemory = None,
    setting: Setting = None,
    json: Json = False,
) -> None:
    """Few-shot classification; the name of the command is that of the data set."""
    named = str(context.info_name)
    if named == FOLDER and data is None:
        raise UsageError("name the imported data set to train on; see `pathaware data list`", field="data")
    folder = None if data_dir is None else str(data_dir)
    problem = {"ways": ways, "shots": shots, "queries": queries, "model_name": model, "width": width}
    tables: dict[str, dict[str, Any]] = {
        "problem": {"name": "classification", "data": data or named, "data_dir": folder, **problem},
        "method": {"name": method, "steps": steps, "skip": skip, "rate": rate},
        "training": {"iterations": iterations, "tasks": tasks, "seed": seed, "fit_memory": fit_memory},
    }
    run_training(over_preset(named, given(tables)), setting, out, json)


for _name in SETS:
    _note = ", with the defaults of the preset glyphs" if _name == "glyphs" else ""
    app.command(_name, help=f"Few-shot classification on {_name}{_note}.")(images)
app.command(FOLDER, help="Few-shot classification of your own images, once imported (--data).")(images)


@app.command("preset")
def preset(
    name: Annotated[
        str, typer.Argument(help="A row of the paper's tables, such as table2-cifar-fs-pamela-5shot.")
    ],
    iterations: Iterations = None,
    seed: Seed = None,
    out: Out = None,
    fit_memory: FitMemory = None,
    setting: Setting = None,
    json: Json = False,
) -> None:
    """Train a named configuration or your own TOML file; options override its settings."""
    from pathaware.training.presets import load_preset

    tables = load_preset(name)
    training = {"iterations": iterations, "seed": seed, "fit_memory": fit_memory}
    tables.setdefault("training", {}).update({k: v for k, v in training.items() if v is not None})
    run_training(tables, setting, out, json)


def given(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out options that were not given, so that the defaults of the configuration apply."""
    from pathaware.training.config import parse_value

    kept = {
        table: {key: value for key, value in values.items() if value is not None}
        for table, values in tables.items()
    }
    if "skip" in kept["method"]:
        kept["method"]["skip"] = parse_value(kept["method"]["skip"])
    return kept


def over_preset(data: str, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Lay the given settings over the preset of a data set, if any, as far as the method has its settings."""
    from pathaware.core.settings import trust
    from pathaware.methods import get_method
    from pathaware.training.presets import load_preset, presets

    base = load_preset(data) if data in presets() else {}
    trust(tables)
    known = get_method(tables["method"]["name"]).settings()
    base["method"] = {name: value for name, value in base.get("method", {}).items() if name in known}
    return {table: {**base.get(table, {}), **values} for table, values in tables.items()}


def run_training(
    tables: dict[str, dict[str, Any]], settings: list[str] | None, out: Path | None, json: bool
) -> None:
    """Train the configuration of these tables in a folder and print its evaluation."""
    from pathaware.core.settings import trust
    from pathaware.training.config import Config
    from pathaware.training.session import default_folder

    for table, values in parse_settings(settings).items():
        tables.setdefault(table, {}).update(values)
    trust(tables)
    config = Config.from_dict(tables)
    train_and_evaluate(config, out or default_folder(config), json)


def train_and_evaluate(config: Config, folder: Path, json: bool, *, resume: bool = False) -> None:
    """Train and evaluate on all processes that torchrun has started, or on one; rank 0 prints."""
    from pathaware.cli.show import print_evaluation
    from pathaware.training.distributed import process_group
    from pathaware.training.evaluation import evaluate
    from pathaware.training.session import load_trained, train_distributed

    problem = config.problem
    with process_group(config.training) as world:
        run = train_distributed(config, folder, world, quiet=json, resume=resume)
        result = evaluate(load_trained(run, world), problem, tasks=problem.evaluation_tasks, world=world)
    if world.is_writer:
        print_evaluation(run, result, json=json)
        if not json:
            print(f"the run is in {run.folder}; plot it with: pathaware plot {run.folder}")


def parse_settings(settings: list[str] | None) -> dict[str, dict[str, Any]]:
    """The values of `--set` as tables."""
    from pathaware.training.config import parse_setting

    tables: dict[str, dict[str, Any]] = {}
    for text in settings or []:
        table, key, value = parse_setting(text)
        tables.setdefault(table, {})[key] = value
    return tables
