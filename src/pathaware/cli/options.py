"""Panels, options, completions and checks that several commands share.

Nothing here imports PyTorch, which would take seconds at every press of Tab.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathaware.core.errors import UsageError
from pathaware.core.settings import data_dir, type_hints
from pathaware.training.presets import all_presets
from pathaware.training.settings import COMPUTE as COMPUTE
from pathaware.training.settings import DATA as DATA
from pathaware.training.settings import METHOD as METHOD
from pathaware.training.settings import TASKS as TASKS
from pathaware.training.settings import TRAINING as TRAINING

if TYPE_CHECKING:
    from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel
    from pathaware.training.evaluation import Views
    from pathaware.training.run_folder import Run

OUTPUT = "Output"
"""The panel of options that are no settings; `training.settings` has the others."""

DATA_SETS = ("miniimagenet", "cifar-fs", "fc100", "tieredimagenet", "omniglot", "glyphs")
"""Known data sets: `pathaware.data.IMPORTERS`, and glyphs, which need no import."""

_PACKAGE = Path(__file__).parents[1]


def complete_method(incomplete: str) -> list[str]:
    """Methods by name, read from the source because importing them takes seconds."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((_PACKAGE / "methods").glob("*.py")))
    found = (re.search(r'^METHOD = Method\(\s*(?:name=)?"([^"]+)"', text, re.MULTILINE) for text in texts)
    return _beginning(incomplete, [match[1] for match in found if match])


def complete_data(incomplete: str) -> list[str]:
    """The known data sets, and those that were imported."""
    imported = (path.parent.name for path in data_dir().glob("[!.]*/store.json"))
    return _beginning(incomplete, [*DATA_SETS, *imported])


def complete_preset(incomplete: str) -> list[str]:
    return _beginning(incomplete, all_presets())


def complete_run(incomplete: str) -> list[str]:
    """Run folders in `runs`; other folders are completed by the shell."""
    return _beginning(incomplete, [str(path.parent) for path in Path("runs").glob("*/config.toml")])


def complete_model(incomplete: str) -> list[str]:
    """The models that ship with the package, and run folders in `runs`."""
    names = [path.parent.name for path in (_PACKAGE / "inference/shipped").glob("*/config.toml")]
    return _beginning(incomplete, names) + complete_run(incomplete)


COMPLETIONS = {"data": complete_data, "teacher": complete_run}  # of the values of settings


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def panel_option(
    default: Any,
    panel: str,
    help: str,
    *names: str,
    shown: str | bool = True,
    complete: Callable[[str], list[str]] | None = None,
    **more: Any,
) -> Any:
    """An option in a panel; `shown` is the text to show where the default is found only later.

    In `Annotated`, which has its default elsewhere, `default` is `...`.
    """
    more |= {"show_default": shown, "autocompletion": complete}
    return typer.Option(default, *names, help=help, rich_help_panel=panel, **more)


def flag(name: str, panel: str, help: str, default: Any = False) -> Any:
    """An option without a value."""
    return typer.Option(default, name, help=help, rich_help_panel=panel, metavar="", show_default=False)


def argument(
    help: str, metavar: str, complete: Callable[[str], list[str]] | None = None, default: Any = ...
) -> Any:
    """A positional argument; `metavar` is its name in the help."""
    return typer.Argument(default, help=help, metavar=metavar, autocompletion=complete)


Given = dict[str, Any]
"""Settings that were given as options, by name."""


def of_settings(kind: type, *names: str, **shown: str) -> Any:
    """Options for settings of a dataclass, as the default of a parameter of a command, see `with_settings`.

    They show the defaults of the settings, or those that are `shown`.
    """
    return {name: _option(kind, name, shown.get(name, "")) for name in names}


