"""`pathaware bench`: how fast is it, beside other libraries and as tasks grow?"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer


def bench(
    rows: Annotated[
        str | None,
        typer.Option(
            help="sine, glyphs, images-32, images-84, with commas between (default: by device); "
            "with --scaling: tasks, steps, size, width (default: all)."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All rows, whatever the device.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A contestant: pathaware, compiled, loop, higher, torchopt, learn2learn. Can be repeated."
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Turns to take medians of (default: 11; CUDA 30; CPU scaling 7).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="As in training.precision.")] = None,
    threads: Annotated[int | None, typer.Option(help="As in training.threads.")] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Time and memory as tasks, steps and images grow instead.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="With --scaling: the picture to write.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all that was measured to this file.")] = None,
) -> None:
    """Time a meta-iteration and an adaptation in turns with other libraries, each checked before."""
    from pathaware.cli.options import must_be_writable
    from pathaware.core.errors import UsageError
    from pathaware.core.settings import at_least, coerce
    from pathaware.training.config import Training, setting_type

    chosen = Training(device=device).torch_device
    at_least(1, repeats=1 if repeats is None else repeats)
    at_least(0, threads=threads or 0)
    settings: dict[str, Any] = {
        "device": chosen,
        "precision": coerce(
            "precision", precision or Training.precision, setting_type(Training, "precision")
        ),
        "threads": threads,
        "repeats": repeats or (30 if chosen.type == "cuda" else 7 if scaling else 11),
    }
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            must_be_writable(option, path)
    names = [name.strip() for name in rows.split(",")] if rows else []
    if plot and not scaling:
        raise UsageError("--plot: only --scaling has something to draw")
    if scaling and (full or only):
        raise UsageError(f"--{'full' if full else 'only'}: does not go with --scaling")
    record = _scaling(names, settings, plot) if scaling else _contest(names, full, only or [], settings)
    if json:
        json.write_text(jsonlib.dumps(record, indent=1) + "\n", encoding="utf-8")


def _contest(names: list[str], full: bool, only: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    from pathaware.cli.show import print_table
    from pathaware.experiments.bench.run import bench, contestants
    from pathaware.experiments.bench.table import disagreement, header, lines, memory_header, memory_lines
    from pathaware.experiments.bench.workloads import choose
    from pathaware.training.tables import Table

    workloads = choose(names, settings["device"], full=full)
    record = bench(workloads, contestants(only), **settings, report=_progress)
    for what in ("training", "adaptation"):
        title = f"{what}: milliseconds, medians of {record['repeats']}"
        print_table(Table.of(title, header(record, what), lines(record, what)))
    if weighed := memory_lines(record):
        print_table(Table.of("training: megabytes at most", memory_header(record), weighed))
    print(disagreement(record))
    return record


def _scaling(names: list[str], settings: dict[str, Any], plot: Path | None) -> dict[str, Any]:
    from pathaware.cli.show import print_table
    from pathaware.experiments.bench.scaling import header, lines, measure, verdicts
    from pathaware.training.tables import Table

    record = measure(names, **settings, report=_progress)
    print_table(Table.of("one meta-iteration of PAMELA", header(record), lines(record)))
    for sentence in verdicts(record):
        print(sentence)
    if plot:
        from pathaware.experiments.bench.scaling import draw
        from pathaware.experiments.report.style import save

        print(save(draw(record), plot))
    return record


def _progress(line: str) -> None:
    typer.echo(line, err=True)
