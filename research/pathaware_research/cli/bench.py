"""`pathaware bench`: time the engine beside other libraries, or measure how its cost grows with the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pathaware.cli.options import COMPUTE, OUTPUT, TASKS, Device, Replace, examples, flag, panel_option

EXAMPLES = examples(
    "pathaware bench --rows sine --repeats 3",
    "pathaware bench --rows images-84 --precision tf32,bf16 --only pathaware",
    "pathaware bench --scaling --plot scaling.png",
)
MEASUREMENT = "Measurement"


def bench(
    rows: str | None = panel_option(
        None,
        TASKS,
        "Rows to time, separated by commas: sine, glyphs, images-32, images-84; "
        "with --scaling: tasks, steps, size, width.",
        shown="sine,glyphs on a CPU, images-32,images-84 on a GPU; with --scaling all",
    ),
    full: bool = flag("--full", TASKS, "Time all rows, on any device."),
    only: list[str] | None = panel_option(
        None,
        MEASUREMENT,
        "Time only this implementation: pathaware, compiled, loop, higher, torchopt, learn2learn. "
        "Can be repeated.",
        shown="all but compiled",
        metavar="NAME",
    ),
    repeats: int | None = panel_option(
        None,
        MEASUREMENT,
        "Number of repeats, of which the median is reported.",
        shown="30 on a GPU, 11 on a CPU, 7 on a CPU with --scaling",
    ),
    scaling: bool = flag(
        "--scaling",
        MEASUREMENT,
        "Measure how the cost grows with tasks, steps, image size and width instead.",
    ),
    device: Device = "auto",
    precision: str | None = panel_option(
        None,
        COMPUTE,
        "Precision on a GPU: fp32, tf32 or bf16. Several, separated by commas, are timed one after "
        "another, each with its error.",
        shown="tf32",
    ),
    threads: int | None = panel_option(None, COMPUTE, "Number of CPU threads.", shown="PyTorch's"),
    plot: Path | None = panel_option(None, OUTPUT, "With --scaling: figure to write."),
    json: Path | None = panel_option(
        None, OUTPUT, "Also write all measurements to this JSON file, as they are made."
    ),
    replace: Replace = False,
) -> None:
    """Compare the speed of meta-iterations and adaptations with other libraries, once results agree."""
    from pathaware.cli.options import must_be_new
    from pathaware.core.errors import UsageError
    from pathaware.core.settings import at_least, coerce
    from pathaware.training.settings import Precision, Training

    chosen = Training(device=device).torch_device
    at_least(1, repeats=1 if repeats is None else repeats)
    at_least(0, threads=threads or 0)
    precisions = [
        coerce("precision", name.strip(), Precision) for name in (precision or Training.precision).split(",")
    ]
    if scaling and len(precisions) > 1:
        raise UsageError("with --scaling one precision is measured", field="precision")
    settings: dict[str, Any] = {
        "device": chosen,
        "precision": precisions[0] if scaling else precisions,
        "threads": threads,
        "repeats": repeats or (30 if chosen.type == "cuda" else 7 if scaling else 11),
    }
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            must_be_new(option, path, replace)
    names = [name.strip() for name in rows.split(",")] if rows else []
    if plot and not scaling:
        raise UsageError("applies to --scaling only", field="plot")
    if scaling and (full or only):
        raise UsageError("cannot be combined with --scaling", field="full" if full else "only")

    def keep(record: dict[str, Any]) -> None:
        from pathaware.training.provenance import write_record

        if json:
            write_record(json, record, field="json")

    if scaling:
        keep(_scaling(names, settings, plot))
    else:
        _compare(names, full, only or [], {**settings, "keep": keep})


def _compare(names: list[str], full: bool, only: list[str], settings: dict[str, Any]) -> None:
    from pathaware.cli.show import print_table
    from pathaware.training.tables import Table
    from pathaware_research.bench import comparison
    from pathaware_research.bench.workloads import What, choose

    workloads = choose(names, settings["device"], full=full)
    record = comparison.bench(workloads, comparison.implementations(only), **settings, report=_progress)
    kinds: tuple[What, ...] = ("training", "adaptation")
    for what in kinds:
        title = f"{what}: milliseconds, medians of {record['repeats']}"
        print_table(Table.of(title, comparison.header(record, what), comparison.lines(record, what)))
    if memory := comparison.memory_lines(record):
        print_table(Table.of("training: peak memory, MB", comparison.memory_header(record), memory))
    print(comparison.disagreement(record))


def _scaling(names: list[str], settings: dict[str, Any], plot: Path | None) -> dict[str, Any]:
    from pathaware.cli.show import print_table
    from pathaware.report.style import save
    from pathaware.training.tables import Table
    from pathaware_research.bench import scaling

    record = scaling.measure(names, **settings, report=_progress)
    print_table(Table.of("one meta-iteration of PAMELA", scaling.header(record), scaling.lines(record)))
    for sentence in scaling.verdicts(record):
        print(sentence)
    if plot:
        print(save(scaling.draw(record), plot))
    return record


def _progress(line: str) -> None:
    typer.echo(line, err=True)
