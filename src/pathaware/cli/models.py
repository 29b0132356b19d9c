"""`pathaware models`: the models that ship with the package, and their cards."""

from __future__ import annotations

import json as jsonlib

from pathaware.cli.options import Json, argument, complete_model, examples

EXAMPLES = examples("pathaware models", "pathaware models photos")


def models(
    name: str | None = argument(
        "Show the card of this model.", "NAME", default=None, complete=complete_model
    ),
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
