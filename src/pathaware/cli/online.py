"""`pathaware online STREAM`: learning one data set after another, beside other ways to do it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from pathaware.cli.options import Json

TASKS = {"sine": 200, "glyphs": 60}
MOST = 10_000


def online(
    stream: Annotated[str, typer.Argument(help="sine or glyphs.", metavar="STREAM")],
    tasks: Annotated[
        int | None, typer.Option(help="Data sets of the stream [200 waves, 60 of glyphs].", min=4, max=MOST)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Streams, each with a start of its own.", min=1, max=MOST)] = 5,
    items: Annotated[
        int | None, typer.Option(help="Items of a data set [12, glyphs 8].", min=2, max=MOST)
    ] = None,
    every: Annotated[
        int, typer.Option(help="Which item is held out for θ: every k-th.", min=1, max=MOST)
    ] = 4,
    steps: Annotated[int, typer.Option(help="φ-steps on each item.", min=1, max=MOST)] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A contestant: online, literal, leader, tuning, scratch. Can be repeated."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A contestant's setting, as `online.pull=1`; others stay to be chosen."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for online-STREAM.json, .png and .svg.")] = None,
    json: Json = False,
) -> None:
    """Online meta-training (the paper's Algorithm 2) and what it is compared with, on one stream.

    Rates are chosen on a stream of their own before the race begins.
    """
    import torch

    from pathaware.cli.options import must_have_room
    from pathaware.cli.show import print_table
    from pathaware.experiments.online.baselines import Conditions
    from pathaware.experiments.online.comparison import entries, race
    from pathaware.experiments.online.report import origin, race_table, write
    from pathaware.online.streams import open_stream

    torch.set_num_threads(1)  # items are so small that a second thread only gets in the way
    conditions = Conditions(open_stream(stream, items), steps, every)
    taking_part = entries(stream, only or (), _tables(setting or []))
    if out is not None:
        must_have_room("--out", out, [f"online-{stream}.{ending}" for ending in ("json", "png", "svg")])
    made_by = origin()
    record = {**race(taking_part, conditions, tasks or TASKS[stream], seeds, _say), **made_by}
    written = [] if out is None else write(record, out, f"online-{stream}")
    if json:
        print(jsonlib.dumps(record))
        return
    print_table(race_table(record))
    for path in written:
        print(path)


def _tables(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`online.pull=1` → `{"online": {"pull": 1}}`"""
    from pathaware.core.errors import UsageError
    from pathaware.training.config import parse_value

    tables: dict[str, dict[str, Any]] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        contestant, dot, key = name.partition(".")
        if not (equals and dot and key):
            raise UsageError(f"--set: {text!r} is not of the form CONTESTANT.SETTING=VALUE")
        tables.setdefault(contestant, {})[key] = parse_value(value)
    return tables


def _say(line: str) -> None:
    typer.echo(line, err=True)
