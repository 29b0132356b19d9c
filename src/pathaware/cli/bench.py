"""`pathaware bench`: time the engine against other libraries, or its growth with the size of tasks."""

from __future__ import annotations

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
    full: Annotated[bool, typer.Option("--full", help="All rows, on any device.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="An implementation: pathaware, compiled, loop, higher, torchopt, learn2learn. Repeatable."
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Turns to take medians of (default: 11; CUDA 30; CPU scaling 7).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="As in training.precision.")] = None,
    threads: Annotated[int | None, typer.Option(help="As in training.threads.")] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Measure growth with tasks, steps and image size instead.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="With --scaling: the figure to write.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all measurements to this file.")] = None,
) -> None:
    """Time a meta-iteration and an adaptation against other libraries, after checking that results agree."""
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
        raise UsageError("only --scaling draws a figure", field="plot")
    if scaling and (full or only):
        raise UsageError("cannot be combined with --scaling", field="full" if full else "only")
    record = _scaling(names, settings, plot) if scaling else _compare(names, full, only or [], settings)
    if json:
        from pathaware.training.provenance import write_record

        write_record(json, record, field="json")


def _compare(names: list[str], full: bool, only: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    from pathaware.cli.show import print_table
    from pathaware.experiments.bench import comparison
    from pathaware.experiments.bench.workloads import What, choose
    from pathaware.training.tables import Table

    workloads = choose(names, settings["device"], full=full)
    record = comparison.bench(workloads, comparison.implementations(only), **settings, report=_progress)
    kinds: tuple[What, ...] = ("training", "adaptation")
    for what in kinds:
        title = f"{what}: milliseconds, medians of {record['repeats']}"
        print_table(Table.of(title, comparison.header(record, what), comparison.lines(record, what)))
    if memory := comparison.memory_lines(record):
        print_table(Table.of("training: peak memory, MB", comparison.memory_header(record), memory))
    print(comparison.disagreement(record))
    return record


def _scaling(names: list[str], settings: dict[str, Any], plot: Path | None) -> dict[str, Any]:
    from pathaware.cli.show import print_table
    from pathaware.experiments.bench import scaling
    from pathaware.experiments.report.style import save
    from pathaware.training.tables import Table

    record = scaling.measure(names, **settings, report=_progress)
    print_table(Table.of("one meta-iteration of PAMELA", scaling.header(record), scaling.lines(record)))
    for sentence in scaling.verdicts(record):
        print(sentence)
    if plot:
        print(save(scaling.draw(record), plot))
    return record


def _progress(line: str) -> None:
    typer.echo(line, err=True)
