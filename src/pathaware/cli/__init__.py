"""The command line: `pathaware COMMAND …`, one command a file."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import typer

from pathaware.cli import (
    bench,
    data,
    demo,
    evaluate,
    export,
    methods,
    online,
    plot,
    predict,
    report,
    reproduce,
    serve,
    sweep,
    train,
)
from pathaware.core.errors import RunError, Stopped, UsageError, printable

app = typer.Typer(
    help="Path-aware meta-learning: train, evaluate and look at models that learn how to learn.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(train.app, name="train")
app.add_typer(data.app, name="data")
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)
app.command("export")(export.export)
app.command("plot")(plot.plot)
app.command("report")(report.report)
app.command("methods")(methods.methods)
app.command("online")(online.online)
app.command("reproduce")(reproduce.reproduce)
app.command("sweep")(sweep.sweep)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)

LONGEST = 2000
"""Characters of an error: the longest of our own list all presets."""

_ARGUMENTS = {"run": "RUN", "file": "FILE", "target": "TARGET"}

# Typer carries its own copy of click or imports it, depending on its version; either way this is the
# class of errors in how a command was called.
_CallError: Any = typer.BadParameter.__bases__[0]


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What the caller got wrong is one line on stderr and exit code 2; a run that cannot go on
    is one line and 1; one that was stopped says how to go on, and exits as the signal would have it."""
    try:
        code = app(arguments, standalone_mode=False)
    except UsageError as error:
        fail(f"{option(error.field)}: {error.message}" if error.field else error.message)
    except RunError as error:
        fail(str(error), 1)
    except Stopped as stopped:
        for folder in stopped.folders:
            print(f"go on with: pathaware train --resume {shlex.quote(str(folder))}", file=sys.stderr)
        fail(str(stopped), 128 + stopped.signum)
    except _CallError as error:
        message = error.format_message()
        if not message:  # a command group called without a command has printed its help
            sys.exit(2)
        fail(message)
    except OSError as error:
        if error.filename is None:
            raise
        fail(f"{error.filename}: {error.strerror}")  # a file or folder of the caller's that is not to be had
    except typer.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def option(field: str) -> str:
    """How the command line calls an argument of the library."""
    return _ARGUMENTS.get(field, f"--{field.replace('_', '-')}")


def fail(message: str, code: int = 2) -> None:
    print("error: " + one_line(message), file=sys.stderr)
    sys.exit(code)


def one_line(message: str) -> str:
    """Return a message as one printable line of limited length."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
