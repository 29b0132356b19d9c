"""`pathaware methods`: what can be trained; `pathaware models`: the models that ship, with their cards."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathaware.cli.completion import complete_method, complete_model
from pathaware.cli.options import Json, examples

if TYPE_CHECKING:
    from pathaware.methods.method import Method

EXAMPLES = examples("pathaware methods", "pathaware methods pamela", "pathaware models photos")


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show the paper, the equations and the settings of this method.",
            metavar="NAME",
            autocompletion=complete_method,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the methods, or show one of them in detail."""
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
        "transductive": "queries" if method.queries else "batch norm",
        "settings": method.settings(),
    }


def print_list(chosen: Sequence[Method]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "year", "what it does", "order", "transductive by", "paper")
    for each in chosen:
        row = described(each)
        keys = ("name", "year", "summary", "order", "transductive", "paper")
        table.add_row(*(str(row[key]) for key in keys))
    Console().print(table)
    print("For the equations and settings of a method: pathaware methods NAME")


def print_one(name: str, method: Method) -> None:
    """Print the docstring of the method's file, and its settings in the form that `--set` takes."""
    from pathaware.methods import describe_method

    print(f"{method.name}: {method.summary}\n")
    print(describe_method(name))
    print(f"\npaper: {method.paper}")
    print("settings:")
    for key, value in method.settings().items():
        print(f"  --set method.{key}={'none' if value is None else str(value).lower()}")


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="Show the card of this model.", metavar="NAME", autocompletion=complete_model),
    ] = None,
    json: Json = False,
) -> None:
    """List the models that ship with the package, or show the card of one."""
    from pathaware.inference.trained_model import read_card, shipped

    names = shipped() if name is None else [name]
    cards = [read_card(each) for each in names]
    if json:
        print(jsonlib.dumps([{"name": n, **card} for n, card in zip(names, cards, strict=True)], indent=1))
    elif name is None:
        for each, card in zip(names, cards, strict=True):
            print(f"{each}: {card['summary']}")
        print("For the card of a model: pathaware models NAME")
    else:
        print(f"{name}: {cards[0]['summary']}")
        for key, value in cards[0].items():
            if key == "accuracy":
                print("accuracy:")
                for line in value:
                    print(f"  {line}")
            elif key != "summary":
                print(f"{key.replace('_', ' ')}: {value}")
