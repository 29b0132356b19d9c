"""The tables of docs/performance.md: timings, growth, precision, and where a GPU spends its time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pathaware.training.metric import ACCURACY
from pathaware.training.tables import NOTHING, Table, markdown, pipe_table
from pathaware_research.bench import comparison, scaling
from pathaware_research.bench.comparison import number
from pathaware_research.bench.workloads import What
from pathaware_research.records import Records, measurement, measurements

PARTS = {
    "convolutions and their input gradients": ("convolve", "pack"),
    "weight gradients": ("weight_gradient", "split_into_pieces", "join_splits"),
    "the first block": ("stem_",),
    "normalise, ReLU and pool of the others": (
        "normalise",
        "backward",
        "tangent",
        "hvp",
        "sum_first",
        "sum_second",
        "join",
    ),
    "linear layer and loss": ("logits", "classifier"),
}
"""Prefixes of kernel names by the part of a meta-iteration they belong to; the first match counts."""
MEASURED: dict[What, str] = {"training": "A meta-iteration, ms", "adaptation": "Adapting to one task, ms"}
REST = "images, rule, guard, sums of gradients, optimiser"


def blocks(folder: Path) -> dict[str, str]:
    """The page's blocks, with the figures in `docs/images` beside the folder of results."""
    images = folder.absolute().parent / "docs" / "images"
    return {"summary": f"\n{pipe_table(summary_table(folder))}\n", "results": render(folder, images)}


def summary_table(results: Path) -> Table:
    """Second-order meta-iterations of MAML, from the records that have all libraries."""
    names = ["pathaware", "loop", "higher", "torchopt", "learn2learn"]
    rows, found = [], measurements(results, "timings/bench-*")
    for record in (found[name] for name in sorted(found)):
        if record["bench"] == "scaling" or set(record["contestants"]) != set(names):
            continue
        environment = record["environment"]
        machine = environment["device"] if record["device"] == "cuda" else f"{environment['cores']} CPU cores"
        rows += [
            [f"`{r['row']}`", machine, *(comparison.cell(r["entries"][name]) for name in names)]
            for r in record["rows"]
            if (r["what"], r["order"], r["method"]) == ("training", "second", "maml")
        ]
    return Table.of("", ["row", "machine", *(comparison.TITLES.get(n, n) for n in names)], rows)


def bench_sections(results: Path, images: Path) -> list[str]:
    """A section per file `bench-*.json`, with the image of the same name if there is one."""
    sections = []
    for name, record in measurements(results, "timings/bench-*").items():
        body = growth_section(record) if record["bench"] == "scaling" else comparison_section(record)
        image = images / f"{name}.png"
        if image.exists():
            body += ["", f"![Cost of a meta-iteration as each quantity grows](images/{image.name})"]
        sections.append("\n".join([f"### {heading(record)}", "", *body]))
    return sections


def render(results: Path, images: Path) -> str:
    """The sections of comparisons and growth, then a section for each of the other measurements."""
    sections = bench_sections(results, images)
    steps, evaluating = (
        list(measurements(results, f"timings/{kind}-*").values()) for kind in ("steps", "evaluating")
    )
    processes, launches, profile = (
        measurement(results, f"timings/{name}") for name in ("processes-cpu", "launches", "profile-h200")
    )
    cores = f"{processes['environment']['cores']} CPU cores, row `{processes['row']}`"
    for title, text, tables in (
        ("Precision: NVIDIA H200", "", [precision_table(results)]),
        ("Step times: NVIDIA H200", f"{STEPS} {_made(steps)}", [step_table(steps)]),
        (f"Processes: {cores}", f"{PROCESSES} {_made([processes])}", [process_table(processes)]),
        ("Evaluation: NVIDIA H200", _made(evaluating), [evaluation_table(evaluating)]),
        ("Launches of a meta-iteration on a GPU", LAUNCHES, [launches_table(launches)]),
        (
            "Profile: NVIDIA H200, PAMELA, second order",
            f"{FLOOR} {_made([profile])}",
            [floor_table(profile), *profile_tables(profile)],
        ),
    ):
        sections.append("\n\n".join(filter(None, (f"### {title}", text, *map(pipe_table, tables)))))
    return "\n\n".join(["", *sections, ""])


