"""`pathaware train PROBLEM`: meta-train a method and keep the run in a folder."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pathaware.cli.options import (
    DATA_SETS,
    OUTPUT,
    TRAINING,
    Given,
    Json,
    Method,
    Out,
    Rate,
    Setting,
    Skip,
    Steps,
    TestTasks,
    argument,
    complete_preset,
    complete_run,
    examples,
    of_settings,
    panel_option,
    with_settings,
)
from pathaware.core.errors import UsageError, did_you_mean
from pathaware.training.settings import ClassificationSettings, SineSettings, Training

if TYPE_CHECKING:
    from pathaware.training.config import Config
    from pathaware.training.run_folder import Run

FOLDER = "folder"


class TrainingCommand(TyperCommand):
    """A command whose help shows the defaults that its configuration has, found when the help is printed."""

    def get_help(self, ctx: Any) -> str:
        shown = default_texts(str(ctx.info_name))
        needed = [p for p in self.params if ctx.info_name == FOLDER and p.name == "data"]
        for parameter in self.params:
            if parameter.name in shown:
                parameter.show_default = shown[parameter.name]  # type: ignore[attr-defined]
        for parameter in needed:
            parameter.required = True  # for the help; the command has a better message
        text = super().get_help(ctx)
        for parameter in needed:
            parameter.required = False
        return text


class Problems(TyperGroup):
    """The commands of `pathaware train`, with better messages for names of data sets."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            from pathaware.cli.data import train_command
            from pathaware.data.catalogue import imported_stores, open_store

            if args[0] in {folder.name for folder in imported_stores()}:
                command = None
                with suppress(UsageError):  # `train folder` says why a store cannot be opened
                    command = train_command(args[0], open_store(args[0]))
                command = command or f"pathaware train folder --data {args[0]}"
                raise UsageError(f"{args[0]} is an imported data set: {command}")
            hint = did_you_mean(args[0], self.commands)
            raise UsageError(
                f"{args[0]!r} must be one of {', '.join(self.commands)}, or an imported data set (see "
                f"`pathaware data list`){hint}"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Problems,
    help="Meta-train a method on a problem, or resume a run that was stopped.",
    epilog=examples("pathaware train glyphs", "pathaware train --resume runs/sine-k10-pamela-seed0"),
)


