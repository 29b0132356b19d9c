"""The command line: `pathaware COMMAND …`, one command a file."""

from __future__ import annotations

import sys
from typing import Any

import typer

from pathaware.cli import bench, data, demo, evaluate, methods, plot, report, reproduce, sweep, train
from pathaware.errors import UsageError

app = typer.Typer(
    help="Path-aware meta-learning: train, evaluate and look at models that learn how to learn.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(train.app, name="train")
app.add_typer(data.app, name="data")
app.command("evaluate")(evaluate.evaluate)
app.command("plot")(plot.plot)
app.command("reproduce")(reproduce.reproduce)
app.command("sweep")(sweep.sweep)
app.command("report")(report.report)
app.command("methods")(methods.methods)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)

LONGEST = 2000
"""Characters of an error: the longest of our own list all presets."""

# Typer carries its own copy of click or imports it, depending on its version; either way this is the
# class of errors in how a command was called.
_CallError: Any = typer.BadParameter.__bases__[0]


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What the caller got wrong is one line on stderr and exit code 2."""
    try:
        code = app(arguments, standalone_mode=False)
    except UsageError as error:
        fail(str(error))
    except _CallError as error:
        message = error.format_message()
        if not message:  # a command group called without a command has printed its help
            sys.exit(2)
        fail(message)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> None:
    print("error: " + one_line(message), file=sys.stderr)
    sys.exit(2)


def one_line(message: str) -> str:
    """Also of what a caller put into it: control characters are shown, not sent, and it ends somewhere."""
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    line = "".join(shown)
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
