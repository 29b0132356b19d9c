"""`pathaware online STREAM`: compare online meta-training with other ways to learn a stream of data sets."""

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
        int | None, typer.Option(help="Data sets per stream [200 for sine, 60 for glyphs].", min=4, max=MOST)
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Number of streams, each with its own initialisation.", min=1, max=MOST)
    ] = 5,
    items: Annotated[
        int | None, typer.Option(help="Items per data set [12 for sine, 8 for glyphs].", min=2, max=MOST)
    ] = None,
    every: Annotated[
        int, typer.Option(help="Hold out every k-th item for the update of θ.", min=1, max=MOST)
    ] = 4,
    steps: Annotated[int, typer.Option(help="φ-steps per item.", min=1, max=MOST)] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Compare only these: online, literal, leader, tuning, scratch. Can be repeated."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of one of them, as `online.pull=1`; the others are still chosen."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for online-STREAM.json, .png and .svg.")] = None,
    json: Json = False,
) -> None:
    """Compare online meta-training (the paper's Algorithm 2) with baselines on a stream of data sets.

    Step sizes are chosen on a separate validation stream first.
    """
    import torch

    from pathaware.cli.options import must_have_room
    from pathaware.cli.show import print_table
    from pathaware.experiments.online.baselines import StreamSetup
    from pathaware.experiments.online.comparison import candidate_settings, compare
    from pathaware.experiments.online.report import comparison_table, origin, write
    from pathaware.online.streams import open_stream

    torch.set_num_threads(1)  # items are too small to gain from more threads
    setup = StreamSetup(open_stream(stream, items), steps, every)
    candidates = candidate_settings(stream, only or (), _tables(setting or []))
    if out is not None:
        must_have_room("--out", out, [f"online-{stream}.{ending}" for ending in ("json", "png", "svg")])
    made_by = origin()
    record = {**compare(candidates, setup, tasks or TASKS[stream], seeds, _log), **made_by}
    written = [] if out is None else write(record, out, f"online-{stream}")
    if json:
        print(jsonlib.dumps(record))
        return
    print_table(comparison_table(record))
    for path in written:
        print(path)


def _tables(settings: list[str]) -> dict[str, dict[str, Any]]:
    """`online.pull=1` → `{"online": {"pull": 1}}`"""
    from pathaware.core.errors import UsageError
    from pathaware.training.config import parse_value

    tables: dict[str, dict[str, Any]] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        baseline, dot, key = name.partition(".")
        if not (equals and dot and key):
            raise UsageError(f"{text!r} must have the form NAME.SETTING=VALUE", field="set")
        tables.setdefault(baseline, {})[key] = parse_value(value)
    return tables


def _log(line: str) -> None:
    typer.echo(line, err=True)
