"""The command line: `pathaware COMMAND …`, one command per file.

This is the only package that knows the names of options: the library raises `UsageError(message, field)`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pathaware.cli import (
    data,
    demo,
    evaluate,
    export,
    learn,
    methods,
    models,
    plot,
    predict,
    pretrain,
    report,
    serve,
    suggest,
    sweep,
    train,
)
from pathaware.cli.options import examples, paragraphs
from pathaware.core import VERSION
from pathaware.core.errors import RunError, Stopped, UnfinishedRun, UsageError, printable

PANELS = {
    "Start here": {"demo": demo},
    "Label images": {
        "learn": learn,
        "predict": predict,
        "suggest": suggest,
        "serve": serve,
        "export": export,
    },
    "Train": {"train": train, "pretrain": pretrain, "methods": methods, "models": models},
    "Evaluate and compare": {"evaluate": evaluate, "plot": plot, "report": report, "sweep": sweep},
    "Data": {"data": data},
    "Research": {entry.name: entry.load() for entry in sorted(entry_points(group="pathaware.commands"))},
}
"""The commands by what people want, in the order of the help. The last panel is filled by entry points."""
IN_RESEARCH = ("reproduce", "online", "bench", "results")
"""Commands of the distribution `pathaware-research`."""


class Commands(TyperGroup):
    """Lists the commands in the order of `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for commands in PANELS.values() for name in commands]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Say where a command is that another distribution adds."""
        if args[0] in IN_RESEARCH and args[0] not in self.commands:
            raise UsageError(f"{args[0]} is in the research package: pip install ./research")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    help="Path-aware meta-learning: train, evaluate and use models that adapt to new tasks.",
    epilog=examples(
        "pathaware serve glyphs --open",
        "pathaware train glyphs",
        "pathaware COMMAND --help",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _commands in PANELS.items():
    for _name, _module in _commands.items():
        if hasattr(_module, "app"):
            app.add_typer(_module.app, name=_name, rich_help_panel=_panel)
        else:
            _function = getattr(_module, _name)
            app.command(_name, help=paragraphs(_function), epilog=_module.EXAMPLES, rich_help_panel=_panel)(
                _function
            )


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pathaware {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            metavar="",
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Options of `pathaware` itself; the help text is `app`'s."""


command = typer.main.get_command(app)
"""The parser of the command line, built once."""

LONGEST = 2000
"""Characters of an error message."""

_ARGUMENTS = {"run": "RUN", "file": "FILE", "target": "TARGET", "folder": "DIR", "name": "NAME"}

# Typer imports click or bundles it, depending on its version; this is the base class of its usage errors.
_CallError: Any = typer.BadParameter.__bases__[0]


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit.

    Invalid input is one line on standard error and exit code 2; a failed run is one line and code 1; a
    stopped run prints how to resume it and exits with 128 plus the signal's number.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if "" in given:  # as a path it would mean the current folder
        before = given[given.index("") - 1] if given.index("") else ""
        fail(f"{before}: must not be empty" if before.startswith("-") else "an argument is empty")
    # Pillow warns about odd image files in several lines; whether a file can be used is for us to say.
    warnings.filterwarnings("ignore", module=r"PIL\.|pathaware\.data\.")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        code = command(arguments, standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        fail(about_option(error, given))
    except RunError as error:
        fail(str(error), 1)
    except Stopped as stopped:
        from pathaware.cli.show import command_line, plugin_modules

        how = str(stopped).partition(": ")[2]  # after the name of the signal
        for folder in stopped.folders:
            resume = command_line(stopped.kind, "--resume", folder, modules=plugin_modules(folder))
            print(f"{how}; resume with: {resume}", file=sys.stderr)
        sys.exit(128 + stopped.signum)
    except _CallError as error:
        message = error.format_message()
        if not message:  # a group without a command has printed its help
            sys.exit(2)
        if context := getattr(error, "ctx", None):
            message += f"{'' if message.endswith(('.', '?')) else '.'} See `{context.command_path} --help`."
        fail(message)
    except OSError as error:
        if error.filename is not None:
            fail(f"{error.filename}: {error.strerror}")  # a file or folder that cannot be opened
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to write there would fail again
        fail(f"standard output cannot be written ({error.strerror})", 1)
    except typer.Abort:
        sys.exit(130)
    code = code if isinstance(code, int) else 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from pathaware.training.distributed import leave

        leave(code)
    sys.exit(code)


def option(field: str, given: Sequence[str] = ()) -> str:
    """The option or argument for an argument of the library, in the command that these words call."""
    for parameter in called_command(given).params:
        if parameter.name == field and parameter.param_type_name == "argument":
            return str(parameter.metavar or field.upper())
        if parameter.name == field:
            return str(parameter.opts[0])
    if field == "run" and "--resume" in given:
        return "--resume"
    return _ARGUMENTS.get(field, f"--{field.replace('_', '-')}")


def about_option(error: UsageError, given: Sequence[str] = ()) -> str:
    """The message of an error, beginning with the option or argument at fault.

    A setting names itself, as its file would: `steps: 0 is not allowed`. That becomes `--steps: …` if these
    words give the option, and not also a `--set` of the same name.
    """
    if isinstance(error, UnfinishedRun):
        from pathaware.cli.show import command_line, plugin_modules

        resume = command_line("train", "--resume", error.folder, modules=plugin_modules(error.folder))
        return f"{option(error.field or 'run', given)}: {error.message}; resume it with: {resume}"
    if error.field:
        return f"{option(error.field, given)}: {error.message}"
    setting, colon, reason = error.message.partition(": ")
    if not colon or any(f".{setting}=" in word or word.startswith(f"{setting}=") for word in given):
        return error.message
    words = {word.partition("=")[0] for word in given}
    for parameter in called_command(given).params:
        if parameter.name == setting and words & set(parameter.opts):
            return f"{parameter.opts[0]}: {reason}"
    return error.message


def called_command(given: Sequence[str]) -> Any:
    """The command that these words call."""
    called: Any = command
    for word in given:
        if word not in getattr(called, "commands", {}):
            break
        called = called.commands[word]
    return called


def fail(message: str, code: int = 2) -> None:
    print("error: " + one_line(message), file=sys.stderr)
    sys.exit(code)


def one_line(message: str) -> str:
    """Return a message as one printable line of limited length."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
