"""`pathaware online STREAM`: compare online meta-training with other ways to learn a stream of data sets."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from pathaware.cli.options import (
    METHOD,
    OUTPUT,
    TASKS,
    Json,
    argument,
    examples,
    must_be_writable,
    panel_option,
)
from pathaware.core.errors import UsageError

EXAMPLES = examples(
    "pathaware online sine --tasks 20 --seeds 1",
    "pathaware online glyphs --only online --only scratch --out online",
)
TASKS_PER_STREAM = {"sine": 200, "glyphs": 60}
MOST = 10_000


def online(
    stream: str = argument("sine or glyphs.", "STREAM"),
    tasks: int | None = panel_option(
        None,
        TASKS,
        "Data sets per stream.",
        shown=f"{TASKS_PER_STREAM['sine']} for sine, {TASKS_PER_STREAM['glyphs']} for glyphs",
        min=4,
        max=MOST,
    ),
    seeds: int = panel_option(
        5, TASKS, "Number of streams, each with its own initialisation.", min=1, max=MOST
    ),
    items: int | None = panel_option(
        None, TASKS, "Items per data set.", shown="12 for sine, 8 for glyphs", min=2, max=MOST
    ),
    every: int = panel_option(4, METHOD, "Hold out every k-th item for the update of θ.", min=1, max=MOST),
    steps: int = panel_option(1, METHOD, "φ-steps per item.", min=1, max=MOST),
    only: list[str] | None = panel_option(
        None,
        METHOD,
        "Compare only these: online, literal, leader, tuning, scratch. Can be repeated.",
        shown="all",
        metavar="NAME",
    ),
    setting: list[str] | None = panel_option(
        None,
        METHOD,
        "Fix a setting of one of them, such as online.pull=1. Can be repeated.",
        "--set",
        shown="chosen on a validation stream",
        metavar="NAME.SETTING=VALUE",
    ),
    out: Path | None = panel_option(None, OUTPUT, "Folder for online-STREAM.json, .png and .svg."),
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
