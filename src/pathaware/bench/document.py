"""The tables of docs/performance.md, rendered from the files `results/bench-*.json`.

python -m pathaware.bench.document docs/performance.md results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pathaware.bench import insight, scaling, table
from pathaware.report.blocks import fill
from pathaware.report.tables.markdown import markdown, pipe_table
from pathaware.report.tables.model import Table


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
        sections.append(
            "\n".join(["### Precision: NVIDIA H200", "", insight.precision(results / "precision")])
        )
    if (results / "profile-h200.json").exists():
        shares = insight.profile(results / "profile-h200.json")
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
