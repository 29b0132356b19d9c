"""Two more tables of docs/performance.md: what a precision costs, and where a GPU spends its time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pathaware.experiments.bench import scaling, table
from pathaware.experiments.bench.table import number
from pathaware.training.tables import Table, markdown, pipe_table
from tools.documents import fill

PARTS = {
    "convolutions and their input gradients": ("convolve", "pack"),
    "weight gradients": ("weight_gradient", "cut_in_pieces", "join_splits"),
    "the first block": ("stem_",),
    "normalise, ReLU and pool of the others": ("normalise", "backward", "sum_first", "sum_second", "join"),
}
"""What a kernel belongs to, by how its name begins; the first that fits counts."""


def precision(folder: Path) -> str:
    """Error of a meta-gradient, and accuracy of a run, in each precision."""
    errors = json.loads((folder / "meta-gradient-h200.json").read_text(encoding="utf-8"))["median"]
    rows = []
    for name, each in errors.items():
        run = json.loads((folder / f"cifar-fs-{name}.json").read_text(encoding="utf-8"))
        result, settings = run["result"], run["config"]["training"]
        rows.append(
            [
                name,
                f"{each['plain']:.1e}",
                f"{each['kernels']:.1e}",
                f"{100 * result['accuracy']:.2f} ± {100 * result['accuracy_ci95']:.2f}",
                f"{settings['iterations']:,} in {run['training_seconds']:.0f} s",
            ]
        )
    head = ["precision", "error, layer by layer", "error, kernels", "validation accuracy, %", "iterations"]
    return pipe_table(Table.of("", head, rows))


def profile(path: Path) -> str:
    """Milliseconds and launches of each part of a meta-iteration."""
    record = json.loads(path.read_text(encoding="utf-8"))
    head, columns = ["part"], []
    for name, row in record["rows"].items():
        head += [f"{name}, ms", "launches"]
        columns.append(_parts(row))
    lines = [[part, *(cell for column in columns for cell in column[part])] for part in columns[0]]
    return pipe_table(Table.of("", head, lines))


def _parts(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    sums = {part: [0.0, 0.0] for part in (*PARTS, "rest")}
    sums["rest"] = [1e3 * row["busy_ms"], row["launches"]]
    for kernel in row["kernels"]:
        for part, begins in PARTS.items():
            if kernel["name"].startswith(begins):
                for i, key in enumerate(("microseconds", "launches")):
                    sums[part][i] += kernel[key]
                    sums["rest"][i] -= kernel[key]
                break
    named = {"rest": "head, loss, rule, sums of gradients, optimiser"}
    cells = {named.get(part, part): (number(us / 1e3), f"{count:.0f}") for part, (us, count) in sums.items()}
    idle = row["iteration_ms"] - row["busy_ms"]
    return {
        **cells,
        "between kernels": (number(idle), ""),
        "all": (number(row["iteration_ms"]), f"{row['launches']:.0f}"),
    }


# The tables of docs/performance.md, rendered from the files `results/bench-*.json`.
#
# python -m tools.performance_page docs/performance.md results


def render(results: Path, images: Path) -> str:
    """A section for every file there is; a picture of the same name is shown with it."""
    sections = []
    for path in sorted(results.glob("bench-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        body = growth(record) if record["bench"] == "scaling" else comparison(record)
        picture = images / f"{path.stem}.png"
        if picture.exists():
            body += ["", f"![Cost of a meta-iteration as each quantity grows](images/{picture.name})"]
        sections.append("\n".join([f"### {heading(record)}", "", *body]))
    if (results / "precision").exists():
        sections.append("\n".join(["### Precision: NVIDIA H200", "", precision(results / "precision")]))
    if (results / "profile-h200.json").exists():
        shares = profile(results / "profile-h200.json")
        sections.append("\n".join(["### Profile: NVIDIA H200, tf32, PAMELA, second order", "", shares]))
    return "\n\n".join(["", *sections, ""])


def heading(record: dict[str, Any]) -> str:
    made = record["environment"]
    kind = "Growth" if record["bench"] == "scaling" else "Beside others"
    if record["device"] == "cuda":
        where = f"{made['device']}, {record['precision']}"
    else:
        where = f"{made['device']} CPU, {made['cores']} cores"
    return f"{kind}: {where}, PyTorch {made['torch']}"


def comparison(record: dict[str, Any]) -> list[str]:
    sizes = dict.fromkeys((row["row"], row["sizes"], row["threads"]) for row in record["rows"])
    threads = record["device"] != "cuda"
    body = [f"- `{n}`: {text}{f', threads: {count}' if threads else ''}" for n, text, count in sizes]
    versions = ", ".join(f"{table.TITLES.get(n, n)} {v}" for n, v in record["contestants"].items())
    body += ["", f"{versions}. Medians of {record['repeats']}. {table.disagreement(record)}"]
    for what, title in (("training", "A meta-iteration, ms"), ("adaptation", "Adapting to one task, ms")):
        body += ["", markdown(Table.of(title, table.header(record, what), table.lines(record, what)))]
    if weighed := table.memory_lines(record):
        body += ["", markdown(Table.of("A meta-iteration, MB at most", table.memory_header(record), weighed))]
    return body


def growth(record: dict[str, Any]) -> list[str]:
    body = [
        f"One meta-iteration of PAMELA, second order, from {record['base']}; medians of {record['repeats']}."
    ]
    body += ["", *(f"- {sentence}" for sentence in scaling.verdicts(record))]
    return [*body, "", pipe_table(Table.of("", scaling.header(record), scaling.lines(record)))]


if __name__ == "__main__":
    document, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tables = render(folder, document.parent / "images")
    document.write_text(fill(document.read_text(encoding="utf-8"), {"results": tables}), encoding="utf-8")
