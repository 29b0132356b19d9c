"""`pathaware methods`: the methods that can be trained."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pathaware.cli.options import OUTPUT, Json, argument, complete_method, examples, flag

if TYPE_CHECKING:
    from pathaware.methods.method import Method

WIDE = 120
"""Columns of a terminal that has room for the papers."""
EXAMPLES = examples("pathaware methods", "pathaware methods pamela")


def methods(
    name: str | None = argument(
        "Show the paper, the equations and the settings of this method.",
        "NAME",
        default=None,
        complete=complete_method,
    ),
    json: Json = False,
    schema: bool = flag("--schema", OUTPUT, "Print the JSON schema of TOML files, for editors."),
) -> None:
    """List the methods, or show one of them in detail."""
    if schema:
        from pathaware.training.config import config_schema

        print(jsonlib.dumps(config_schema(), indent=1))
        return
    from pathaware.core.settings import trust
    from pathaware.methods import METHODS, get_method

    trust({"method": {"name": name}})
    chosen = list(METHODS.values()) if name is None else [get_method(name)]
    if json:
        print(jsonlib.dumps([described(each) for each in chosen], indent=1))
    elif name is None:
        print_list(chosen)
    else:
        print_one(name, chosen[0])


def described(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "year": method.year,
        "paper": method.paper,
        "summary": method.summary,
        "order": method.order,
        "transductive": "queries" if method.transductive else "batch norm",
        "settings": method.settings(),
    }


def print_list(chosen: Sequence[Method]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = {
        "name": "method",
        "summary": "what it does",
        "order": "order",
        "transductive": "transductive by",
    }
    if console.width >= WIDE:
        columns |= {"year": "year", "paper": "paper"}
    table = Table(*columns.values())
    for each in chosen:
        row = described(each)
        table.add_row(*(str(row[key]) for key in columns))
    console.print(table)
    print("For the paper, the equations and the settings of a method: pathaware methods NAME")


def print_one(name: str, method: Method) -> None:
    """Print the docstring of the method's file, and its settings in the form that `--set` takes."""
    from pathaware.methods import describe_method

    print(f"{method.name}: {method.summary}\n")
    print(describe_method(name))
    print(f"\npaper: {method.paper}")
    print("settings:")
    for key, value in method.settings().items():
        print(f"  --set method.{key}={'none' if value is None else str(value).lower()}")
