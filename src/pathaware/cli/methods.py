"""`pathaware methods`: what can be trained."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathaware.cli.options import Json

if TYPE_CHECKING:
    from pathaware.methods.method import Method


def methods(
    name: Annotated[str | None, typer.Argument(help="One of them, to see its update and settings.")] = None,
    json: Json = False,
) -> None:
    """List the methods, or show one: its paper, its update and its settings."""
    from pathaware.core.plugins import trust
    from pathaware.methods import METHODS, get_method

    trust({"method": {"name": name}})
    chosen = list(METHODS.values()) if name is None else [get_method(name)]
    if json:
        print_json([described(each) for each in chosen])
    elif name is None:
        print_list(chosen)
    else:
        print_one(chosen[0])


def described(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "year": method.year,
        "paper": method.paper,
        "summary": method.summary,
        "order": method.order,
        "transductive": "queries" if method.queries else "batch norm",
        "settings": method.settings(),
    }


def print_json(found: list[dict[str, Any]]) -> None:
    import json

    print(json.dumps(found, indent=1))


def print_list(chosen: Sequence[Method]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "year", "what it does", "order", "transductive by", "paper")
    for each in chosen:
        told = described(each)
        keys = ("name", "year", "summary", "order", "transductive", "paper")
        table.add_row(*(str(told[key]) for key in keys))
    Console().print(table)
    print("pathaware methods NAME shows one of them, with its settings")


def opening(method: Method) -> str:
    """The docstring of the file that a method is in: its rule may be another's, such as MAML's."""
    author = method.paper.split(",")[0].split(" and ")[0]
    texts = [inspect.getdoc(inspect.getmodule(part)) or "" for part in (method.meta_gradient, method.kind)]
    return next((text for text in texts if author in text), texts[-1])


def print_one(method: Method) -> None:
    """What its file opens with, and what `--set` can change."""
    print(f"{method.name}: {method.summary}\n")
    print(opening(method))
    print(f"\npaper: {method.paper}")
    print("settings:")
    for key, value in method.settings().items():
        print(f"  --set method.{key}={'none' if value is None else str(value).lower()}")