def launches_table(record: dict[str, Any]) -> Table:
    rows = [[r["row"], r["method"], f"{r['launches']:,}"] for r in record["rows"]]
    return Table.of("", ["row", "method", "launches"], rows)


def _made(records: Sequence[dict[str, Any]]) -> str:
    """The commits that records are of: kernels change more often than GPUs are at hand."""
    commits = sorted({f"`{record['commit'][:7]}`" for record in records})
    return f"Measured at commit {', '.join(commits)}."


def heading(record: dict[str, Any]) -> str:
    environment = record["environment"]
    names = dict.fromkeys(f"`{row['row']}`" for row in record.get("rows", []))
    kind = " and ".join(names) or "Growth"
    if record["device"] == "cuda":
        return f"{kind}: {environment['device']}, {record['precision'].replace(', ', ' and ')}"
    return f"{kind}: {environment['cores']} CPU cores"


def sizes_text(recorded: str) -> str:
    """The sizes of a workload; those of earlier records have another wording."""
    return recorded.replace("queries a class", "queries per class")


def comparison_section(record: dict[str, Any]) -> list[str]:
    sizes = dict.fromkeys((row["row"], sizes_text(row["sizes"]), row["threads"]) for row in record["rows"])
    threads = record["device"] != "cuda"
    body = [f"- `{n}`: {text}{f', threads: {count}' if threads else ''}" for n, text, count in sizes]
    libraries = {n: v for n, v in record["contestants"].items() if n not in ("compiled", "loop")}
    versions = ", ".join(f"{comparison.TITLES.get(n, n)} {v}" for n, v in libraries.items())
    versions += f", PyTorch {record['environment']['torch']}"
    body += ["", f"{versions}. Medians of {record['repeats']}. {comparison.disagreement(record)}"]
    tables = [
        Table.of(title, comparison.header(record, what), _without_words(comparison.lines(record, what)))
        for what, title in MEASURED.items()
    ]
    if memory := comparison.memory_lines(record):
        tables.append(Table.of("A meta-iteration, peak MB", comparison.memory_header(record), memory))
    for table in tables:
        body += ["", markdown(table)] if table.rows else []
    return body


def _without_words(lines: list[list[str]]) -> list[list[str]]:
    """Lines with a dash for libraries that have no PAMELA, which the page says once."""
    return [[NOTHING if cell == "no PAMELA" else cell for cell in line] for line in lines]


def growth_section(record: dict[str, Any]) -> list[str]:
    body = [
        f"One meta-iteration of PAMELA, second order, from {sizes_text(record['base'])}; "
        f"medians of {record['repeats']}, PyTorch {record['environment']['torch']}."
    ]
    body += ["", *(f"- {sentence}" for sentence in scaling.verdicts(record))]
    return [*body, "", pipe_table(Table.of("", scaling.header(record), scaling.lines(record)))]


def precision_table(results: Path) -> Table:
    """The error of a meta-gradient and the accuracy of a run in each precision."""
    rows, runs = [], Records("tables-cifar-fs", results)
    for name, error in measurement(results, "other/meta-gradient-h200")["median"].items():
        run = runs[f"cifar-fs-{name}"]
        result, iterations = run["result"], run["config"]["training"]["iterations"]
        rows.append(
            [
                name,
                f"{error['plain']:.1e}",
                f"{error['kernels']:.1e}",
                ACCURACY.with_interval(result["accuracy"], result["accuracy_ci95"]),
                f"{iterations:,}",
            ]
        )
    header = ["precision", "error, layer by layer", "error, kernels", "validation accuracy, %", "iterations"]
    return Table.of("", header, rows)


STEPS = (
    "A meta-iteration alone (`pathaware_research.benchmarks.step_times`): median of five bursts, no other "
    "libraries. The gradient-based methods take five steps; the ResNet-12 adapts its last block."
)


def step_table(records: Sequence[dict[str, Any]]) -> Table:
    """The time and memory of a meta-iteration of each network, method and precision."""
    rows = []
    for record in records:
        network = record["network"] + (", sequential loop" if record["execution"] == "loop" else "")
        for row in record["rows"]:
            numbers = number(row["ms"]), f"{row['memory_mb']:,.0f}"
            precision = row.get("precision", record["precision"])
            rows.append([row["row"], network, row["method"], precision, *numbers])
    rows.sort(key=lambda row: row[:2])
    return Table.of("", ["row", "network", "method", "precision", "ms", "MB"], rows)


