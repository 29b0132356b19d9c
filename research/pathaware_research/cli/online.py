"""`pathaware online STREAM`: compare online meta-training with other ways to learn a stream of data sets."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pathaware.cli.options import METHOD, OUTPUT, TASKS, Json, examples, must_be_writable, panel_option
from pathaware.core.errors import UsageError

EXAMPLES = examples(
    "pathaware online sine --tasks 20 --seeds 1",
    "pathaware online glyphs --only online --only scratch --out online",
)
TASKS_PER_STREAM = {"sine": 200, "glyphs": 60}
MOST = 10_000


def online(
    stream: Annotated[str, typer.Argument(help="sine or glyphs.", metavar="STREAM")],
    tasks: Annotated[
        int | None,
        panel_option(
            help="Data sets per stream.",
            panel=TASKS,
            default=f"{TASKS_PER_STREAM['sine']} for sine, {TASKS_PER_STREAM['glyphs']} for glyphs",
            min=4,
            max=MOST,
        ),
    ] = None,
    seeds: Annotated[
        int,
        panel_option(
            help="Number of streams, each with its own initialisation.", panel=TASKS, min=1, max=MOST
        ),
    ] = 5,
    items: Annotated[
        int | None,
        panel_option(
            help="Items per data set.", panel=TASKS, default="12 for sine, 8 for glyphs", min=2, max=MOST
        ),
    ] = None,
    every: Annotated[
        int,
        panel_option(help="Hold out every k-th item for the update of θ.", panel=METHOD, min=1, max=MOST),
    ] = 4,
    steps: Annotated[int, panel_option(help="φ-steps per item.", panel=METHOD, min=1, max=MOST)] = 1,
    only: Annotated[
        list[str] | None,
        panel_option(
            help="Compare only these: online, literal, leader, tuning, scratch. Can be repeated.",
            panel=METHOD,
            default="all",
            metavar="NAME",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        panel_option(
            "--set",
            help="Fix a setting of one of them, such as online.pull=1. Can be repeated.",
            panel=METHOD,
            default="chosen on a validation stream",
            metavar="NAME.SETTING=VALUE",
        ),
    ] = None,
    out: Annotated[
        Path | None, panel_option(help="Folder for online-STREAM.json, .png and .svg.", panel=OUTPUT)
    ] = None,
    json: Json = False,
) -> None:
    """Compare online meta-training (the paper's Algorithm 2) with baselines on a stream of data sets.

    Learning rates are first chosen on a separate validation stream.
    """
    import torch

    from pathaware.cli.show import print_table
    from pathaware_research.online.baselines import StreamSetup
    from pathaware_research.online.comparison import candidate_settings, compare
    from pathaware_research.online.report import comparison_table, origin, write
    from pathaware_research.online.streams import open_stream

    torch.set_num_threads(1)  # items are too small to gain from more threads
    setup = StreamSetup(open_stream(stream, items), steps, every)
    candidates = candidate_settings(stream, only or (), _tables(setting or []))
    if out is not None:
        must_have_room("--out", out, [f"online-{stream}.{ending}" for ending in ("json", "png", "svg")])
    made_by = origin()
    record = {**compare(candidates, setup, tasks or TASKS_PER_STREAM[stream], seeds, _log), **made_by}
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


def must_have_room(option: str, folder: Path, names: Sequence[str]) -> None:
    """Create the folder if needed; raise if it contains one of these names."""
    for name in names:
        if (folder / name).exists():
            raise UsageError(f"{option}: {folder / name} exists; name another folder or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # the latter from a name that no system allows
        raise UsageError(f"{option}: {folder} cannot be created ({error})") from None
    must_be_writable(option, folder / names[0])