@app.callback(invoke_without_command=True)
def resume(
    context: typer.Context,
    run: Path | None = panel_option(
        None,
        TRAINING,
        "Resume the run in this folder, with the settings it began with.",
        "--resume",
        metavar="RUN",
        complete=complete_run,
    ),
    setting: list[str] | None = panel_option(
        None,
        TRAINING,
        "With --resume: fail unless this setting of the run has this value. Can be repeated.",
        "--set",
        metavar="TABLE.NAME=VALUE",
    ),
    test_tasks: TestTasks = None,
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
    from pathaware.training.train import open_to_resume

    opened = open_to_resume(run, parse_settings(setting))
    train_and_evaluate(opened.config, opened.folder, json, resume=True, test_tasks=test_tasks)


def command_of(settings: type, *names: str) -> Callable[..., None]:
    """The command that trains on `sine` or, by the name of a data set, on its images."""

    @with_settings
    def problem(
        context: typer.Context,
        method: Method = "pamela",
        problem: Given = of_settings(settings, *names),
        steps: Steps = None,
        skip: Skip = None,
        rate: Rate = None,
        training: Given = of_settings(Training, "iterations", "tasks", "seed", "device", "fit_memory"),
        test_tasks: TestTasks = None,
        out: Out = None,
        setting: Setting = None,
        json: Json = False,
    ) -> None:
        named = str(context.info_name)
        if named == FOLDER and "data" not in problem:
            raise UsageError(
                "name the imported data set to train on; see `pathaware data list`", field="data"
            )
        kind = {"name": "sine"} if named == "sine" else {"name": "classification", "data": named}
        tables = {
            "problem": {**kind, **problem},
            "method": method_table(method, steps, skip, rate),
            "training": training,
        }
        check_problem(kind["name"], setting)
        run_training(over_preset(named, tables), setting, out, json, test_tasks)

    return problem


def method_table(method: str, steps: int | None, skip: str | None, rate: float | None) -> dict[str, Any]:
    """The settings of the method that were given; the others have the defaults of the configuration."""
    from pathaware.training.config import parse_value

    given = {key: value for key, value in {"steps": steps, "rate": rate}.items() if value is not None}
    return {"name": method, **given, **({} if skip is None else {"skip": parse_value(skip)})}


def check_problem(problem: str, settings: list[str] | None) -> None:
    """Refuse a `--set` of another problem than the command's, whose other options would make no sense."""
    chosen = parse_settings(settings).get("problem", {}).get("name", problem)
    if chosen != problem:
        raise UsageError(
            f"problem.name={chosen}: the problem is named by the command (see pathaware train --help)",
            field="set",
        )


def default_texts(command: str) -> dict[str, str]:
    """The defaults of the options of `pathaware train COMMAND`, for its help."""
    from pathaware.training.config import Config
    from pathaware.training.train import default_folder

    data = "DATA" if command == FOLDER else command
    problem = {"name": "sine"} if command == "sine" else {"name": "classification", "data": data}
    tables = over_preset(command, {"problem": problem, "method": {"name": "pamela"}, "training": {}})
    config = Config.from_dict(tables)
    values = config.to_dict()
    shown = ("ways", "shots", "queries", "iterations", "tasks", "seed")
    texts = {name: str(v) for name, v in {**values["training"], **values["problem"]}.items() if name in shown}
    texts |= {
        "out": str(default_folder(config)),
        "data": data,
        "test_tasks": str(config.problem.evaluation_tasks),
    }
    texts["skip"] = str(values["method"]["skip"])
    for option in ("steps", "rate"):
        texts[option] = f"{values['method'][option]} for pamela"
    if command != "sine":
        texts["model"] = values["problem"]["model_name"]
        if width := values["problem"]["width"]:
            texts["width"] = str(width)
    return texts


images = command_of(
    ClassificationSettings,
    *("ways", "shots", "queries", "model_name", "width", "weights", "adapt", "data", "data_dir"),
)
app.command(
    "sine",
    cls=TrainingCommand,
    help="Few-shot regression of sine waves.",
    epilog=examples(
        "pathaware train sine --method maml --iterations 2000",
        "pathaware train sine --set method.q=shared --seed 1",
    ),
)(command_of(SineSettings, "shots", "queries"))
for _name in DATA_SETS:
    _short = (
        "pathaware train glyphs --iterations 200"
        if _name == "glyphs"
        else f"pathaware train {_name} --shots 1"
    )
    app.command(
        _name,
        cls=TrainingCommand,
        help="Few-shot classification on glyphs, which need no import; a small model in minutes."
        if _name == "glyphs"
        else f"Few-shot classification on {_name}, with the paper's settings for images.",
        epilog=examples(_short, f"pathaware train {_name} --method maml --set training.validate=100"),
    )(images)
app.command(
    FOLDER,
    cls=TrainingCommand,
    help="Few-shot classification of your own images, after `pathaware data import`.",
    epilog=examples("pathaware train folder --data birds --ways 5 --shots 5"),
)(images)


def _print_presets(wanted: bool) -> None:
    if wanted:
        from pathaware.training.presets import all_presets

        print("\n".join(all_presets()))
        raise typer.Exit


@app.command(
    "preset",
    epilog=examples(
        "pathaware train preset glyphs --iterations 200",
        "pathaware train preset table2-cifar-fs-pamela-5shot --iterations 20000",
    ),
)
@with_settings
def preset(
    name: str = argument(
        "Name of a preset, such as table2-cifar-fs-pamela-5shot; --list prints all. Or a TOML file.",
        "NAME",
        complete=complete_preset,
    ),
    listed: bool = panel_option(
        False,
        OUTPUT,
        "Print the names of all presets and exit.",
        "--list",
        shown=False,
        metavar="",
        callback=_print_presets,
        is_eager=True,
    ),
    training: Given = of_settings(
        Training,
        *("iterations", "seed", "device", "fit_memory"),
        iterations="the preset's",
        seed="the preset's, else 0",
        device="the preset's, else auto",
    ),
    out: Path | None = panel_option(
        None, OUTPUT, "New folder for the run.", shown="runs/PROBLEM-METHOD-seedN"
    ),
    setting: Setting = None,
    test_tasks: TestTasks = None,
    json: Json = False,
) -> None:
    """Train a named configuration, such as a row of the paper's tables, or your own TOML file."""
    from pathaware.training.presets import load_preset, presets

    tables = load_preset(name)
    if name in presets():  # glyphs, the defaults of `train glyphs`, leaves the method open
        tables.setdefault("method", {}).setdefault("name", "pamela")
    tables.setdefault("training", {}).update(training)
    run_training(tables, setting, out, json, test_tasks)


def over_preset(data: str, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Lay the given settings over the preset of a data set, if any, as far as the method has its settings."""
    from pathaware.core.settings import trust
    from pathaware.methods import get_method
    from pathaware.training.presets import DIRECT, load_preset, presets

    method = tables["method"]["name"]
    base = load_preset(data, method) if data in presets() else {}
    if data == FOLDER and method == "pamela":  # own images are rarely trained for long
        base = {"method": DIRECT}
    trust(tables)
    own = tables["problem"].get("model_name")
    if own not in (None, base.get("problem", {}).get("model_name", "conv4")):
        base.get("problem", {}).pop("width", None)  # that of the preset's network
    known = get_method(method).settings()
    # rate and q_start mean nothing without each other
    pair = set(DIRECT) if set(DIRECT) & tables["method"].keys() else set()
    base["method"] = {k: v for k, v in base.get("method", {}).items() if k in known and k not in pair}
    return {table: {**base.get(table, {}), **values} for table, values in tables.items()}


def run_training(
    tables: dict[str, dict[str, Any]],
    settings: list[str] | None,
    out: Path | None,
    json: bool,
    test_tasks: int | None = None,
) -> None:
    """Train the configuration of these tables in a folder and print its evaluation."""
    from pathaware.core.settings import trust
    from pathaware.training.config import Config
    from pathaware.training.train import default_folder

    for table, values in parse_settings(settings).items():
        tables.setdefault(table, {}).update(values)
    trust(tables)
    config = Config.from_dict(tables)
    train_and_evaluate(config, out or default_folder(config), json, test_tasks=test_tasks)


def train_and_evaluate(
    config: Config, folder: Path, json: bool, *, resume: bool = False, test_tasks: int | None = None
) -> None:
    """Train and evaluate on all processes that torchrun has started, or on one; rank 0 prints."""
    from pathaware.cli.show import command_line, plugin_modules, print_evaluation
    from pathaware.core.settings import at_most
    from pathaware.data.store import counted
    from pathaware.training.distributed import process_group
    from pathaware.training.evaluation import MOST_TASKS, evaluate
    from pathaware.training.loop import QUIET
    from pathaware.training.progress import ProgressDisplay
    from pathaware.training.train import train

    problem, title = config.problem, f"{config.method} on {config.problem.label}"
    tasks = problem.evaluation_tasks if test_tasks is None else test_tasks
    at_most(MOST_TASKS, test_tasks=tasks)
    result = None
    with process_group(config.training) as world:
        display = QUIET if json else ProgressDisplay
        run = train(config, folder, resume=resume, world=world, display=display)
        quiet = json or not world.is_writer
        if tasks:
            _note(f"{title}: evaluating {counted(tasks, 'test task')} …", quiet)
            own = len(world.part(tasks))
            shown = ProgressDisplay(f"{title}, evaluation", own, quiet=quiet, transient=True)
            with _completed(run, quiet), shown:
                trained = run.trained(world)
                result = evaluate(trained, problem, tasks=tasks, world=world, progress=shown.count)
    if not world.is_writer:
        return
    if result is not None:
        if config.training.validate and not problem.regression:
            with _completed(run, json):
                _calibrate(run, title, quiet=json)
        print_evaluation(run, result, json=json)
    elif json:
        print(jsonlib.dumps({"method": config.method, "problem": problem.name, "tasks": 0}))
    if not json:
        verb = "plot" if tasks else "evaluate"
        command = command_line(verb, run.folder, modules=plugin_modules(run.folder))
        print(f"the run is in {run.folder}; {verb} it with: {command}")


@contextmanager
def _completed(run: Run, quiet: bool) -> Iterator[None]:
    """A context after training: Ctrl-C says that nothing of the run is lost."""
    try:
        yield
    except KeyboardInterrupt:
        _note(f"stopped; the training in {run.folder} is complete", quiet)
        raise


def _note(line: str, quiet: bool) -> None:
    if not quiet:
        print(line, file=sys.stderr, flush=True)


def _calibrate(run: Run, title: str, *, quiet: bool) -> None:
    """Fit temperatures and thresholds on the validation classes of a run, if they suffice."""
    from pathaware.inference.calibration import CALIBRATION, fit_calibration
    from pathaware.inference.trained_model import TrainedModel
    from pathaware.training.progress import ProgressDisplay

    if (run.folder / CALIBRATION).exists():  # a finished run that was resumed
        return
    _note(f"{title}: calibrating on validation classes …", quiet)
    try:
        model = TrainedModel.open(run.folder, run.config.training.device)
        with ProgressDisplay(f"{title}, calibration", quiet=quiet, transient=True) as display:
            fit_calibration(model, progress=display.count).write(run.folder)
    except UsageError as error:
        print(f"not calibrated: {error.message}", file=sys.stderr)


def parse_settings(settings: list[str] | None) -> dict[str, dict[str, Any]]:
    """The values of `--set` as tables."""
    from pathaware.training.config import parse_setting

    tables: dict[str, dict[str, Any]] = {}
    for text in settings or []:
        table, key, value = parse_setting(text)
        tables.setdefault(table, {})[key] = value
    return tables