def _option(kind: Any, name: str, shown: str) -> inspect.Parameter:
    """The option of a setting; it is None if it is not given."""
    setting, hint = kind.__dataclass_fields__[name], type_hints(kind)[name]
    about, own = setting.metadata, setting.metadata["name"] or name
    if hint is bool:
        info = flag(f"--{own.replace('_', '-')}", about["panel"], about["help"], default=...)
    else:
        text = shown or about["shown"] or str(setting.default)
        complete = COMPLETIONS.get(own)
        info = panel_option(..., about["panel"], about["help"], shown=text, complete=complete)
    given: Any = Path if about["path"] else hint if hint in (bool, int, float) else str
    return inspect.Parameter(own, _BY_NAME, default=None, annotation=Annotated[given | None, info])


_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters with a default of `of_settings` receive the settings that were given."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    expanded = {parameter.name: parameter.default for parameter in own if isinstance(parameter.default, dict)}
    parts = (expanded.get(each.name, {"": each.replace(kind=_BY_NAME)}).values() for each in own)
    parameters = list(chain.from_iterable(parts))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for parameter, options in expanded.items():
            given = {name: values.pop(option.name) for name, option in options.items()}
            values[parameter] = {
                n: str(v) if isinstance(v, Path) else v for n, v in given.items() if v is not None
            }
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def examples(*lines: str) -> str:
    """The end of a help page: command lines to copy."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def paragraphs(function: Callable[..., Any]) -> str:
    """The docstring of a command with one line per paragraph, so that a terminal wraps it."""
    return "\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))


DEVICES = "auto, cpu, cuda or cuda:N."
Method = Annotated[
    str,
    panel_option(
        ...,
        METHOD,
        "Method to train; `pathaware methods` lists them, `pathaware methods NAME` their settings.",
        complete=complete_method,
    ),
]
Steps = Annotated[int | None, panel_option(..., METHOD, "Number of inner steps.")]
Skip = Annotated[
    str | None,
    panel_option(..., METHOD, "Interval w of PAMELA's skips: 1 to the number of steps, or none."),
]
Rate = Annotated[
    float | None,
    panel_option(..., METHOD, "Step size of the inner loop, or its initial value if it is learned."),
]
TestTasks = Annotated[
    int | None,
    panel_option(
        ...,
        TRAINING,
        "Number of test tasks to evaluate on after training; 0 skips evaluation and calibration.",
        shown="1000 for sine, 600 for images",
        min=0,
    ),
]
Setting = Annotated[
    list[str] | None,
    panel_option(
        ...,
        TRAINING,
        "Any other setting, such as method.q=shared or training.clip=1. Can be repeated.",
        "--set",
        metavar="TABLE.NAME=VALUE",
    ),
]
Out = Annotated[Path | None, panel_option(..., OUTPUT, "New folder for the run.")]
Json = Annotated[bool, flag("--json", OUTPUT, "Print one JSON object and nothing else.", default=...)]
Device = Annotated[str, panel_option(..., COMPUTE, DEVICES)]
Replace = Annotated[bool, flag("--replace", OUTPUT, "Overwrite existing files.", default=...)]
DataDir = Annotated[
    Path | None,
    panel_option(
        ...,
        DATA,
        "Folder of the imported data sets.",
        shown="$PATHAWARE_DATA, else pathaware in the XDG data home",
    ),
]
NewTasks = Annotated[
    int | None,
    panel_option(
        ..., TASKS, "Number of new tasks to evaluate on.", shown="1000 for sine, 600 for images", min=2
    ),
]


def must_be_writable(option: str, path: Path) -> None:
    """Raise if a file cannot be written; to be called before minutes of work."""
    folder = path.absolute().parent
    reason = None
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"{path.parent} is not a folder" if folder.exists() else f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "permission denied"
    if reason:
        raise UsageError(f"{option}: {path} cannot be written ({reason})")
    if not path.exists():
        try:  # permissions do not tell everything
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(f"{option}: {path} cannot be written ({error.strerror})") from None


def must_be_new(option: str, path: Path, replace: bool) -> None:
    """Raise if a file cannot be written, or exists and may not be replaced."""
    must_be_writable(option, path)
    if path.exists() and not replace:
        raise UsageError(f"{option}: {path} exists; add --replace to overwrite it")


def must_be_empty(option: str, folder: Path) -> None:
    """Raise if a folder cannot be written, or has files in it other than hidden ones."""
    if not folder.is_dir():
        if folder.exists():
            raise UsageError(f"{option}: {folder} is a file; name a new folder")
        must_be_writable(option, folder)
        return
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UsageError(f"{option}: {folder} is not empty; name a new folder")
    must_be_writable(option, folder / "new")


def must_be_png(option: str, path: Path | None) -> None:
    """Raise if the name says that a file is not a PNG image."""
    if path is not None and path.suffix and path.suffix.lower() != ".png":
        raise UsageError(f"{option}: must end in .png, not {path}")


def open_trained(folder: Path) -> Run:
    """Open a run that is measured on tasks; a saved classifier, which has classes of its own, is refused."""
    from pathaware.cli.show import command_line
    from pathaware.inference.trained_model import SUPPORT
    from pathaware.training.run_folder import Run

    run = Run.open(folder)
    if (folder / SUPPORT).is_file():
        raise UsageError(
            f"{folder} is a saved classifier; `pathaware learn` measured it on held-out pictures. Measure it "
            f"on new ones, in class folders, with: {command_line('predict', folder, '--images')} DIR --score",
            field="run",
        )
    return run


def open_model(run: str, device: str, views: Views = "single") -> TrainedModel:
    """Open a model; for class folders in its place, the error names the commands that take them."""
    from pathaware.cli.show import command_line
    from pathaware.inference.class_folders import has_class_folders
    from pathaware.inference.trained_model import TrainedModel

    try:
        return TrainedModel.open(run, device, views)
    except UsageError as error:
        if error.field != "run" or not has_class_folders(Path(run)):
            raise
        learn, predict = command_line("learn", run), command_line("predict", "photos", "--support", run)
        raise UsageError(
            f"{run} holds labelled pictures and is not a classifier; make one of it with: {learn}; or label "
            f"pictures without: {predict} --images PICTURES",
            field="run",
        ) from None


def read_support(source: Path | None, model: TrainedModel) -> SupportSet:
    """Read the labelled images, or take those of a saved classifier; name all that cannot be used."""
    from pathaware.inference import class_folders as folders

    if source is None:
        if model.support is None:
            raise UsageError(
                "name a folder of labelled pictures; only saved classifiers do without", "support"
            )
        return model.support
    with listed_problems():
        return folders.read_support(source, model.image_input)


@contextmanager
def listed_problems() -> Iterator[None]:
    """Print the files that make a folder of labelled images unusable, before the error itself."""
    from pathaware.inference.class_folders import SupportRefused

    try:
        yield
    except SupportRefused as refused:
        if len(refused.problems) > 1:  # a single one is the message of the error
            print_problems(refused.problems)
        raise


def adapt(model: TrainedModel, support: SupportSet) -> AdaptedClassifier:
    return model.adapt(support.pixels, support.labels, len(support.classes))


def print_warning(message: str) -> None:
    """Print a warning, as one line of standard error."""
    from pathaware.cli import one_line

    print(f"warning: {one_line(message)}", file=sys.stderr)


def warn_undrawable(*texts: str) -> None:
    """Warn about characters that a sheet shows as empty boxes."""
    from pathaware.data.contact_sheet import undrawable

    if missing := undrawable(texts):
        shown = missing[:10] + ("…" if missing[10:] else "")
        print_warning(f"no installed font has {shown}; the image shows boxes in their place")


def print_problems(problems: tuple[str, ...] | list[str], most: int | None = 10) -> None:
    """Print problems, one per line of standard error, and the number of those beyond `most`."""
    from pathaware.cli import one_line

    for problem in problems[:most]:
        print(one_line(problem), file=sys.stderr)
    if most is not None and len(problems) > most:
        print(f"… and {len(problems) - most:,} more", file=sys.stderr)