PROCESSES = (
    "A meta-iteration of one run in one process or, under torchrun, in several that divide the cores "
    "(`research/pathaware_research/benchmarks/processes.py`): they take turns, medians."
)


def process_table(record: dict[str, Any]) -> Table:
    """The time of a meta-iteration by the number of processes, and how much faster than the loop that is."""
    methods = list(record["milliseconds"]["sequential loop"])
    loop = record["milliseconds"]["sequential loop"]
    rows = [
        [
            name,
            *(cell for method in methods for cell in (number(ms[method]), number(loop[method] / ms[method]))),
        ]
        for name, ms in record["milliseconds"].items()
    ]
    header = ["", *(cell for method in methods for cell in (f"{method}, ms", "loop / this"))]
    return Table.of("", header, rows)


def evaluation_table(records: Sequence[dict[str, Any]]) -> Table:
    """How long it takes to adapt to many tasks and to predict their queries after every step."""
    rows = [
        [
            f"{record['data']} {record['shots']}-shot",
            record["method"],
            str(record["queries"]),
            f"{record['tasks']:,}",
            f"{record['seconds']:.1f}",
            f"{record['tasks_per_second']:,.0f}",
        ]
        for record in records
    ]
    return Table.of("", ["data", "method", "queries", "tasks", "seconds", "tasks per second"], rows)


LAUNCHES = (
    "Counted without a GPU (`pathaware_research.benchmarks.launch_counts`): Triton's kernels, and PyTorch's "
    "operations as one launch each, though some take more. The kernels are newer than those of the profile "
    "below."
)
FLOOR = (
    "The floor is the larger of two times: the multiplications of all convolutions at the speed of a large "
    "matrix product, and the activations at the speed of a large copy, if every pass of a block reads and "
    "writes each tensor once. Both speeds were measured in the same run. The rest of an iteration is time in "
    "kernels beyond the floor, and time between kernels. A profiler slows an iteration down, so totals are "
    "above those of the other tables."
)


def floor_table(record: dict[str, Any]) -> Table:
    """How far each row is from the floor, and where the rest goes."""
    header = [
        "row",
        "ms",
        "multiplications, ms",
        "traffic, ms",
        "× floor",
        "kernels beyond it, ms",
        "between, ms",
    ]
    lines = []
    for name, row in record["rows"].items():
        multiplications = 1e3 * row["flops"] / row["flops_per_second"]
        traffic = 1e3 * row["bytes"] / row["bytes_per_second"]
        least, total, busy = max(multiplications, traffic), row["iteration_ms"], row["busy_ms"]
        numbers = (total, multiplications, traffic, total / least, busy - least, total - busy)
        lines.append([name, *(number(value) for value in numbers)])
    return Table.of("", header, lines)


def profile_tables(record: dict[str, Any]) -> list[Table]:
    """A `profile_table` per precision."""
    precisions = dict.fromkeys(name.rpartition(", ")[2] for name in record["rows"])
    return [
        profile_table({name: row for name, row in record["rows"].items() if name.endswith(f", {precision}")})
        for precision in precisions
    ]


def profile_table(rows: dict[str, Any]) -> Table:
    """Milliseconds and kernel launches of each part of a meta-iteration."""
    header, columns = ["part"], []
    for name, row in rows.items():
        header += [f"{name}, ms", "launches"]
        columns.append(_parts(row))
    lines = [[part, *(cell for column in columns for cell in column[part])] for part in columns[0]]
    return Table.of("", header, lines)


def _parts(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    sums = {part: [0.0, 0.0] for part in PARTS} | {REST: [1e3 * row["busy_ms"], row["launches"]]}
    for kernel in row["kernels"]:
        part = next((part for part, prefixes in PARTS.items() if kernel["name"].startswith(prefixes)), None)
        if part is not None:
            for i, key in enumerate(("microseconds", "launches")):
                sums[part][i] += kernel[key]
                sums[REST][i] -= kernel[key]
    cells = {part: (number(us / 1e3), f"{count:.0f}") for part, (us, count) in sums.items()}
    idle, total = row["iteration_ms"] - row["busy_ms"], row["iteration_ms"]
    return {**cells, "between kernels": (number(idle), ""), "all": (number(total), f"{row['launches']:.0f}")}
